"""Handles belong to the event loop they were opened on: another one, in this thread or another, is refused.

A refused call has no effect, and the owning loop continues normally.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton import Jet, WrongLoopError
from tests.engine.test_fork import forked
from tests.kit.nats_server import NatsServer, nats_server
from tests.storage.processes import Child

SOON = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(params=["file", "memory", "server"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "server":
        return str(request.getfixturevalue("server").url)
    return "memory:" if request.param == "memory" else str(tmp_path / "a.pelton")


@pytest.fixture
async def jet(address: str) -> AsyncIterator[Jet]:
    async with pelton.open(address) as jet:
        yield jet
        for name in await jet.stream_names():
            await jet.delete_stream(name)


async def elsewhere(work: Callable[[], Awaitable[object]]) -> BaseException | object:
    """Run something on an event loop in another thread; return its result or error."""
    answers: list[object] = []

    async def main() -> object:
        async with asyncio.timeout(SOON):
            return await work()

    def run() -> None:
        try:
            answers.append(asyncio.run(main()))
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(thread.join)
    return answers[0]


async def refused(work: Callable[[], Awaitable[object]], number: int = 0) -> None:
    answer = await elsewhere(work)
    assert isinstance(answer, WrongLoopError), (number, answer)
    assert "jet.clone()" in str(answer)
    assert "pelton.sync" in str(answer)


async def first(iterator: AsyncIterator[Any]) -> object:
    return await anext(iterator)


async def begun(context: Any) -> None:
    async with context:
        pass


async def test_every_handle_is_refused_on_another_loop_and_its_own_loop_goes_on(jet: Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"])
    await jet.publish_batch([("s.1", b"1"), ("s.1", b"2"), ("s.1", b"3")])
    consumer = await stream.create_consumer(durable_name="c")
    message, other = await consumer.fetch(2)
    queue, bucket, objects = await jet.queue("q"), await jet.create_bucket("b"), await jet.create_objects("o")
    heard = await jet.subscribe("s.>")
    held = await jet.lock("a").acquire()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: jet.publish("s.1"),
        lambda: jet.publish_batch([("s.1", b"")]),
        lambda: jet.create_stream("t"),
        lambda: jet.subscribe("s.>"),
        lambda: jet.queue("q"),
        lambda: jet.close(),
        lambda: stream.info(),
        lambda: stream.get_message(1),
        lambda: consumer.fetch(1, timeout=0.1),
        lambda: first(consumer.messages()),
        lambda: consumer.ack([message]),
        lambda: message.ack(),
        lambda: message.nak(),
        lambda: queue.counts(),
        lambda: queue.work(),
        lambda: begun(queue.claims()),
        lambda: bucket.put("k", b"v"),
        lambda: bucket.get("k"),
        lambda: first(bucket.watch()),
        lambda: objects.put("o", b"content"),
        lambda: heard.next(timeout=0.1),
        lambda: heard.close(),
        lambda: jet.lock("b").acquire(),
        lambda: begun(jet.lock("b")),
        lambda: held.release(),
        lambda: held.until_lost(),
        lambda: begun(jet.elect("e")),
        lambda: jet.elect("e").leader(),
        lambda: jet.backend.presence(),
    ]
    for number, call in enumerate(calls):
        await refused(call, number)
    assert held.is_held
    await held.release()
    await message.ack()
    await other.ack()
    [last] = await consumer.fetch(1)
    assert (last.data, last.metadata.num_delivered) == (b"3", 1)
    await last.ack()
    await jet.publish("s.2", b"4")
    assert (await heard.next(timeout=SOON)) is not None
    await heard.close()
    assert (await stream.info()).state.messages == 4


async def test_a_transaction_is_refused_on_another_loop(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        await jet.create_stream("s")
        await refused(lambda: begun(jet.transaction()))
        async with jet.transaction() as tx:
            await tx.publish("s", b"1")
            # One that is open belongs to its task, wherever others run.
            assert isinstance(await elsewhere(lambda: tx.publish("s", b"2")), pelton.TransactionError)
        assert (await (await jet.stream("s")).info()).state.messages == 1


async def test_iterations_are_refused_on_another_loop_and_go_on_at_home(jet: Jet) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"])
    await jet.publish_batch([("s.1", b"%d" % number) for number in range(8)])
    bucket, objects, queue = await jet.create_bucket("b"), await jet.create_objects("o"), await jet.queue("q")
    await bucket.put("k", b"")
    await bucket.put("l", b"")
    await objects.put("o", b"content")
    heard = await jet.subscribe("s.>")
    await jet.publish_batch([("s.2", b"8"), ("s.2", b"9")])
    consumer = await stream.create_consumer(durable_name="c")
    pushed = await stream.create_consumer(durable_name="p", deliver_subject="to.p")
    iterations: list[Any] = [
        consumer.messages(prefetch=4),
        pushed.messages(),
        stream.ordered(),
        aiter(heard),
        bucket.watch(),
        bucket.keys(),
        objects.watch(),
        objects.get_chunks("o"),
    ]
    for number, iteration in enumerate(iterations):
        await anext(iteration)
        await refused(iteration.__anext__, number)
        await refused(iteration.aclose, number)
    assert (await anext(iterations[0])).data == b"1"
    assert (await anext(iterations[1])).data == b"1"
    assert (await anext(iterations[2])).data == b"1"
    assert (await anext(iterations[3])).data == b"9"
    assert (await anext(iterations[4])).key == "l"
    for iteration in iterations:
        await iteration.aclose()
    # Prefetched messages are redelivered at once.
    assert [one.metadata.num_delivered for one in await consumer.fetch(2, timeout=SOON)] != []
    await heard.close()
    views: list[Any] = [queue.jobs(), queue.history(), queue.dead_letters(), objects.list()]
    for number, view in enumerate(views):
        await refused(view.__anext__, number)


async def test_claims_and_candidates_are_refused_on_another_loop_and_go_on_at_home(jet: Jet) -> None:
    queue, election = await jet.queue("q"), jet.elect("e")

    @queue.job
    async def nothing() -> None: ...

    await nothing.enqueue()
    await nothing.enqueue()
    async with queue.claims() as claims, election as term:
        [job] = await claims.take(1, timeout=SOON)
        job.complete()
        await refused(lambda: claims.take(1), 0)
        await refused(lambda: claims.settle([job]), 1)
        await refused(lambda: claims.__aexit__(None, None, None), 2)
        await refused(claims.is_empty, 3)
        await refused(lambda: begun(election), 4)
        await refused(lambda: election.__aexit__(None, None, None), 5)
        await refused(election.run, 6)
        assert term.is_held
        assert await claims.settle([job]) == []
        [other] = await claims.take(1, timeout=SOON)
        other.complete()
        assert await claims.settle([other]) == []
    assert (await queue.counts()).completed == 2


async def test_what_is_closed_is_closed_on_any_loop(jet: Jet) -> None:
    await jet.create_stream("s")
    another = await jet.clone()
    await another.lock("a").acquire()
    heard = await another.subscribe("s")
    await heard.close()
    await another.close()
    assert await elsewhere(another.close) is None
    assert await elsewhere(heard.close) is None
    assert isinstance(await elsewhere(lambda: another.publish("s")), pelton.StoreClosedError)


# Objects that the first loop left open are collected like anything unclosed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_second_loop_of_the_same_thread_is_refused(address: str) -> None:
    opened: list[Jet] = []

    async def open_it() -> None:
        opened.append(await pelton.open(address))
        await opened[0].create_stream("s")

    async def use_it() -> None:
        with pytest.raises(WrongLoopError, match="has ended"):
            await opened[0].publish("s", b"")
        with pytest.raises(WrongLoopError, match="has ended"):
            await opened[0].close()
        async with await opened[0].clone() as jet:
            await jet.publish("s", b"")
            await jet.delete_stream("s")

    asyncio.run(open_it())
    asyncio.run(use_it())
    opened.clear()
    gc.collect()


async def test_a_clone_is_at_home_on_the_loop_that_makes_it(jet: Jet) -> None:
    stream = await jet.create_stream("s")

    async def publish() -> int:
        async with await jet.clone() as clone, clone.lock("a"):
            return (await clone.publish("s", b"there")).seq

    assert await elsewhere(publish) == 1
    assert (await stream.get_message(1)).data == b"there"
    async with await jet.clone() as clone:
        await refused(lambda: clone.publish("s", b""))
        assert (await clone.publish("s", b"here")).seq == 2


def test_a_blocking_jet_has_clones_too(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "a.pelton") as jet:
        jet.create_stream("s")
        with jet.clone() as clone:
            assert clone.publish("s", b"").seq == 1
        assert jet.publish("s", b"").seq == 2


async def test_telling_an_election_and_a_queue_to_stop_works_from_any_thread(jet: Jet) -> None:
    election, leads = jet.elect("e", ttl=1), asyncio.Event()
    election._on_won = lambda term: leads.set()
    queue, starts = await jet.queue("q"), asyncio.Event()

    @queue.job
    async def begin() -> None:
        starts.set()

    await begin.enqueue()
    running = [asyncio.create_task(election.run()), asyncio.create_task(queue.work(handle_signals=False))]
    async with asyncio.timeout(SOON):
        await leads.wait()
        await starts.wait()
        await asyncio.to_thread(election.step_down)
        await asyncio.to_thread(election.stop)
        await asyncio.to_thread(queue.stop)
        await asyncio.gather(*running)


async def _fork_and_publish(pipe: Connection, address: str) -> None:
    jet = await pelton.open(address)
    await jet.create_stream("s")

    async def child(say: Callable[[str], object]) -> None:
        try:
            await jet.publish("s", b"")
        except pelton.PeltonError as error:
            say(type(error).__name__)
        await jet.close()
        say("closed")

    pid, reading = forked(child)
    with os.fdopen(reading) as lines:
        pipe.send(lines.read().split())
    os.waitpid(pid, 0)
    pipe.send((await jet.publish("s", b"")).seq)
    await jet.delete_stream("s")
    await jet.close()


async def test_a_forked_child_is_told_of_the_fork(address: str) -> None:
    with Child(_fork_and_publish, address) as child:
        assert child.hear() == ["StoreForkedError", "closed"]
        assert child.hear() == 1
        child.join()
