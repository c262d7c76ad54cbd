"""What a running job can do: emit with its completion, check its lease, read its own state."""

import asyncio
import threading

import pytest

from pelton import Jet
from pelton.api import AckOp, ConfigError, LeaseLostError, PermanentJobError
from pelton.queue import JobContext, Queue
from tests.queue.helpers import FAST, drain


async def effects(jet: Jet) -> list[tuple[str, bytes]]:
    stream = await jet.stream("effects")
    info = await stream.info()
    found = [await stream.get_message(seq) for seq in range(1, info.state.last_seq + 1)]
    return [(message.subject, message.data) for message in found]


@pytest.fixture(autouse=True)
async def _effects(jet: Jet) -> None:
    await jet.create_stream("effects", subjects=["effects.>"])


@pytest.mark.parametrize("threaded", [False, True])
async def test_emitted_messages_appear_with_the_completion(queue: Queue, jet: Jet, threaded: bool) -> None:
    def emits(context: JobContext) -> None:
        context.emit("effects.a", b"1", {"Origin": context.id})
        context.emit("effects.b", bytearray(b"2"))

    async def emits_async(context: JobContext) -> None:
        emits(context)
        assert (await (await jet.stream("effects")).info()).state.messages == 0

    await queue.job(emits if threaded else emits_async).enqueue()
    await drain(queue)
    assert await effects(jet) == [("effects.a", b"1"), ("effects.b", b"2")]


async def test_a_failed_attempt_emits_nothing(queue: Queue, jet: Jet) -> None:
    @queue.job(backoff=FAST)
    async def job(context: JobContext) -> None:
        context.emit("effects.a", str(context.attempt).encode())
        if context.attempt == 1:
            raise ValueError
        if context.attempt == 2:
            raise PermanentJobError

    await job.enqueue()
    await drain(queue)
    assert await effects(jet) == []


async def test_only_the_attempt_that_completes_emits(queue: Queue, jet: Jet) -> None:
    @queue.job(backoff=FAST)
    async def job(context: JobContext) -> None:
        context.emit("effects.a", str(context.attempt).encode())
        if context.attempt < 3:
            raise ValueError

    await job.enqueue()
    await drain(queue)
    assert await effects(jet) == [("effects.a", b"3")]


@pytest.mark.parametrize("subject", ["nobody.takes.this", "no such subject", "", "effects.*"])
async def test_what_no_stream_takes_fails_the_attempt_which_is_retried(queue: Queue, jet: Jet, subject: str) -> None:
    @queue.job(backoff=FAST, max_attempts=3)
    async def job(context: JobContext) -> None:
        context.emit("effects.a", b"with it")
        context.emit(subject if context.attempt < 3 else "effects.b", b"x")

    handle = await job.enqueue()
    good = await queue.job(name="good")(lambda: 1).enqueue()
    await drain(queue, concurrency=2)
    assert (await handle.outcome()).attempt == 3
    assert (await good.outcome()).attempt == 1
    assert await effects(jet) == [("effects.a", b"with it"), ("effects.b", b"x")]


_UNSEEN = {"Nats-Expected-Last-Sequence": "99"}


@pytest.mark.parametrize(
    ("subject", "given", "error"),
    [("nobody", None, "NoStreamForSubjectError"), ("effects.a", _UNSEEN, "WrongLastSequenceError")],
)
async def test_what_is_never_taken_is_dead_in_the_end(
    queue: Queue, subject: str, given: dict[str, str] | None, error: str
) -> None:
    @queue.job(backoff=FAST, max_attempts=2)
    async def job(context: JobContext) -> None:
        context.emit(subject, b"x", given)

    handle = await job.enqueue()
    await drain(queue)
    outcome = await handle.outcome()
    assert (outcome.state, outcome.attempt) == ("failed", 2)
    assert outcome.error.startswith(error)


@pytest.mark.parametrize(("subject", "data"), [("effects.a", "text"), (None, b"x"), ("effects.a", None)])
async def test_what_is_no_message_is_refused_at_once(queue: Queue, subject: str, data: bytes) -> None:
    @queue.job
    async def job(context: JobContext) -> str:
        with pytest.raises(ConfigError):
            context.emit(subject, data)
        return "refused"

    handle = await job.enqueue()
    await drain(queue)
    assert (await handle.outcome()).value() == "refused"


async def test_it_knows_itself(queue: Queue) -> None:
    @queue.job
    async def job(context: JobContext) -> list[object]:
        context.check()
        return [
            context.queue, context.job, context.key, context.id, context.attempt, context.lost, context.stopping
        ]  # fmt: skip

    handle = await job.enqueue(key="k")
    await drain(queue)
    outcome = await handle.outcome()
    assert outcome.value() == ["garage", "job", "k", handle.id, 1, False, False]


async def test_tokens_grow_with_every_start(keyed: Queue) -> None:
    tokens = list[int]()

    @keyed.job(backoff=FAST)
    async def job(context: JobContext) -> None:
        tokens.append(context.token)
        if context.attempt < 3:
            raise ValueError

    await job.enqueue_many([()] * 5, keys=["k"] * 5)
    await drain(keyed)
    assert len(tokens) == 15
    assert tokens == sorted(set(tokens))


async def test_a_lost_lease_is_told_to_a_thread_and_its_result_dropped(jet: Jet) -> None:
    """The delivery is replaced under the worker: given back and taken by another one."""
    keyed = await jet.queue("keyed", exclusive=True, lease=0.3)
    started, told = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @keyed.job
    def job(context: JobContext) -> None:
        loop.call_soon_threadsafe(started.set)
        context.emit("effects.a", b"late")
        while not context.lost:
            threading.Event().wait(0.005)
        with pytest.raises(LeaseLostError):
            context.check()
        told.set()

    handle = await job.enqueue(key="k")
    async with asyncio.TaskGroup() as group:
        work = group.create_task(keyed.work(handle_signals=False, concurrency=1))
        await started.wait()
        stream = await jet.stream("JOBS_keyed")
        consumer = await stream.consumer("workers")
        await jet.backend.ack(stream.name, consumer.name, [AckOp(kind="nak", seq=int(handle.id), consumer_seq=1)])
        [taken] = await consumer.fetch(1, no_wait=True)
        await asyncio.to_thread(told.wait, 60)
        keyed.stop()
        await work
    assert told.is_set()
    assert await effects(jet) == []
    assert (await handle.info()).state == "pending"
    await taken.ack()
