"""Stream settings: first sequence, description, subjects, and what is refused."""

from __future__ import annotations

from typing import Any

from pelton.api import ConfigError, Duration, StreamConfig
from pelton.connect import Jet
from tests.conformance.cases.eventually import all_of
from tests.conformance.cases.table import case, fails, lagging, only, refused


async def _invalid(jet: Jet, text: str, **config: Any) -> None:
    """Assert that no stream is created, for this reason."""
    error = await refused(10052, jet.create_stream("S", **config))
    assert (error.code, error.description) == (500, text)


@case
async def contradictions_are_told(jet: Jet) -> None:
    texts: dict[str, dict[str, Any]] = {
        "max age needs to be >= 100ms": {"max_age": 0.05},
        "duplicates window needs to be >= 100ms": {"duplicate_window": 0.05},
        "duplicates window can not be larger then max age": {"max_age": 1, "duplicate_window": 2},
        "roll-ups require the purge permission": {"allow_rollup_hdrs": True, "deny_purge": True},
        "invalid subject": {"subjects": ["a..b"]},
        'subject "a.b" overlaps with "a.*"': {"subjects": ["a.b", "a.*"]},
        'subject "a" overlaps with "a"': {"subjects": ["a", "a"]},
        "capturing all subjects requires no-ack to be true": {"subjects": [">"]},
        "subjects that overlap with jetstream api require no-ack to be true": {"subjects": ["$JS.API.>"]},
        "subjects that overlap with system api require no-ack to be true": {"subjects": ["$SYS.>"]},
        "stream has no mirror but does have mirror direct": {"mirror_direct": True},
        "preferred server not permitted in placement": {"placement": {"preferred": "a"}},
        "async persist mode is only supported on file storage": {"persist_mode": "async", "storage": "memory"},
        "stream metadata exceeds maximum size of 131072 bytes": {"metadata": {"k": "x" * 131072}},
        "stream description is too long, maximum allowed is 4096": {"description": "é" * 2049},
        "maximum replicas is 5": {"num_replicas": 6},
    }
    for text, config in texts.items():
        await _invalid(jet, text, **config)
    for field, text in (("max_age", "max age"), ("duplicate_window", "duplicates window")):
        error = await refused(10052, jet.create_stream(StreamConfig(name="S", **{field: Duration.of_ns(-1)})))  # type: ignore[arg-type]  # a duration
        assert error.description == f"{text} can not be negative"


@case
async def names_are_checked(jet: Jet) -> None:
    for name in ("", "a.b", "a b", "a/b", "a\\b", ">"):
        await fails(ConfigError, jet.create_stream(name))
    await refused(10052, jet.create_stream("x" * 256))
    assert (await jet.create_stream("x" * 255)).name == "x" * 255


@case
async def a_number_of_replicas_is_checked(jet: Jet) -> None:
    await refused(10133, jet.create_stream("S", num_replicas=-1))


@only("engine", "the refusal says where replication lives")
async def replicas_live_on_a_cluster(jet: Jet) -> None:
    error = await fails(ConfigError, jet.create_stream("S", num_replicas=3))
    assert "cluster" in str(error)


@only("server", "the server alone has no replicas either, and says so with a code")
async def replicas_need_a_cluster(jet: Jet) -> None:
    await refused(10074, jet.create_stream("S", num_replicas=3))


# --- the first sequence


@case
async def a_stream_starts_at_its_first_sequence(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], first_seq=100)
    state = (await stream.info()).state
    assert (stream.config.first_seq, state.messages, state.first_seq, state.last_seq) == (100, 0, 100, 99)
    await refused(10071, jet.publish("s", expected_last_seq=0))
    assert (await jet.publish("s", expected_last_seq=99)).seq == 100
    state = (await stream.info()).state
    assert (state.messages, state.first_seq, state.last_seq, state.num_deleted) == (1, 100, 100, 0)


@case
async def a_consumer_of_a_stream_that_starts_later(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], first_seq=1000)
    consumer = await stream.create_consumer(durable_name="c")
    assert (await consumer.info()).num_pending == 0
    await jet.publish_batch([("s", b"")] * 3)
    assert [message.metadata.stream_seq for message in await all_of(consumer, 3)] == [1000, 1001, 1002]


@case
async def the_last_of_nothing_lies_before_the_first_sequence(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"], first_seq=5)
    consumer = await stream.create_consumer(durable_name="c", deliver_policy="last")
    filtered = await stream.create_consumer(durable_name="f", deliver_policy="last", filter_subject="s.a")
    assert [(await each.info()).delivered.stream_seq for each in (consumer, filtered)] == [4, 4]


@lagging("a new consumer may be led where what was published has not arrived")
async def the_last_of_no_subject_lies_before_the_last_message(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    single = await jet.create_stream("T", subjects=["t.>"], max_msgs_per_subject=1)
    for subject in ("a", "b", "a"):
        await jet.publish_batch([(f"s.{subject}", b""), (f"t.{subject}", b"")])
    for one, name, position in ((stream, "s.none", 2), (stream, "s.a", 2), (stream, "s.b", 1), (single, "t.a", 1)):
        consumer = await one.create_consumer(deliver_policy="last_per_subject", filter_subject=name)
        assert (await consumer.info()).delivered.stream_seq == position, name


@case
async def purging_it_empty_moves_the_first_sequence_on_only(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], first_seq=100)
    for seq, expected in ((0, 100), (50, 100), (150, 150)):
        assert await stream.purge(seq=seq) == 0
        state = (await stream.info()).state
        assert (state.first_seq, state.last_seq) == (expected, expected - 1)


@case
async def changing_the_first_sequence_later_moves_nothing(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], first_seq=100)
    await jet.publish("s")
    stream = await jet.update_stream("S", first_seq=300)
    assert (await stream.info()).state.first_seq == 100
    assert (await jet.publish("s")).seq == 101


@case
async def a_first_sequence_below_none_is_refused(jet: Jet) -> None:
    await refused(10025, jet.create_stream("S", first_seq=-1))


@only("engine", "SQLite's sequences are signed; a server's last 2**63 of them are not used by anybody")
async def a_first_sequence_too_large_is_refused(jet: Jet) -> None:
    await refused(10052, jet.create_stream("S", first_seq=1 << 63))
    assert (await jet.create_stream("S", first_seq=(1 << 63) - 1)).config.first_seq == (1 << 63) - 1


# --- description and metadata


def _own(config: StreamConfig) -> dict[str, str]:
    """The user's own metadata; a server adds some below ``_nats.``."""
    return {key: value for key, value in config.metadata.items() if not key.startswith("_nats.")}


@case
async def metadata_is_kept_and_replaced_as_a_whole(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"], metadata={"a": "1", "b": "2"})
    assert _own(stream.config) == {"a": "1", "b": "2"}
    stream = await jet.update_stream("S", metadata={"c": "3"})
    assert _own((await stream.info()).config) == {"c": "3"}
    await jet.create_stream("S", subjects=["s"], metadata={"c": "3"})
    await refused(10058, jet.create_stream("S", subjects=["s"], metadata={"c": "4"}))


@case
async def what_a_server_says_in_metadata_is_not_the_users(jet: Jet) -> None:
    info = await (await jet.create_stream("S", subjects=["s"], metadata={"a": "1"})).info()
    foreign = {**info.config.metadata, "_nats.ver": "2.10.0", "_nats.level": "1", "_nats.req.level": "0"}
    again = await jet.create_stream("S", subjects=["s"], metadata=foreign)
    assert _own(again.config) == {"a": "1"}
    assert again.config.metadata.get("_nats.ver") == info.config.metadata.get("_nats.ver")


@case
async def a_placement_is_kept(jet: Jet) -> None:
    config = (await jet.create_stream("S", placement={"cluster": "pelton", "tags": ["ssd"]})).config
    assert config.placement is not None
    assert (config.placement.cluster, config.placement.tags) == ("pelton", ("ssd",))
    assert (await jet.create_stream("T", placement={})).config.placement is None


@case
async def a_persist_mode_is_kept_and_cannot_be_changed(jet: Jet) -> None:
    assert (await jet.create_stream("A", persist_mode="async")).config.persist_mode == "async"
    assert (await jet.publish("A")).seq == 1
    assert (await jet.create_stream("D", persist_mode="default")).config.persist_mode == ""
    await jet.create_stream("D")
    for name, mode in (("A", ""), ("A", "default"), ("D", "async")):
        error = await refused(10052, jet.update_stream(name, persist_mode=mode))
        assert error.description == "stream configuration update can not change persist mode"


@case
async def fast_ingest_is_kept_and_can_be_changed(jet: Jet) -> None:
    for change, allowed in ((jet.create_stream, True), (jet.update_stream, False), (jet.update_stream, True)):
        stream = await change("S", subjects=["s"], allow_batched=allowed)
        assert stream.config.allow_batched == allowed
        assert [ack.stream for ack in await jet.publish_batch([("s", b"")] * 2)] == ["S", "S"]


@case
async def everything_can_be_captured_without_acks(jet: Jet) -> None:
    config = (await jet.create_stream("S", subjects=[">"], no_ack=True)).config
    assert (config.subjects, config.no_ack) == ((">",), True)
    await refused(10052, jet.update_stream("S", no_ack=False))


@case
async def the_api_can_be_captured_without_acks(jet: Jet) -> None:
    await jet.create_stream("A", subjects=["$JS.API.CONSUMER.>"], no_ack=True)
    await jet.create_stream("B", subjects=["$SYS.REQ.>"], no_ack=True)


@only("engine", "an embedded publish always knows where its message is; a server stays silent")
async def a_publish_without_ack_is_answered(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"], no_ack=True)
    assert (await jet.publish("s", b"1")).seq == 1
    assert [ack.seq for ack in await jet.publish_batch([("s", b"2"), ("s", b"3")])] == [2, 3]
