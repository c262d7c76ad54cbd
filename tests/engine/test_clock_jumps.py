"""A wall clock that jumps: nothing ends early, and nothing waits longer than it was asked to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import pelton
from pelton.api import AckRejectedError
from pelton.api.times import SECOND
from pelton.engine.salvage import recount
from pelton.testing import ManualClock, ManualRuntime, manual_runtime

DAY = 86_400
JUMPS = [10.0, 40.0, DAY, -40.0, -DAY]


@pytest.fixture
def runtime() -> ManualRuntime:
    return manual_runtime()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.pelton"


@pytest.fixture
async def jets(path: Path, runtime: ManualRuntime) -> AsyncIterator[list[pelton.Jet]]:
    """Two openers of one file, as two processes would be."""
    opened = [await pelton.open(path, runtime=runtime) for _ in range(2)]
    yield opened
    for jet in opened:
        await jet.close()
    assert recount(str(path)) == []


def jump(clock: ManualClock, seconds: float) -> None:
    clock.set_wall(clock.now() + round(seconds * SECOND))


def moment(clock: ManualClock) -> datetime:
    return datetime.fromtimestamp(clock.now() // SECOND, UTC)


async def count(stream: pelton.Stream, subject: str) -> int:
    return ((await stream.info(subjects_filter=subject)).state.subjects or {}).get(subject, 0)


# --- deliveries


@pytest.mark.parametrize("seconds", JUMPS)
async def test_a_delivery_is_held_for_its_ack_wait(
    jets: list[pelton.Jet], runtime: ManualRuntime, seconds: float
) -> None:
    one, other = jets
    stream = await one.create_stream("s", subjects=["s.*"], retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c", ack_wait=30)
    again = await (await other.stream("s")).consumer("c")
    await one.publish_batch([("s.1", b""), ("s.2", b"")])
    first, second = await consumer.fetch(2)
    jump(runtime.clock, seconds)
    runtime.clock.advance(29)
    assert await again.fetch(1, timeout=0) == []
    await first.ack()
    assert await again.fetch(1, timeout=0) == []
    runtime.clock.advance(1)
    (redelivered,) = await again.fetch(1, timeout=0)
    assert redelivered.metadata.num_delivered == 2
    with pytest.raises(AckRejectedError):
        await second.ack()
    await redelivered.ack()


@pytest.mark.parametrize("seconds", JUMPS)
async def test_in_a_transaction_the_clock_is_put_right_as_well(
    jets: list[pelton.Jet], runtime: ManualRuntime, seconds: float
) -> None:
    one, other = jets
    stream = await one.create_stream("s", subjects=["s.*"], retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c", ack_wait=30)
    await one.publish("s.1")
    (message,) = await consumer.fetch(1)
    jump(runtime.clock, seconds)
    transaction = other.transaction()
    await (await transaction.__aenter__()).publish("s.2")
    # It is rolled back.
    await transaction.__aexit__(RuntimeError, RuntimeError(), None)
    assert await consumer.fetch(1, timeout=0) == []
    async with other.transaction() as tx:
        await tx.publish("s.2")
    (following,) = await consumer.fetch(2, timeout=0)
    assert (following.subject, following.metadata.timestamp) == ("s.2", runtime.clock.now())
    runtime.clock.advance(30)
    assert [one.subject for one in await consumer.fetch(2, timeout=0)] == ["s.1", "s.2"]
    with pytest.raises(AckRejectedError):
        await message.ack()


@pytest.mark.parametrize("reopened", [False, True])
async def test_what_was_taken_while_the_clock_was_ahead_is_not_held_for_longer(
    path: Path, runtime: ManualRuntime, reopened: bool
) -> None:
    jet = await pelton.open(path, runtime=runtime)
    stream = await jet.create_stream("s", subjects=["s.*"], retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c", ack_wait=1, max_ack_pending_per_subject=1)
    jump(runtime.clock, DAY)
    await jet.publish_batch([("s.1", b""), ("s.2", b"")])
    _, naked = await consumer.fetch(2)
    await naked.nak(delay=5)
    if reopened:
        await jet.close()
    jump(runtime.clock, -DAY)
    if reopened:
        jet = await pelton.open(path, runtime=runtime)
        consumer = await (await jet.stream("s")).consumer("c")
    runtime.clock.advance(1)
    assert [one.subject for one in await consumer.fetch(2, timeout=0)] == ["s.1"]
    runtime.clock.advance(4)
    assert [one.subject for one in await consumer.fetch(2, timeout=0)] == ["s.1", "s.2"]
    await jet.close()


async def test_a_waiting_pull_is_woken_at_the_right_moment(jets: list[pelton.Jet], runtime: ManualRuntime) -> None:
    one, other = jets
    stream = await one.create_stream("s", subjects=["s.*"], retention="workqueue")
    consumer = await stream.create_consumer(durable_name="c", ack_wait=10)
    jump(runtime.clock, DAY)
    await one.publish("s.1")
    await consumer.fetch(1)
    task = asyncio.create_task(consumer.fetch(1, timeout=None))
    while (await consumer.info()).num_waiting == 0:
        await asyncio.sleep(0)
    jump(runtime.clock, -DAY)
    await other.publish("s.2")
    assert [one.subject for one in await task] == ["s.2"]
    task = asyncio.create_task(consumer.fetch(1, timeout=None))
    while (await consumer.info()).num_waiting == 0:
        await asyncio.sleep(0)
    runtime.clock.advance(10)
    assert len(await task) == 1


# --- schedules


@pytest.mark.parametrize("kind", ["every", "cron"])
async def test_a_schedule_goes_on_when_the_clock_is_right_again(
    jets: list[pelton.Jet], runtime: ManualRuntime, kind: str
) -> None:
    stream = await jets[0].create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    if kind == "every":
        await jets[0].schedule("s.plan", target="s.tick", every=3)
    else:
        await jets[0].schedule("s.plan", target="s.tick", cron="*/3 * * * * *")
    jump(runtime.clock, DAY)
    for _ in range(4):
        runtime.clock.advance(3)
        before = await count(stream, "s.tick")
    assert 3 <= before <= 5
    jump(runtime.clock, -DAY)
    for _ in range(10):
        runtime.clock.advance(3)
        await jets[1].publish("s.other")
    assert 9 <= await count(stream, "s.tick") - before <= 11


async def test_a_delay_is_as_long_as_it_was_asked_for(jets: list[pelton.Jet], runtime: ManualRuntime) -> None:
    stream = await jets[0].create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    await jets[0].schedule("s.plan1", target="s.early", delay=60)
    jump(runtime.clock, DAY)
    await jets[0].schedule("s.plan2", target="s.late", delay=60)
    runtime.clock.advance(59)
    assert await count(stream, "s.early") == 0
    jump(runtime.clock, -DAY)
    runtime.clock.advance(0.5)
    assert (await count(stream, "s.early"), await count(stream, "s.late")) == (0, 0)
    runtime.clock.advance(0.5)
    assert (await count(stream, "s.early"), await count(stream, "s.late")) == (1, 1)
    message = await stream.get_last_message("s.late")
    assert "Pelton-Delay" not in message.headers


async def test_a_time_of_day_stays_one(jets: list[pelton.Jet], runtime: ManualRuntime) -> None:
    stream = await jets[0].create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    await jets[0].schedule("s.plan", target="s.later", at=moment(runtime.clock) + timedelta(days=1))
    jump(runtime.clock, DAY // 2)
    await jets[0].publish("s.other")
    runtime.clock.advance(DAY // 2 - 1)
    assert await count(stream, "s.later") == 0
    runtime.clock.advance(1)
    assert await count(stream, "s.later") == 1


async def test_a_nightly_run_is_not_repeated_when_the_clock_is_corrected_a_little(
    jets: list[pelton.Jet], runtime: ManualRuntime
) -> None:
    stream = await jets[0].create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    await jets[0].schedule("s.plan", target="s.tick", cron="@hourly")
    runtime.clock.advance(3610 - runtime.clock.now() // SECOND % 3600)
    assert await count(stream, "s.tick") == 1
    jump(runtime.clock, -20)
    runtime.clock.advance(20)
    assert await count(stream, "s.tick") == 1
    jump(runtime.clock, -3600)
    await jets[0].publish("s.other")
    runtime.clock.advance(3600)
    assert await count(stream, "s.tick") == 2


# --- messages


async def test_messages_age_by_the_time_that_passes(jets: list[pelton.Jet], runtime: ManualRuntime) -> None:
    stream = await jets[0].create_stream("s", subjects=["s.*"], max_age=100, allow_msg_ttl=True, allow_direct=True)
    await jets[0].publish("s.1")
    await jets[0].publish("s.ttl1", ttl=50)
    jump(runtime.clock, DAY)
    await jets[0].publish("s.2")
    await jets[0].publish("s.ttl2", ttl=50)
    runtime.clock.advance(20)
    jump(runtime.clock, -DAY)
    await jets[0].publish("s.3")
    assert [await count(stream, f"s.{name}") for name in ("1", "2", "3", "ttl1", "ttl2")] == [1] * 5
    runtime.clock.advance(30)
    assert [await count(stream, f"s.{name}") for name in ("1", "2", "3", "ttl1", "ttl2")] == [1, 1, 1, 0, 0]
    runtime.clock.advance(49)
    assert await (await jets[1].stream("s")).get_last_message("s.1")
    runtime.clock.advance(1)
    assert [await count(stream, f"s.{name}") for name in "123"] == [0, 0, 1]
    runtime.clock.advance(20)
    assert [await count(stream, f"s.{name}") for name in "123"] == [0, 0, 0]


@pytest.mark.parametrize("seconds", JUMPS)
async def test_duplicates_are_found_for_as_long_as_the_window(
    jets: list[pelton.Jet], runtime: ManualRuntime, seconds: float
) -> None:
    one, other = jets
    await one.create_stream("s", subjects=["s.*"], duplicate_window=60)
    await one.publish("s.1", msg_id="a")
    assert (await other.publish("s.1", msg_id="a")).duplicate
    jump(runtime.clock, seconds)
    await one.publish("s.1", msg_id="b")
    for jet in jets:
        assert (await jet.publish("s.1", msg_id="a")).duplicate
    runtime.clock.advance(59)
    for jet in jets:
        assert (await jet.publish("s.1", msg_id="a")).duplicate
    runtime.clock.advance(1)
    assert not (await other.publish("s.1", msg_id="a")).duplicate
    assert not (await one.publish("s.1", msg_id="b")).duplicate


# --- after a restart of the machine


async def test_after_a_restart_nothing_waits_longer_than_it_was_asked_to(path: Path, runtime: ManualRuntime) -> None:
    jump(runtime.clock, DAY)
    async with pelton.open(path, runtime=runtime) as jet:
        stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True, allow_msg_ttl=True)
        consumer = await stream.create_consumer(durable_name="c", ack_wait=10, filter_subject="s.work")
        await jet.publish_batch([("s.work", b""), ("s.work", b"")])
        _, naked = await consumer.fetch(2)
        await naked.nak(delay=50)
        await jet.schedule("s.plan1", target="s.tick", every=3)
        await jet.schedule("s.plan2", target="s.cron", cron="*/3 * * * * *")
        await jet.schedule("s.plan3", target="s.delayed", delay=30)
        await jet.publish("s.mortal", ttl=20)
    right = manual_runtime()
    async with pelton.open(path, runtime=right) as jet:
        stream = await jet.stream("s")
        consumer = await stream.consumer("c")
        right.clock.advance(10)
        assert len(await consumer.fetch(2, timeout=0)) == 1
        assert await count(stream, "s.tick") >= 1
        assert await count(stream, "s.cron") >= 1
        right.clock.advance(10)
        assert await count(stream, "s.mortal") == 0
        right.clock.advance(10)
        assert await count(stream, "s.delayed") == 1
        right.clock.advance(20)
        assert len(await consumer.fetch(2, timeout=0)) == 2


async def test_a_restart_alone_changes_nothing(path: Path, runtime: ManualRuntime) -> None:
    async with pelton.open(path, runtime=runtime) as jet:
        stream = await jet.create_stream("s", subjects=["s.*"], retention="workqueue", max_age=100)
        consumer = await stream.create_consumer(durable_name="c", ack_wait=60)
        await jet.publish("s.work")
        await consumer.fetch(1)
    started = manual_runtime()
    jump(started.clock, 59)
    async with pelton.open(path, runtime=started) as jet:
        stream = await jet.stream("s")
        consumer = await stream.consumer("c")
        assert await consumer.fetch(1, timeout=0) == []
        started.clock.advance(1)
        assert len(await consumer.fetch(1, timeout=0)) == 1
        started.clock.advance(40)
        assert await count(stream, "s.work") == 0


@pytest.mark.parametrize("is_restart", [True, False])
@pytest.mark.parametrize("last", [["s.2", "other"], ["other", "s.2"], ["s.2"]])
async def test_a_clock_that_was_ahead_once_and_put_right_ages_nothing_later(
    path: Path, runtime: ManualRuntime, is_restart: bool, last: list[str]
) -> None:
    async with pelton.open(path, runtime=runtime) as jet:
        stream = await jet.create_stream("s", subjects=["s.*"], max_age=3600, allow_msg_schedules=True)
        await jet.create_stream("plain", subjects=["other"])
        await jet.create_stream("right", subjects=["right"])
        await jet.publish("s.1")
        await jet.schedule("s.plan", target="s.delayed", delay=600)
        jump(runtime.clock, DAY)
        for subject in last:
            await jet.publish(subject)
        jump(runtime.clock, -DAY)
        await jet.publish("right")
        runtime.clock.advance(60)
    again = manual_runtime() if is_restart else runtime
    # It is down for ten minutes; the same machine's clock is corrected meanwhile.
    again.clock.advance(660 if is_restart else 600)
    if not is_restart:
        jump(again.clock, -DAY)
    async with pelton.open(path, runtime=again) as jet:
        stream = await jet.stream("s")
        assert await count(stream, "s.delayed") == 1
        again.clock.advance(3600 - 661)
        assert await count(stream, "s.1") == 1
        again.clock.advance(1)
        assert await count(stream, "s.1") == 0
