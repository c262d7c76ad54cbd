"""What is gone is not kept in memory: a process that makes and deletes for months does not grow."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import count
from pathlib import Path

import apsw
import pytest

import pelton
from pelton.engine.session import registry
from pelton.subjects import match as index
from pelton.testing import ManualRuntime, manual_runtime

_TIMES = 120
_number = count()

Use = Callable[[pelton.Jet, ManualRuntime], Awaitable[None]]


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink bounded caches, so that they fill soon."""
    monkeypatch.setattr(index, "_CACHE_LIMIT", 8)
    monkeypatch.setattr(index, "_MOST_FAMILIES", 8)
    monkeypatch.setattr(registry, "_LIMIT", 8)


async def a_consumer(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.stream("s")
    consumer = await stream.create_consumer()
    await (await consumer.next()).ack()
    await stream.delete_consumer(consumer.name)


async def one_that_expires(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(inactive_threshold=5)
    await (await consumer.next()).ack()
    runtime.clock.advance(6)
    assert consumer.name not in await stream.consumer_names()


async def one_that_is_waited_for(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(filter_subject="s.none")
    waiting = asyncio.ensure_future(consumer.fetch(1))
    await asyncio.sleep(0)
    await stream.delete_consumer(consumer.name)
    with pytest.raises(pelton.ConsumerNotFoundError):
        await waiting


async def one_of_a_priority_group(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(priority_groups=["g"], priority_policy="pinned_client", priority_timeout=5)
    await consumer.fetch(1, no_wait=True, group="g")
    await stream.delete_consumer(consumer.name)


async def one_that_is_changed(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.stream("s")
    consumer = await stream.create_consumer(ack_wait=5)
    await consumer.pause(until="2100-01-01T00:00:00Z")
    await stream.delete_consumer(consumer.name)


async def one_that_pushes(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.stream("s")
    subject = f"to.{next(_number)}"
    async with await jet.subscribe(subject) as listening:
        consumer = await stream.create_consumer(deliver_subject=subject, ack_policy="none")
        await anext(aiter(listening))
        await stream.delete_consumer(consumer.name)


async def an_ordered_one(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    async with aclosing((await jet.stream("s")).ordered()) as messages:
        async for _ in messages:
            break


async def a_stream(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    name = f"t{next(_number)}"
    stream = await jet.create_stream(name)
    await jet.publish(name, b"")
    await stream.create_consumer(durable_name="c")
    await jet.delete_stream(name)


async def a_stream_with_a_source(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    name = f"t{next(_number)}"
    await jet.create_stream(name, sources=[{"name": "s"}])
    await jet.delete_stream(name)


async def a_bucket(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    name = f"b{next(_number)}"
    await (await jet.create_bucket(name)).put("key", b"")
    await jet.delete_bucket(name)


async def a_consumer_of_an_interest_stream(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.stream("wanted")
    consumer = await stream.create_consumer()
    await jet.publish("wanted", b"")
    await (await consumer.next()).ack()
    await stream.delete_consumer(consumer.name)


def held() -> int:
    """Return the number of container objects, and of the items in them."""
    gc.collect()
    found = gc.get_objects()
    # By their types: a lazy object of a library, asked what it is, would try to load itself.
    cursors = sum(issubclass(type(each), apsw.Cursor) for each in found)
    return cursors * _TIMES + sum(len(each) for each in found if type(each) in (dict, list, set, deque))


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize(
    "use",
    [
        a_consumer,
        one_that_expires,
        one_that_is_waited_for,
        one_of_a_priority_group,
        one_that_is_changed,
        one_that_pushes,
        an_ordered_one,
        a_stream,
        a_stream_with_a_source,
        a_bucket,
        a_consumer_of_an_interest_stream,
    ],
)
async def test_what_is_gone_is_not_kept_in_memory(tmp_path: Path, use: Use, where: str) -> None:
    runtime = manual_runtime()
    place = "memory:" if where == "memory" else tmp_path / "a.pelton"
    async with pelton.open(place, runtime=runtime, sync="off") as jet:
        await jet.create_stream("s", subjects=["s"])
        await jet.create_stream("wanted", retention="interest")
        await jet.publish("s", b"")
        for _ in range(20):
            await use(jet, runtime)
        runtime.clock.advance(3600)
        before = held()
        for _ in range(_TIMES):
            await use(jet, runtime)
        # The manual clock keeps cancelled timers until their time.
        runtime.clock.advance(3600)
        assert held() - before < _TIMES / 2


async def test_a_stream_that_another_process_deleted_does_not_fail_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet, pelton.open(path) as other:
        await jet.create_stream("kept", subjects=["kept"])
        # It has messages with times to live, written over a connection of its own.
        election = jet.elect("scheduler", ttl=10)
        async with election:
            pass
        await other.delete_bucket(election.bucket)
        assert (await jet.publish("kept", b"1")).seq == 1
