"""The effects of time on a stream: any reader finds that everything due has happened."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import pelton
from pelton.api import headers
from pelton.streams import log
from pelton.testing import ManualRuntime

DAY = 86_400


def named(message: pelton.StoredMessage) -> dict[str, str]:
    return dict(headers.decode(message.hdrs))


async def subjects(stream: pelton.Stream) -> dict[str, int]:
    return (await stream.info(subjects_filter=">")).state.subjects or {}


async def test_a_message_lives_to_the_nanosecond(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", allow_msg_ttl=True)
    await jet.publish("s", ttl=timedelta(days=1))
    runtime.clock.advance(DAY - 1e-9)
    assert (await stream.info()).state.messages == 1
    runtime.clock.advance(1e-9)
    assert (await stream.info()).state.messages == 0
    assert (await jet.publish("s")).seq == 2


async def test_the_shorter_of_age_and_time_to_live_counts(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_ttl=True, max_age=10)
    for _ in range(3):
        await jet.publish("s.never", ttl="never")
    await jet.publish_batch([("s.aged", b"")] * 3)
    await jet.publish("s.short", ttl=5)
    await jet.publish("s.long", ttl=100)
    runtime.clock.advance(5)
    await jet.publish("s.later")
    assert await subjects(stream) == {"s.never": 3, "s.aged": 3, "s.long": 1, "s.later": 1}
    runtime.clock.advance(5)
    assert await subjects(stream) == {"s.never": 3, "s.later": 1}
    runtime.clock.advance(5)
    assert await subjects(stream) == {"s.never": 3}
    await jet.publish("s.aged")
    runtime.clock.advance(10)
    assert await subjects(stream) == {"s.never": 3}
    assert (await stream.info()).state.first_seq == 1


async def test_a_clock_that_is_set_neither_loses_nor_repeats(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_ttl=True, allow_msg_schedules=True, max_age=100)
    start = runtime.clock.now()
    await jet.publish("s.a", ttl=10)
    await jet.schedule("s.every", target="s.tick", every=10)
    runtime.clock.set_wall(start - 50 * 10**9)
    runtime.clock.advance(4)
    await jet.publish("s.b", ttl=10)
    runtime.clock.set_wall(start + 5000 * 10**9)
    assert await subjects(stream) == {"s.a": 1, "s.b": 1, "s.every": 1}
    runtime.clock.advance(6)
    assert await subjects(stream) == {"s.b": 1, "s.every": 1, "s.tick": 1}
    runtime.clock.set_wall(start)
    runtime.clock.advance(4)
    assert await subjects(stream) == {"s.every": 1, "s.tick": 1}
    runtime.clock.advance(6)
    assert await subjects(stream) == {"s.every": 1, "s.tick": 2}
    runtime.clock.advance(90)
    assert (await subjects(stream))["s.tick"] <= 10


async def test_markers_end_without_markers(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", subjects=["s.*"], subject_delete_marker_ttl=3600, max_age=DAY)
    await jet.publish("s.a", b"1")
    await jet.publish("s.b", b"1", ttl=7200)
    await jet.publish("s.b", b"2", ttl=7201)
    runtime.clock.advance(7201)
    marker = await stream.get_last_message("s.b")
    assert (marker.data, named(marker)["Nats-TTL"]) == (b"", "1h0m0s")
    assert await subjects(stream) == {"s.a": 1, "s.b": 1}
    runtime.clock.advance(3600)
    assert await subjects(stream) == {"s.a": 1}
    runtime.clock.advance(DAY)
    assert named(await stream.get_last_message("s.a"))["Nats-Marker-Reason"] == "MaxAge"
    runtime.clock.advance(3600)
    assert await subjects(stream) == {}


async def test_a_marker_is_written_once_where_many_messages_end_together(
    jet: pelton.Jet, runtime: ManualRuntime
) -> None:
    stream = await jet.create_stream("s", subjects=["s.*"], subject_delete_marker_ttl=3600, max_age=10)
    await jet.publish_batch([(f"s.{n % 3}", b"") for n in range(9000)])
    runtime.clock.advance(10)
    state = (await stream.info(subjects_filter=">")).state
    assert (state.subjects, state.last_seq) == ({"s.0": 1, "s.1": 1, "s.2": 1}, 9003)


async def test_markers_come_in_the_order_of_what_ended(
    jet: pelton.Jet, runtime: ManualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a nats-server that stood still meanwhile."""
    monkeypatch.setattr(log, "_MARKED", 2)
    stream = await jet.create_stream(
        "s", subjects=["s.*"], subject_delete_marker_ttl=100, max_age=130, allow_direct=True
    )
    for subject, ttl in (("s.b", None), ("s.c", 125), ("s.a", 125), ("s.b", 120), ("s.a", 120), ("s.d", None)):
        await jet.publish(subject, ttl=ttl)
    runtime.clock.advance(150)
    assert list(await subjects(stream)) == ["s.a", "s.b", "s.c", "s.d"]
    assert [message.subject for message in await stream.get_messages(9)] == ["s.c", "s.b", "s.a", "s.d"]


async def test_a_schedule_of_days(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    await jet.schedule("s.plan", b"wake up", target="s.alarm", cron="0 30 7 * * mon-fri", time_zone="Europe/Berlin")
    times = []
    # The clock starts on Tuesday, 14 November 2023, 22:13:20 UTC.
    for _ in range(6 * 24):
        runtime.clock.advance(3600)
        if (count := (await subjects(stream)).get("s.alarm", 0)) > len(times):
            assert count == len(times) + 1
            told = named(await stream.get_last_message("s.alarm"))["Nats-Schedule-Next"]
            times.append(told)
    assert times == [
        "2023-11-16T07:30:00+01:00",
        "2023-11-17T07:30:00+01:00",
        "2023-11-20T07:30:00+01:00",
        "2023-11-21T07:30:00+01:00",
    ]


async def test_what_was_missed_is_made_up_for_once(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True, allow_msg_ttl=True)
    await jet.schedule("s.every", target="s.tick", every=60)
    await jet.schedule("s.cron", target="s.tock", cron="@hourly")
    await jet.schedule("s.once", b"late", target="s.late", delay=60)
    await jet.schedule("s.over", target="s.never", delay=60, headers={"Nats-TTL": "120"})
    runtime.clock.advance(30 * DAY)
    assert await subjects(stream) == {"s.every": 1, "s.cron": 1, "s.tick": 1, "s.tock": 1, "s.late": 1}
    runtime.clock.advance(59)
    assert (await subjects(stream))["s.tick"] == 1
    runtime.clock.advance(2)
    assert (await subjects(stream))["s.tick"] == 2


async def test_what_is_published_by_a_schedule_lives_as_it_says(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True, allow_msg_ttl=True)
    when = datetime.fromtimestamp(runtime.clock.now() / 1e9 + 10, UTC)
    await jet.schedule("s.a", b"x", target="s.b", at=when, ttl=5)
    runtime.clock.advance(11)
    assert await subjects(stream) == {"s.b": 1}
    runtime.clock.advance(5)
    assert await subjects(stream) == {}


async def test_schedules_that_meet(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    """One publishes to the subject of another, and so ends it; in the order in which they were made."""
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True)
    await jet.schedule("s.a", b"a", target="s.b", delay=10)
    await jet.schedule("s.b", b"b", target="s.c", delay=10)
    runtime.clock.advance(10)
    assert await subjects(stream) == {"s.b": 2}


async def test_limits_end_schedules(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True, max_msgs=1)
    await jet.schedule("s.a", target="s.b", every=10)
    runtime.clock.advance(10)
    assert await subjects(stream) == {"s.b": 1}
    runtime.clock.advance(DAY)
    assert (await stream.info()).state.last_seq == 2


async def test_a_schedule_that_cannot_be_stored_leaves_the_old_one(jet: pelton.Jet, runtime: ManualRuntime) -> None:
    stream = await jet.create_stream("s", subjects=["s.*"], allow_msg_schedules=True, max_msg_size=200)
    await jet.schedule("s.a", b"small", target="s.b", delay=10)
    for bad in (b"x" * 200, b""):
        try:
            await jet.schedule("s.a", bad, target="s.b" if bad else "elsewhere", delay=5)
        except pelton.ApiError:
            continue
        raise AssertionError("not refused")
    runtime.clock.advance(10)
    assert (await stream.get_last_message("s.b")).data == b"small"
