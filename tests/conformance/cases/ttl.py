"""Time to live of single messages, and the markers of their expiry (ADR-43, ADR-48)."""

from __future__ import annotations

from pelton.api import StoredMessage, StreamCreate, headers, stream_config
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.table import case, refused


async def _until_last(stream: Stream, seq: int) -> None:
    """Wait until the stream has stored a sequence; the message wakes a waiting consumer."""
    consumer = await stream.create_consumer(deliver_policy="by_start_sequence", opt_start_seq=seq)
    assert await consumer.fetch(1, timeout=60), f"message {seq} has not come"


def _headers(message: StoredMessage) -> dict[str, str]:
    return dict(headers.decode(message.hdrs))


@case
async def a_message_lives_as_long_as_it_says(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.*"], allow_msg_ttl=True, max_age=1.5, duplicate_window=1)
    await jet.publish("s.short", ttl=1)
    await jet.publish("s.aged", ttl=100)
    await jet.publish("s.forever", ttl="never")
    await jet.publish("s.aged")
    # A consumer waiting for a message that never comes: the shortest way to let time pass on every backend.
    consumer = await stream.create_consumer(filter_subject="s.nothing")
    assert await consumer.fetch(1, timeout=3.2) == []
    info = await stream.info(subjects_filter=">")
    assert (info.state.subjects, info.state.first_seq) == ({"s.forever": 1}, 3)


@case
async def what_a_time_to_live_may_be(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], allow_msg_ttl=True)
    for text in ("1", "100", "010", "1s", "1.5s", "1500ms", "1h30m", "1m0.9s", "2562047h", "never", "NEVER", ""):
        ack = await jet.publish("s", headers={"Nats-TTL": text})
        assert _headers(await stream.get_message(ack.seq))["Nats-TTL"] == text
    for text in ("0", "0s", "-1", "-5s", "999ms", "1d", "1e3", "+5", "5.5", "1h 5m", "0x10", "1_000", "2562048h", "x"):
        await refused(10165, jet.publish("s", headers={"Nats-TTL": text}))
    assert (await stream.info()).state.last_seq == 12


@case
async def only_where_the_stream_allows_it(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await refused(10166, jet.publish("s", ttl=5))
    await refused(10166, jet.publish("s", headers={"Nats-TTL": "1h", "Nats-Schedule": "@every 1h"}))
    await refused(10165, jet.publish("s", headers={"Nats-TTL": "x"}))
    await jet.publish("s", headers={"Nats-TTL": ""})
    assert (await stream.info()).state.messages == 1
    stream = await jet.update_stream("S", allow_msg_ttl=True)
    await jet.publish("s", ttl=5)
    await refused(10052, jet.update_stream("S", allow_msg_ttl=False))


@case
async def a_marker_tells_of_the_last_of_a_subject(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.*"], subject_delete_marker_ttl=2, max_msgs_per_subject=1)
    for subject in ("s.a", "s.b", "s.c"):
        await jet.publish(subject, b"data", ttl=1)
    await jet.publish("s.c", b"stays")
    await jet.publish("s.d", ttl=1, headers={"KV-Operation": "PURGE"})
    await stream.delete_message(2)
    await _until_last(stream, 6)
    marker = await stream.get_last_message("s.a")
    assert (marker.seq, marker.data) == (6, b"")
    assert _headers(marker) == {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "2s", "Nats-Rollup": "sub"}
    consumer = await stream.create_consumer(filter_subject="s.nothing")
    assert await consumer.fetch(1, timeout=3.2) == []
    # A marker expires without another one; and neither a deleted message, nor one with a successor, nor the purge of a
    # key-value store has left one.
    info = await stream.info(subjects_filter=">")
    assert (info.state.subjects, info.state.last_seq) == ({"s.c": 1}, 6)


@case
async def a_marker_tells_of_age_as_well(jet: Jet) -> None:
    stream = await jet.create_stream(
        "S", subjects=["s.*"], subject_delete_marker_ttl=100, max_age=1, duplicate_window=0.1
    )
    await jet.publish_batch([("s.a", b"1"), ("s.a", b"2")])
    await _until_last(stream, 3)
    info = await stream.info(subjects_filter=">")
    assert (info.state.messages, info.state.subjects) == (1, {"s.a": 1})
    assert _headers(await stream.get_message(3))["Nats-TTL"] == "1m40s"


@case
async def nothing_ends_before_its_marker(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], subject_delete_marker_ttl=60)
    for given, kept in (("5", "60"), ("1500ms", "60"), ("60s", "60s"), ("90s", "90s"), ("never", "never")):
        ack = await jet.publish("s", headers={"Nats-TTL": given, "Other": "x"})
        assert _headers(await stream.get_message(ack.seq)) == {"Other": "x", "Nats-TTL": kept}
    # But if a subject holds only one message.
    stream = await jet.create_stream("T", subjects=["t"], subject_delete_marker_ttl=60, max_msgs_per_subject=1)
    ack = await jet.publish("t", ttl=5)
    assert _headers(await stream.get_message(ack.seq)) == {"Nats-TTL": "5s"}


@case
async def markers_need_what_they_are_made_of(jet: Jet) -> None:
    config = (await jet.create_stream("S", subjects=["s"], subject_delete_marker_ttl=1, deny_purge=True)).config
    assert (config.allow_msg_ttl, config.allow_rollup_hdrs, config.deny_purge) == (True, True, False)
    config = (await jet.update_stream("S", subject_delete_marker_ttl=0)).config
    assert (config.allow_msg_ttl, config.allow_rollup_hdrs) == (True, True)
    config = (await jet.update_stream("S", subject_delete_marker_ttl=5)).config
    assert config.subject_delete_marker_ttl == 5
    await refused(10052, jet.create_stream("T", subjects=["t"], subject_delete_marker_ttl=0.5))


@case
async def pedantic_requests_say_all_of_it(jet: Jet) -> None:
    for asked in (
        {"subject_delete_marker_ttl": 5},
        {"subject_delete_marker_ttl": 5, "allow_msg_ttl": True},
        {"allow_msg_schedules": True},
    ):
        config = stream_config("S", subjects=["s"], **asked)
        await refused(10052, jet.backend.call(StreamCreate(config=config, pedantic=True)))
    config = stream_config("S", subjects=["s"], subject_delete_marker_ttl=5, allow_msg_ttl=True, allow_rollup_hdrs=True)
    await jet.backend.call(StreamCreate(config=config, pedantic=True))


@case
async def a_bad_time_to_live_uses_up_nothing(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], allow_msg_ttl=True)
    await refused(10165, jet.publish("s", msg_id="a", headers={"Nats-TTL": "0"}))
    ack = await jet.publish("s", msg_id="a")
    assert (ack.seq, ack.duplicate, (await stream.info()).state.messages) == (1, False, 1)
