"""Attempts of keys that are records: what they leave when they end, fail, are refused, or stop halfway."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

import pelton
from pelton import Jet
from pelton.api import AckOp, AckRejectedError, Outgoing, PullRequest, ServerTimeoutError
from pelton.jet import ack_of
from pelton.queue import Attempt, JobContext, Queue
from pelton.queue.job_source import JobSource
from pelton.queue.key_table import Ledger
from pelton.queue.model.records import Ended
from pelton.queue.registry import TakenJob
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import FAST, drain, ended, open_store, waiting

pytestmark = ON_BOTH
OpenSupply = Callable[[str], JobSource]


async def take(job_source: JobSource) -> TakenJob:
    [taken] = await asyncio.wait_for(job_source.take("keys", PullRequest(batch=1)), 60)
    return taken


async def end(job_source: JobSource, taken: TakenJob, *emitted: Outgoing) -> None:
    d = taken.delivered
    record = Outgoing(f"$JOBS.garage.history.completed.{d.seq}", b'{"id":"%d"}' % d.seq)
    await job_source.settle(Ended(d, ack_of(d, "ack"), (*emitted, record)))


async def give_back(job_source: JobSource, taken: TakenJob, delay_ns: int = 0) -> None:
    d = taken.delivered
    known = Attempt(id=str(d.seq), attempt=1, error="again")
    record = Outgoing(f"$JOBS.garage.attempts.{d.seq}", msgspec.json.encode(known))
    await job_source.settle(Ended(d, ack_of(d, "nak", delay_ns=delay_ns), (record,), known))


def add_job(queue: Queue) -> pelton.Job[[int], int]:
    @queue.job(max_attempts=2, backoff=FAST)
    async def job(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return number

    return job


async def test_every_way_to_end_is_seen_in_every_view(queue: Queue) -> None:
    job = add_job(queue)
    fine, bad = await job.enqueue(1, key="a"), await job.enqueue(-1, key="b")
    free = await job.enqueue(2)
    assert ((await queue.counts()).pending, len(await waiting(queue))) == (3, 3)
    await drain(queue)
    assert (await fine.outcome()).value() == 1
    assert (await free.outcome()).value() == 2
    failed = (await bad.info()).outcome
    assert failed is not None
    assert (failed.state, failed.attempt, failed.error) == ("failed", 2, "ValueError: negative (attempt 2 of 2)")
    [letter] = [letter async for letter in queue.dead_letters()]
    again = await queue.redrive(letter.outcome.id)
    counts = await queue.counts()
    assert (counts.pending, counts.completed, counts.failed, counts.unfinished) == (1, 2, 1, 1)
    await drain(queue)
    assert (await again.outcome()).state == "failed"


async def test_what_is_held_waits_or_is_next_shows(queue: Queue, worker: OpenSupply) -> None:
    job = add_job(queue)
    handles = await job.enqueue_many([(n,) for n in range(4)], keys=["a", "a", "b", "c"])
    one = worker("one")
    taken = {(t := await take(one)).delivered.subject: t for _ in range(3)}
    await give_back(one, taken["$JOBS.garage.key.b"], delay_ns=600 * 10**9)
    await give_back(one, taken["$JOBS.garage.key.c"])
    states = [(await handle.info()).state for handle in handles]
    assert states == ["pending", "pending", "retrying", "pending"]
    assert [(info.state, info.attempt) for info in await waiting(queue)] == [
        ("pending", 0), ("pending", 0), ("retrying", 1), ("pending", 1)
    ]  # fmt: skip
    assert (await handles[2].info()).last_error == "again"
    counts = await queue.counts()
    assert (counts.running, counts.retrying, counts.pending) == (0, 1, 3)


async def test_what_a_job_emits_comes_with_its_completion(queue: Queue, jet: Jet) -> None:
    seen = await jet.create_stream("seen")

    @queue.job(backoff=FAST)
    async def job(context: JobContext) -> None:
        context.emit("seen", b"attempt %d" % context.attempt, {"Color": "red"})
        if context.attempt == 1:
            raise ValueError

    await job.enqueue(key="k")
    await drain(queue)
    assert (await seen.info()).state.messages == 1
    stored = await seen.get_message(1)
    assert (stored.data, stored.headers["Color"]) == (b"attempt 2", "red")


@pytest.mark.parametrize("subject", ["nobody.takes.this", "no subject"])
async def test_an_attempt_fails_when_what_it_emits_is_refused(queue: Queue, subject: str) -> None:
    @queue.job(max_attempts=2, backoff=FAST)
    async def job(context: JobContext) -> None:
        context.emit(subject, b"x")

    handle, after = await job.enqueue(key="k"), await add_after(queue)
    await drain(queue)
    outcome = await handle.outcome()
    assert (outcome.state, outcome.attempt) == ("failed", 2)
    assert (await after.outcome()).state == "completed"
    assert [o.id for o in await ended(queue)] == [handle.id, after.id]


async def add_after(queue: Queue) -> pelton.JobHandle[Any]:
    @queue.job
    async def after() -> None: ...

    return await after.enqueue(key="k")


async def test_a_settlement_of_a_replaced_holder_is_refused_with_all_that_belongs_to_it(
    queue: Queue, jet: Jet, worker: OpenSupply
) -> None:
    seen = await jet.create_stream("seen")
    await add_job(queue).enqueue_many([(1,), (2,)], keys=["k", "k"])
    one, two = worker("one"), worker("two")
    first = await take(one)  # and it is never renewed
    second = await take(two)
    assert (second.delivered.seq, second.delivered.num_delivered) == (first.delivered.seq, 2)
    assert second.delivered.token > first.delivered.token
    progress = AckOp(kind="progress", seq=1, consumer_seq=first.delivered.token)
    [refused] = await one.extender.ack("JOBS_garage", "keys", [progress])
    assert isinstance(refused, AckRejectedError)
    with pytest.raises(AckRejectedError, match="another worker"):
        await end(one, first, Outgoing("seen", b"late"))
    await end(two, second, Outgoing("seen", b"in time"))
    assert (await seen.info()).state.messages == 1
    assert (await seen.get_message(1)).data == b"in time"
    assert (await take(two)).delivered.seq == 2


async def test_a_renewal_on_its_way_does_not_hinder_the_settlement(queue: Queue, worker: OpenSupply) -> None:
    await add_job(queue).enqueue_many([(n,) for n in range(20)], keys=["k"] * 20)
    one = worker("one")
    keeper = one.extender.clone()
    for number in range(20):
        taken = await take(one)
        assert taken.delivered.seq == number + 1
        progress = AckOp(kind="progress", seq=1, consumer_seq=taken.delivered.token)
        renewal = asyncio.ensure_future(keeper.ack("JOBS_garage", "keys", [progress]))
        await asyncio.sleep(0)
        await end(one, taken)
        await renewal
    await keeper.close()
    assert await one.is_empty()


async def test_what_a_worker_settled_and_did_not_live_to_publish_others_publish_once(
    queue: Queue, jet: Jet, worker: OpenSupply, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = await jet.create_stream("seen")
    await add_job(queue).enqueue_many([(1,), (2,)], keys=["k", "k"])
    one, two = worker("one"), worker("two")
    first = await take(one)
    real, late = Ledger.carry_out, list[tuple[object, ...]]()

    async def dies(*args: object) -> None:
        late.append(args)
        raise ServerTimeoutError("here", "it is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "carry_out", dies)
        with pytest.raises(ServerTimeoutError):
            await end(one, first, Outgoing("seen", b"effect"))
    assert (await seen.info()).state.messages == 0
    assert (await queue.counts()).unfinished == 2
    await one.close()
    second = await take(two)
    assert second.delivered.seq == 2
    # The dead one was only paused, and resumes.
    with pytest.raises(pelton.PeltonError, match="another process"):
        await real(*late[0])  # type: ignore[arg-type]
    assert (await seen.info()).state.messages == 1
    history = await jet.stream("JOBS_garage_history")
    assert (await history.info()).state.messages == 1
    await end(two, second)


async def test_what_is_refused_after_its_worker_died_is_tried_again(
    queue: Queue, worker: OpenSupply, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_job(queue).enqueue(1, key="k")
    one, two = worker("one"), worker("two")

    async def dies(*_: object) -> None:
        raise ServerTimeoutError("here", "it is gone")

    first = await take(one)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "carry_out", dies)
        with pytest.raises(ServerTimeoutError):
            await end(one, first, Outgoing("nobody.takes.this", b"effect"))
    await one.close()
    second = await take(two)
    assert (second.delivered.seq, second.delivered.num_delivered) == (1, 2)
    known = await two.earlier_attempt(second.delivered)
    assert known is not None
    assert "nobody.takes.this" in known.error
    await end(two, second)


async def test_a_key_whose_record_was_removed_goes_on(queue: Queue, jet: Jet, worker: OpenSupply) -> None:
    job = add_job(queue)
    await job.enqueue(1, key="k")
    one, keys = worker("one"), await jet.stream("JOBS_garage_keys")
    await end(one, await take(one))
    assert await keys.purge() == 1  # as its time to live does
    await job.enqueue(2, key="k")
    taken = await take(one)
    assert (taken.delivered.seq, taken.delivered.num_delivered) == (2, 1)
    await end(one, taken)


async def test_free_records_have_a_time_to_live_and_others_have_none(
    queue: Queue, jet: Jet, worker: OpenSupply
) -> None:
    await add_job(queue).enqueue(1, key="k")
    one, keys = worker("one"), await jet.stream("JOBS_garage_keys")
    taken = await take(one)
    subject = "$JOBS.garage.hold.k"
    assert "Nats-TTL" not in (await keys.get_last_message(subject)).headers
    await end(one, taken)
    assert (await keys.get_last_message(subject)).headers["Nats-TTL"] == "3600s"


async def test_a_job_that_was_removed_is_passed_over(queue: Queue, jet: Jet, worker: OpenSupply) -> None:
    job, jobs = add_job(queue), await jet.stream("JOBS_garage")
    await job.enqueue_many([(1,), (2,)], keys=["k", "k"])
    one = worker("one")
    await give_back(one, await take(one), delay_ns=10**6)
    await jobs.delete_message(1)
    taken = await take(one)
    assert (taken.delivered.seq, taken.delivered.num_delivered) == (2, 1)
    await jobs.delete_message(2)
    await give_back(one, taken)
    await job.enqueue(3, key="k")
    assert (await take(one)).delivered.seq == 3


async def test_what_is_taken_for_a_worker_that_stops_is_given_back(queue: Queue, worker: OpenSupply) -> None:
    one, two = worker("one"), worker("two")
    taking = asyncio.ensure_future(one.take("keys", PullRequest(batch=1)))
    for number in range(10):
        await add_job_once(queue).enqueue(number, key=f"k{number}")
        await asyncio.sleep(0)
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
        taking = asyncio.ensure_future(one.take("keys", PullRequest(batch=9)))
    taking.cancel()
    await asyncio.wait([taking])
    await one.close()
    found = sorted([(await take(two)).delivered.seq for _ in range(9)])
    assert len(set(found)) == 9


def add_job_once(queue: Queue) -> pelton.Job[[int], int]:
    return queue.jobs_by_name.get("job") or add_job(queue)


async def test_a_worker_ends_when_its_queue_is_deleted(queue: Queue, jet: Jet) -> None:
    work = asyncio.ensure_future(queue.work(handle_signals=False))
    await asyncio.sleep(0)
    await jet.delete_stream("JOBS_garage_keys")
    with pytest.raises(pelton.StreamNotFoundError):
        await asyncio.wait_for(work, 60)


async def test_a_queue_works_as_it_was_made_wherever_it_is_opened_from(queue: Queue, path: str) -> None:
    async with open_store(path) as jet:
        same = await jet.queue("garage")
        job = add_job(same)
        handle = await job.enqueue(1, key="k")
        await drain(same)
        assert (await handle.outcome()).value() == 1
        assert await (await jet.stream("JOBS_garage")).consumer_names() == ["free", "rank1", "rank2", "rank3"]
