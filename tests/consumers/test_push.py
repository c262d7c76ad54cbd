"""Push consumers in the engine: which opener pumps, how fast, and what happens to messages that were not handled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import ConsumerCreate, ConsumerNotFoundError, Incoming, StoreClosedError, consumer_config
from pelton.engine import Engine, pushes
from pelton.engine.salvage import recount
from pelton.jet import Consumer, Message, Stream
from pelton.testing import ManualRuntime, manual_runtime

DELIVER = "deliver.here"


def _engine(jet: pelton.Jet) -> Engine:
    assert isinstance(jet.backend, Engine)
    return jet.backend


async def _stream(jet: pelton.Jet, messages: int = 0, size: int = 0) -> Stream:
    stream = await jet.create_stream("S", subjects=["s.>"])
    for start in range(0, messages, 1000):
        count = min(1000, messages - start)
        await jet.publish_batch([("s.a", b"%d" % (start + n) + bytes(size)) for n in range(count)])
    return stream


async def _push(stream: Stream, **config: Any) -> Consumer:
    return await stream.create_consumer(durable_name="c", deliver_subject=DELIVER, **config)


async def _until(true: Callable[[], Awaitable[bool]]) -> None:
    """Let the loop run until something is true: everything it depends on happens on this loop."""
    async with asyncio.timeout(60):
        while not await true():
            await asyncio.sleep(0)


async def _heard(listening: pushes.EngineSubscription, count: int) -> list[Incoming]:
    found = []
    async with asyncio.timeout(60):
        while len(found) < count:
            message = await listening.next()
            assert message is not None
            found.append(message)
    return found


async def _settle_down() -> None:
    """Let every task and wake-up that is under way finish."""
    for _ in range(20):
        await asyncio.sleep(0)


def _pumps(jet: pelton.Jet) -> bool:
    return bool(_engine(jet)._pushes.pumps)


# --- pace


async def test_a_slow_listener_slows_its_pump(jet: pelton.Jet) -> None:
    consumer = await _push(await _stream(jet, 8000), ack_policy="none")
    listening = await _engine(jet).subscribe(DELIVER)
    quick = await _engine(jet).subscribe("deliver.>")
    await _until(lambda: _delivers(consumer, 2048))
    await _settle_down()
    assert (await consumer.info()).delivered.stream_seq == 2048, "no more than there is room for"
    for number in range(8000):
        (message,) = await _heard(listening, 1)
        assert message.data == b"%d" % number
        quick.take(10)
    assert (await consumer.info()).num_pending == 0


async def _delivers(consumer: Consumer, seq: int) -> bool:
    return (await consumer.info()).delivered.stream_seq >= seq


async def test_large_messages_are_not_hoarded_either(jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushes, "_WINDOW_BYTES", 1 << 20)
    monkeypatch.setattr(pushes, "_BATCH_BYTES", 1 << 18)
    stream = await _stream(jet, 30, size=100_000)
    await jet.publish("s.b", b"x" * 600_000)
    await jet.publish("s.b", b"30")
    consumer = await _push(stream, ack_policy="none")
    listening = await _engine(jet).subscribe(DELIVER)
    await _until(lambda: _delivers(consumer, 10))
    await _settle_down()
    assert (await consumer.info()).delivered.stream_seq <= 14
    assert [message.data[:2] for message in await _heard(listening, 32)][-2:] == [b"xx", b"30"]


async def test_one_who_leaves_frees_those_who_stay(jet: pelton.Jet) -> None:
    consumer = await _push(await _stream(jet, 5000), ack_policy="none")
    slow, quick = await asyncio.gather(*(_engine(jet).subscribe(DELIVER) for _ in range(2)))
    await _heard(quick, 2048)
    assert (await consumer.info()).num_pending > 0
    rest = asyncio.ensure_future(_heard(quick, 5000 - 2048))
    await slow.close()
    assert len(await rest) == 5000 - 2048


async def test_a_full_member_of_a_group_holds_nobody_up(jet: pelton.Jet) -> None:
    await _push(await _stream(jet, 9000), ack_policy="none", deliver_group="g")
    full, quick = [await _engine(jet).subscribe(DELIVER, "g") for _ in range(2)]
    found: list[int] = []
    async with asyncio.timeout(60):
        while len(found) + len(full._waiting) < 9000:
            found += [int(message.data) for message in quick.take(100)]
            await asyncio.sleep(0)
    assert sorted([*found, *(int(message.data) for message in full.take(9000))]) == list(range(9000))
    assert len(found) > 5000


# --- what may happen meanwhile


async def test_deleted_made_again_and_moved_while_pushing(jet: pelton.Jet) -> None:
    stream = await _stream(jet, 3000)
    consumer = await _push(stream, ack_policy="none")
    here, there = await _engine(jet).subscribe(DELIVER), await _engine(jet).subscribe("elsewhere")
    await _heard(here, 5)
    await consumer.delete()
    await _until(lambda: _is(lambda: not _pumps(jet)))
    here.take(9999)
    consumer = await _push(stream, ack_policy="none", flow_control=True, idle_heartbeat=5)
    assert (await _heard(here, 1))[0].data == b"0"
    await here.close()
    await stream.delete_consumer("c")
    consumer = await stream.create_consumer(durable_name="c", deliver_subject="nobody.here", ack_policy="none")
    assert not (await consumer.info()).push_bound
    await _move(jet, "elsewhere")
    assert (await _heard(there, 3000))[-1].data == b"2999"
    await there.close()
    await _move(jet, "nobody.here")
    await jet.publish("s.a", b"late")
    assert (await consumer.info()).num_pending == 1
    there = await _engine(jet).subscribe("elsewhere")
    await _move(jet, "elsewhere")
    assert (await _heard(there, 1))[0].data == b"late"


async def _move(jet: pelton.Jet, subject: str) -> None:
    config = consumer_config(durable_name="c", deliver_subject=subject, ack_policy="none")
    await jet.backend.call(ConsumerCreate(stream_name="S", config=config))


async def _is(true: Callable[[], bool]) -> bool:
    return true()


async def test_paused_until_its_time_has_come(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await _stream(jet)
    consumer = await _push(stream)
    listening = await _engine(jet).subscribe(DELIVER)
    until = pelton.api.rfc3339(runtime.clock.now() + 5_000_000_000)
    assert (await consumer.pause(until)).paused
    await jet.publish("s.a", b"1")
    assert await listening.next(0) is None
    waiting = asyncio.ensure_future(_heard(listening, 1))
    await asyncio.sleep(0)
    runtime.clock.advance(5)
    assert (await waiting)[0].data == b"1"
    await consumer.pause(pelton.api.rfc3339(runtime.clock.now() + 5_000_000_000))
    await jet.publish("s.a", b"2")
    assert await listening.next(0) is None
    await consumer.resume()
    assert (await _heard(listening, 1))[0].data == b"2"


async def test_one_that_nobody_listens_to_is_removed_in_time(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await _stream(jet)
    consumer = await stream.create_consumer(name="e", deliver_subject=DELIVER, inactive_threshold=10)
    listening = await _engine(jet).subscribe(DELIVER)
    for _ in range(12):
        runtime.clock.advance(4)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (await consumer.info()).push_bound, "it is used, though nothing comes"
    await listening.close()
    runtime.clock.advance(9)
    assert not (await consumer.info()).push_bound
    runtime.clock.advance(2)
    late = await _engine(jet).subscribe(DELIVER)
    await jet.publish("s.a")
    assert await late.next(0) is None
    with pytest.raises(ConsumerNotFoundError):
        await consumer.info()


async def test_the_store_is_closed_while_it_pushes(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    jet = await pelton.open(path)
    consumer = await _push(await _stream(jet, 3000))
    seen: list[bytes] = []
    consuming = asyncio.ensure_future(consumer.consume(lambda message: seen.append(message.data)))
    await _until(lambda: _is(lambda: len(seen) > 600))
    await jet.close()
    with pytest.raises(StoreClosedError):
        await consuming
    assert recount(str(path)) == []


async def test_acked_by_flow_control_nothing_is_kept_of_what_was_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pelton")
    async with pelton.open(path) as jet:
        stream = await _stream(jet, 3)
        consumer = await _push(stream, ack_policy="flow_control", max_ack_pending=10)
        listening = await _engine(jet).subscribe(DELIVER)
        await _heard(listening, 3)
        await stream.purge()
        assert (await consumer.info()).num_ack_pending == 0
        async with jet.transaction() as tx:
            assert await tx.sql("SELECT count(*) FROM pending_removed") == [(0,)]
        await listening.close()
        # Another subscriber gets everything again that was not acked.
        await _engine(jet).subscribe(DELIVER)
        await jet.publish("s.a", b"new")
    assert recount(path) == []


# --- callbacks


async def test_callbacks_of_every_kind(jet: pelton.Jet, caplog: pytest.LogCaptureFixture) -> None:
    stream = await _stream(jet, 6)
    consumer = await _push(stream, max_deliver=3, ack_wait=3600)
    seen: list[tuple[bytes, int]] = []
    done = asyncio.Event()

    async def take(message: Message) -> object:
        seen.append((message.data, message.metadata.num_delivered))
        if len(seen) == 9:
            done.set()
        if message.data == b"1":
            await message.term()
        elif message.data == b"2" and message.metadata.num_delivered == 1:
            await message.nak()
        elif message.data == b"3":
            await message.ack()
            raise ValueError("after its ack")
        elif message.data == b"4":
            raise ValueError("always")
        return "whatever"

    consuming = asyncio.ensure_future(consumer.consume(take))
    await asyncio.wait_for(done.wait(), 60)
    await _until(lambda: _settled(consumer))
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    assert sorted(seen) == sorted([(b"%d" % n, 1) for n in range(6)] + [(b"2", 2), (b"4", 2), (b"4", 3)])
    assert caplog.text.count("ValueError: always") == 3


async def _settled(consumer: Consumer) -> bool:
    return (await consumer.info()).num_ack_pending <= 1


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_cancelling_loses_nothing(jet: pelton.Jet, kind: str) -> None:
    """Cancelled at any point: handled messages are acknowledged, all others are redelivered at once."""
    stream = await _stream(jet, 40)
    config = {"deliver_subject": DELIVER} if kind == "push" else {}
    consumer = await stream.create_consumer(durable_name="c", ack_wait=3600, **config)
    seen: list[bytes] = []

    async def take(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.data)

    turns = 1
    async with asyncio.timeout(60):
        while len(seen) < 40:
            consuming = asyncio.ensure_future(consumer.consume(take, prefetch=7))
            for _ in range(turns):
                await asyncio.sleep(0)
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
            turns += 1
    assert sorted(seen) == sorted(b"%d" % n for n in range(40)), "none is lost, none comes twice"
    info = await consumer.info()
    assert (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq) == (0, 0, 40)


async def test_what_was_iterated_no_further_comes_again(jet: pelton.Jet) -> None:
    consumer = await _push(await _stream(jet, 100), ack_wait=3600)
    seen: list[bytes] = []
    while len(seen) < 100:
        messages = consumer.messages(prefetch=3)
        async for message in messages:
            seen.append(message.data)
            await message.ack()
            if len(seen) % 10 == 0:
                break
        await messages.aclose()  # type: ignore[attr-defined]  # an async generator
    assert sorted(seen) == sorted(b"%d" % n for n in range(100))


# --- several engines on one file


class House:
    """Two engines on one file, each with a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runtimes = [manual_runtime(1), manual_runtime(2)]

    async def open(self, number: int) -> pelton.Jet:
        return await pelton.open(self.path, runtime=self.runtimes[number], sync="off")


async def test_the_longest_standing_pumps_and_the_next_takes_over(tmp_path: Path) -> None:
    house = House(tmp_path / "a.pelton")
    first, second = await house.open(0), await house.open(1)
    await _push(await _stream(first), ack_policy="none")
    one = await _engine(first).subscribe(DELIVER)
    other = await _engine(second).subscribe(DELIVER)
    await second.publish("s.a", b"1")
    assert [(await _heard(listening, 1))[0].data for listening in (one, other)] == [b"1", b"1"]
    assert (_pumps(first), _pumps(second)) == (True, False)
    await one.close()
    await second.publish("s.a", b"2")
    assert (await _heard(other, 1))[0].data == b"2"
    assert (_pumps(first), _pumps(second)) == (False, True)
    again = await _engine(first).subscribe(DELIVER)
    await second.publish("s.a", b"3")
    assert [(await _heard(listening, 1))[0].data for listening in (again, other)] == [b"3", b"3"]
    assert (_pumps(first), _pumps(second)) == (False, True)
    await second.close()
    await first.publish("s.a", b"4")
    assert (await _heard(again, 1))[0].data == b"4"
    await first.close()
    assert recount(str(house.path)) == []


@pytest.mark.parametrize("group", ["", "g"])
async def test_one_that_stands_still_is_set_aside_until_it_goes_on(tmp_path: Path, group: str) -> None:
    house = House(tmp_path / "a.pelton")
    first, second = await house.open(0), await house.open(1)
    await _push(await _stream(first), ack_policy="none", deliver_group=group)
    await _engine(first).subscribe(DELIVER, group)
    other = await _engine(second).subscribe(DELIVER, group)
    await _until(lambda: _is(lambda: _engine(first)._pushes._leads and _pumps(first)))
    for _ in range(20):
        # Both run: neither is pushed aside.
        for runtime in house.runtimes:
            runtime.clock.advance(1)
            await _settle_down()
    assert (_pumps(first), _pumps(second)) == (True, False)
    for _ in range(8):
        house.runtimes[1].clock.advance(1)
        await _settle_down()
    assert _pumps(second)
    await _until(lambda: _is(lambda: not _pumps(first)))
    await second.publish_batch([("s.a", b"%d" % n) for n in range(20)])
    assert [message.data for message in await _heard(other, 20)] == [b"%d" % n for n in range(20)]
    house.runtimes[0].clock.advance(1)
    await _until(lambda: _is(lambda: _pumps(first) and not _pumps(second)))
    await first.close()
    await second.close()
    assert recount(str(house.path)) == []
