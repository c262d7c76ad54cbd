"""Scheduled messages: published later, once or repeatedly (ADR-51)."""

from __future__ import annotations

from pelton.api import PubAck, StoredMessage, headers
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.eventually import left
from tests.conformance.cases.table import case, lagging, only, refused

_PAST = "@at 2020-01-01T00:00:00Z"
_FAR = "@at 2100-01-01T00:00:00Z"


async def _stream(jet: Jet) -> Stream:
    return await jet.create_stream("S", subjects=["s.>"], allow_msg_schedules=True, allow_msg_ttl=True)


async def _publish(jet: Jet, subject: str, /, **asked: str) -> PubAck:
    return await jet.publish(subject, b"data", headers={name.replace("_", "-"): text for name, text in asked.items()})


async def _schedule(jet: Jet, /, **asked: str) -> PubAck:
    """Publish a schedule that fires in the far future, with the given changes."""
    plain = {"Nats_Schedule": _FAR, "Nats_Schedule_Target": "s.target"}
    return await _publish(jet, "s.schedule", **{**plain, **asked})


def _headers(message: StoredMessage) -> dict[str, str]:
    return dict(headers.decode(message.hdrs))


async def _next(stream: Stream, subject: str, count: int = 1) -> list[StoredMessage]:
    """Wait for messages of a subject."""
    consumer = await stream.create_consumer(filter_subject=subject)
    found = []
    for _ in range(count):
        (message,) = await consumer.fetch(1, timeout=60)
        found.append(await stream.get_message(message.delivered.seq))
    return found


@case
async def a_schedule_is_a_message_and_the_only_one_of_its_subject(jet: Jet) -> None:
    stream = await _stream(jet)
    await _schedule(jet, Other="x")
    await _schedule(jet, Nats_Schedule="@hourly")
    (first, count) = (await stream.info(subjects_filter=">")).state.subjects.popitem()
    assert (first, count) == ("s.schedule", 1)
    assert _headers(await stream.get_message(2)) == {
        "Nats-Schedule": "@hourly",
        "Nats-Schedule-Target": "s.target",
        "Nats-Rollup": "sub",
    }


@case
async def once_its_time_has_come(jet: Jet) -> None:
    stream = await _stream(jet)
    asked = {"Nats_Schedule_TTL": "5m", "Nats_Msg_Id": "a", "Nats_Expected_Stream": "S", "Nats_TTL": "100"}
    await _publish(jet, "s.a", Nats_Schedule=_PAST, Nats_Schedule_Target="s.target", Other="x", **asked)
    (message,) = await _next(stream, "s.target")
    assert message.data == b"data"
    assert _headers(message) == {
        "Other": "x",
        "Nats-Scheduler": "s.a",
        "Nats-Schedule-Next": "purge",
        "Nats-TTL": "5m",
    }
    assert (await stream.info(subjects_filter=">")).state.subjects == {"s.target": 1}


@case
async def again_and_again(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.schedule("s.every", b"tick", target="s.tick", every=1)
    await jet.schedule("s.cron", b"tock", target="s.tock", cron="* * * * * *", time_zone="Asia/Kolkata", replace=True)
    first, second = await _next(stream, "s.tick", 2)
    assert _headers(first)["Nats-Scheduler"] == "s.every"
    # It announces its next time, and then fires.
    told = _headers(first)["Nats-Schedule-Next"]
    assert told.endswith("Z")
    assert second.time[:19] == told[:19]
    (tock,) = await _next(stream, "s.tock")
    assert _headers(tock)["Nats-Schedule-Next"].endswith("+05:30")
    assert _headers(tock)["Nats-Rollup"] == "sub"
    counts = (await stream.info(subjects_filter=">")).state.subjects
    assert (counts["s.every"], counts["s.cron"], counts["s.tock"]) == (1, 1, 1)


@case
async def the_last_message_of_another_subject(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.publish("s.source", b"measured", msg_id="a", ttl=100, headers={"Unit": "K"})
    await jet.schedule("s.a", b"own", target="s.sample", delay=0, source="s.source", headers={"Other": "x"})
    await jet.schedule("s.b", b"own", target="s.none", delay=0, source="s.nothing", headers={"Other": "x"})
    (sample,), (none,) = await _next(stream, "s.sample"), await _next(stream, "s.none")
    assert sample.data == b"measured"
    assert _headers(sample) == {"Unit": "K", "Nats-Scheduler": "s.a", "Nats-Schedule-Next": "purge"}
    assert none.data == b"own"
    assert _headers(none)["Other"] == "x"


@lagging("a new consumer may be led where what was published has not arrived")
async def what_takes_its_place_ends_it(jet: Jet) -> None:
    stream = await _stream(jet)
    await jet.schedule("s.a", target="s.target", every=1)
    await jet.publish("s.a", b"an ordinary message")
    await jet.schedule("s.b", target="s.target", every=1)
    # Published early: this ends the schedule.
    await _publish(jet, "s.target", Nats_Schedule_Next="purge", Nats_Scheduler="s.b")
    assert (await stream.info(subjects_filter=">")).state.subjects == {"s.a": 2, "s.target": 1}
    await jet.schedule("s.c", target="s.target", every=1)
    await stream.purge(filter="s.c")
    consumer = await stream.create_consumer(filter_subject="s.target", deliver_policy="new")
    assert await consumer.fetch(1, timeout=2.2) == []


@case
async def from_a_work_queue(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"], retention="workqueue", allow_msg_schedules=True)
    await jet.schedule("s.later", b"job", target="s.jobs", delay=0)
    consumer = await stream.create_consumer(filter_subject="s.jobs")
    (job,) = await consumer.fetch(1, timeout=60)
    await job.ack()
    assert job.data == b"job"
    await left(stream, 0)


@case
async def a_transform_renames_what_is_published(jet: Jet) -> None:
    transform = {"src": "s.*", "dest": "t.{{wildcard(1)}}"}
    stream = await jet.create_stream("S", subjects=["s.*"], subject_transform=transform, allow_msg_schedules=True)
    await jet.schedule("s.plan", b"now", target="s.later", delay=0)
    (message,) = await _next(stream, "t.later")
    assert (message.data, _headers(message)["Nats-Scheduler"]) == (b"now", "t.plan")


@only("engine", "a NATS server removes what it has made with the schedule")
async def nor_may_a_transform_make_the_target_its_own_subject(jet: Jet) -> None:
    transform = {"src": "s.*", "dest": "t.{{wildcard(1)}}"}
    await jet.create_stream("S", subjects=["s.*"], subject_transform=transform, allow_msg_schedules=True)
    await refused(10190, jet.schedule("s.plan", target="s.plan", delay=0))


@case
async def which_patterns_there_are(jet: Jet) -> None:
    await _stream(jet)
    for text in (
        *("@every 1s", "@every 1.5s", "@every 1h30m", "@hourly", "@daily", "@midnight", "@weekly", "@monthly"),
        *(
            "@yearly",
            "@annually",
            "* * * * * *",
            "0  0\t0 29 2 *",
            "*/5 1,2,5-9/2 * * jan-MAR mon,Fri",
            "5/10 0 ? * * ?",
        ),
        *("1,2,,3 * * * * *", "+5 * * * * *", "*/100 * * * * *"),
        *("@at 2100-01-01T00:00:00Z", "@at 2100-01-01T00:00:00.123456789+02:00", "@at 2100-01-01T1:00:00,5-23:59"),
    ):
        await _schedule(jet, Nats_Schedule=text)
    for text in (
        *("@every 999ms", "@every -5s", "@every 5", "@every  5s", "@every", "@Hourly", "@reboot", "bad", "* * * * *"),
        *("60 * * * * *", "* * 24 * * *", "0 0 0 0 * *", "0 0 0 * 13 *", "0 0 0 * * 7", "0 0 0 * january *"),
        *("0 0 0 31 2 *", "*/0 * * * * *", "5-1 * * * * *", ", * * * * *", "a * * * * *", "1- * * * * *"),
        *("-1 * * * * *", "*/5/2 * * * * *", "1-2-3 * * * * *", "0 0 0 1 1 * *"),
        *("@at", "@at 2100-01-01", "@at 2100-01-01 00:00:00Z", "@at 2100-02-30T00:00:00Z", "@at 2100-01-01T24:00:00Z"),
        *("@at  2100-01-01T00:00:00Z", "@at 2100-01-01t00:00:00z", "@at 2100-01-01T00:00:00"),
    ):
        await refused(10189, _schedule(jet, Nats_Schedule=text))


@case
async def time_zones(jet: Jet) -> None:
    await _stream(jet)
    for name in ("Europe/Berlin", "UTC", "EST"):
        await _schedule(jet, Nats_Schedule="0 0 5 * * *", Nats_Schedule_Time_Zone=name)
        await _schedule(jet, Nats_Schedule="@daily", Nats_Schedule_Time_Zone=name)
    for name in ("Mars/Base", "utc", "+02:00", "", "../etc"):
        await refused(10223, _schedule(jet, Nats_Schedule="0 0 5 * * *", Nats_Schedule_Time_Zone=name))
    await refused(10223, _publish(jet, "s.a", Nats_Schedule_Time_Zone="Mars/Base"))
    await refused(10189, _schedule(jet, Nats_Schedule_Time_Zone="UTC"))
    await refused(10189, _schedule(jet, Nats_Schedule="@every 5s", Nats_Schedule_Time_Zone="UTC"))


@only("engine", "processes with different local times may share a store, so there is no local time")
async def no_local_time(jet: Jet) -> None:
    await _stream(jet)
    await refused(10223, _schedule(jet, Nats_Schedule="@daily", Nats_Schedule_Time_Zone="Local"))


@case
async def what_a_schedule_must_be(jet: Jet) -> None:
    stream = await _stream(jet)
    for text in ("", "x.elsewhere", "s.*", "s.schedule"):
        await refused(10190, _schedule(jet, Nats_Schedule_Target=text))
    for text in ("x", "500ms", "0"):
        await refused(10191, _schedule(jet, Nats_Schedule_TTL=text))
    for text in ("all", "SUB"):
        await refused(10192, _schedule(jet, Nats_Schedule_Rollup=text))
    await refused(10192, _schedule(jet, Nats_Rollup="all"))
    for text in ("s.*", "x.elsewhere", "s.schedule", "s.target"):
        await refused(10203, _schedule(jet, Nats_Schedule_Source=text))
    await refused(10165, _schedule(jet, Nats_TTL="x"))
    for name in ("TTL", "Rollup", "Source"):
        await _schedule(jet, **{f"Nats_Schedule_{name}": ""})
    await _schedule(jet, Nats_Schedule_TTL="never", Nats_Rollup="sub")
    # Without a schedule, its other headers mean nothing.
    await _publish(jet, "s.a", Nats_Schedule_Target="x", Nats_Schedule_TTL="x", Nats_Schedule="")
    assert (await stream.info()).state.messages == 2


@case
async def what_ends_a_schedule_must_be(jet: Jet) -> None:
    await _stream(jet)
    await jet.publish("s.ordinary")
    for asked in (
        {"Nats_Schedule_Next": "purge"},
        {"Nats_Schedule_Next": "later", "Nats_Scheduler": "s.b"},
        {"Nats_Schedule_Next": "2100-01-01T00:00:00Z", "Nats_Scheduler": "s.b"},
        {"Nats_Schedule_Next": "", "Nats_Scheduler": "s.b"},
        {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "s.*"},
        {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "s.a"},
        {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "s.ordinary"},
        {"Nats_Scheduler": "s.b"},
    ):
        await refused(10212, _publish(jet, "s.a", **asked))
    # One that has already fired or ended is no schedule.
    await _publish(jet, "s.a", Nats_Schedule_Next="purge", Nats_Scheduler="s.b")
    await _publish(jet, "s.a", Nats_Schedule_Next="purge", Nats_Scheduler="elsewhere")


@case
async def only_where_the_stream_allows_them(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    for asked in ({"Nats_Schedule": _FAR}, {"Nats_Schedule": "bad"}):
        await refused(10188, _publish(jet, "s.a", **asked))
    await refused(10188, _publish(jet, "s.a", Nats_Schedule_Next="purge", Nats_Scheduler="s.b"))
    await refused(10188, _publish(jet, "s.a", Nats_Schedule="@every 1h", Nats_Schedule_Time_Zone="Mars/Base"))
    await refused(10212, _publish(jet, "s.a", Nats_Schedule_Next="bad"))
    await _publish(jet, "s.a", Nats_Schedule="", Nats_Schedule_Target="*")
    await jet.update_stream("S", allow_msg_schedules=True)
    await _schedule(jet)
    await refused(10191, _schedule(jet, Nats_Schedule_TTL="x"))
    await refused(10166, _schedule(jet, Nats_Schedule_TTL="5"))
    await refused(10166, _schedule(jet, Nats_TTL="5"))


@case
async def streams_with_schedules(jet: Jet) -> None:
    config = (await jet.create_stream("S", subjects=["s.>"], allow_msg_schedules=True, deny_purge=True)).config
    assert (config.allow_rollup_hdrs, config.deny_purge, config.allow_msg_ttl) == (True, False, False)
    await refused(10052, jet.update_stream("S", allow_msg_schedules=False))
    await refused(10052, jet.update_stream("S", discard="new"))
    assert (await jet.update_stream("S", allow_rollup_hdrs=False)).config.allow_rollup_hdrs
    await refused(10052, jet.create_stream("T", subjects=["t.>"], allow_msg_schedules=True, discard="new"))


@case
async def what_copies_others_schedules_nothing(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await refused(10186, jet.create_stream("M", mirror={"name": "S"}, allow_msg_schedules=True))
    await refused(10187, jet.create_stream("N", sources=[{"name": "S"}], allow_msg_schedules=True))
