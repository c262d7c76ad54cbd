"""Streams: creating, finding, changing, listing and deleting them."""

from __future__ import annotations

from pelton.api import (
    ConsumerConfig,
    ConsumerCreate,
    StreamConfig,
    StreamCreate,
    StreamNames,
    StreamNotFoundError,
    StreamUpdate,
    stream_config,
)
from pelton.connect import Jet
from tests.conformance.cases.table import case, refused


@case
async def a_new_stream_is_empty(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    state = (await stream.info()).state
    assert (state.messages, state.bytes, state.first_seq, state.last_seq) == (0, 0, 0, 0)
    assert (state.num_subjects, state.consumer_count, state.num_deleted) == (0, 0, 0)


@case
async def the_configuration_is_reported_resolved(jet: Jet) -> None:
    config = (await jet.create_stream("S", subjects=["s.>"])).config
    assert (config.max_msgs, config.max_bytes, config.max_msgs_per_subject, config.max_msg_size) == (-1, -1, -1, -1)
    assert (config.retention, config.discard, config.storage) == ("limits", "old", "file")
    assert config.duplicate_window == 120


@case
async def one_replica_is_enough(jet: Jet) -> None:
    assert (await jet.create_stream("S")).config.num_replicas == 1


@case
async def a_stream_without_subjects_takes_its_name(jet: Jet) -> None:
    assert (await jet.create_stream("S")).config.subjects == ("S",)


@case
async def the_duplicate_window_is_bounded_by_the_age(jet: Jet) -> None:
    assert (await jet.create_stream("S", max_age=10)).config.duplicate_window == 10


@case
async def making_it_again_the_same_is_no_error(jet: Jet) -> None:
    first = await jet.create_stream("S", subjects=["s.>"], max_msgs=5)
    again = await jet.create_stream("S", subjects=["s.>"], max_msgs=5)
    assert first.config == again.config


@case
async def another_configuration_under_its_name_is_refused(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.>"])
    await refused(10058, jet.create_stream("S", subjects=["t.>"]))


@case
async def overlapping_subjects_are_refused(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.*.x"])
    await refused(10065, jet.create_stream("T", subjects=["s.a.*"]))
    await refused(10065, jet.create_stream("T", subjects=["s.>"]))


@case
async def subjects_that_do_not_overlap_live_together(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.*.x"])
    await jet.create_stream("T", subjects=["s.*.y", "s.*"])
    assert await jet.stream_names() == ["S", "T"]


@case
async def its_own_subjects_must_not_overlap(jet: Jet) -> None:
    await refused(10052, jet.create_stream("S", subjects=["s.>", "s.a"]))
    await refused(10052, jet.create_stream("S", subjects=["s.a", "s.a"]))


@case
async def invalid_subjects_are_refused(jet: Jet) -> None:
    for subject in ("s..a", ".s", "s.", "s.>.a", "s a"):
        await refused(10052, jet.create_stream("S", subjects=[subject]))


@case
async def everything_and_the_api_are_not_for_streams(jet: Jet) -> None:
    for subject in (">", "*.>", "*.*.*", "$JS.API.>", "$JS.>", "*.API.>", "$SYS.>", "$SYS.a"):
        await refused(10052, jet.create_stream("S", subjects=[subject]))


@case
async def events_and_single_tokens_are(jet: Jet) -> None:
    for name, subject in (("A", "$JS.EVENT.ADVISORY.>"), ("B", "*"), ("C", "$KV.bucket.>")):
        await jet.create_stream(name, subjects=[subject])


@case
async def a_description_has_a_limit(jet: Jet) -> None:
    await jet.create_stream("S", description="x" * 4096)
    await refused(10052, jet.create_stream("T", description="x" * 4097))


@case
async def numbers_below_none_mean_none(jet: Jet) -> None:
    config = (await jet.create_stream("S", max_msgs=-7, max_bytes=-7, max_msg_size=-7, max_msgs_per_subject=-7)).config
    assert (config.max_msgs, config.max_bytes, config.max_msg_size, config.max_msgs_per_subject) == (-1, -1, -1, -1)


@case
async def the_number_of_consumers_can_be_changed(jet: Jet) -> None:
    await jet.create_stream("S", max_consumers=1)
    assert (await jet.update_stream("S", max_consumers=3)).config.max_consumers == 3


@case
async def names_beyond_the_last_page(jet: Jet) -> None:
    await jet.create_stream("S")
    page = await jet.backend.call(StreamNames(offset=50))
    assert (page.total, page.offset, page.streams) == (1, 1, ())


@case
async def discard_per_subject_needs_discard_new_and_a_limit(jet: Jet) -> None:
    await refused(10052, jet.create_stream("S", discard_new_per_subject=True, max_msgs_per_subject=1))
    await refused(10052, jet.create_stream("S", discard="new", discard_new_per_subject=True))


@case
async def too_short_an_age_is_refused(jet: Jet) -> None:
    await refused(10052, jet.create_stream("S", max_age=0.05))


@case
async def a_duplicate_window_longer_than_the_age_is_refused(jet: Jet) -> None:
    await refused(10052, jet.create_stream("S", max_age=1, duplicate_window=2))


@case
async def an_unknown_stream_is_not_found(jet: Jet) -> None:
    error = await refused(10059, jet.stream("NONE"))
    assert isinstance(error, StreamNotFoundError)
    await refused(10059, jet.delete_stream("NONE"))
    await refused(10059, jet.backend.call(StreamUpdate(config=stream_config("NONE", subjects=["n"]))))


@case
async def names_are_sorted_and_filtered_by_subject(jet: Jet) -> None:
    for name in ("B", "A", "C"):
        await jet.create_stream(name, subjects=[f"{name}.*", f"{name}.x.>"])
    assert await jet.stream_names() == ["A", "B", "C"]
    assert await jet.stream_names("B.1") == ["B"]
    assert await jet.stream_names("*.x.y") == ["A", "B", "C"]
    assert await jet.stream_names("D") == []


@case
async def a_deleted_stream_is_gone_with_its_messages(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", b"1")
    await stream.delete()
    await refused(10059, stream.info())
    again = await jet.create_stream("S", subjects=["s"])
    assert (await again.info()).state.last_seq == 0


@case
async def subjects_can_be_changed(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["a"])
    await jet.publish("a")
    stream = await jet.update_stream("S", subjects=["b"])
    assert (await jet.publish("b")).seq == 2
    assert (await stream.info()).state.messages == 2


@case
async def changed_subjects_must_not_overlap_others(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["a"])
    await jet.create_stream("T", subjects=["b"])
    await refused(10065, jet.update_stream("S", subjects=["a", "b"]))


@case
async def a_lowered_limit_is_applied_at_once(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"%d" % n) for n in range(5)])
    state = (await (await jet.update_stream("S", max_msgs=2)).info()).state
    assert (state.messages, state.first_seq, state.last_seq) == (2, 4, 5)


@case
async def a_lowered_limit_per_subject_is_applied_at_once(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s.*"])
    await jet.publish_batch([("s.a", b""), ("s.b", b""), ("s.a", b""), ("s.a", b"")])
    state = (await (await jet.update_stream("S", max_msgs_per_subject=1)).info(subjects_filter=">")).state
    assert (state.messages, state.subjects) == (2, {"s.a": 1, "s.b": 1})


@case
async def storage_and_retention_cannot_be_changed(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await refused(10052, jet.update_stream("S", storage="memory"))
    await refused(10052, jet.update_stream("S", retention="workqueue"))


@case
async def state_counts_messages_subjects_and_bytes(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.*"])
    await jet.publish("s.a", b"12345")
    await jet.publish("s.b", b"12345", headers={"X": "1"})
    state = (await stream.info()).state
    assert (state.messages, state.num_subjects, state.first_seq, state.last_seq) == (2, 2, 1, 2)
    assert state.bytes == (22 + 3 + 5 + 8) + (22 + 4 + 3 + len("NATS/1.0\r\nX: 1\r\n\r\n") + 5 + 8)


@case
async def subjects_are_counted_where_asked(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s.>"])
    await jet.publish_batch([("s.a", b""), ("s.b.c", b""), ("s.a", b"")])
    assert (await stream.info()).state.subjects == {}
    assert (await stream.info(subjects_filter=">")).state.subjects == {"s.a": 2, "s.b.c": 1}
    info = await stream.info(subjects_filter="s.*")
    assert (info.state.subjects, info.total) == ({"s.a": 2}, 1)
    await jet.publish_batch([("s.b", b""), ("s.c", b"")])
    for offset, subjects in ((1, {"s.b": 1, "s.c": 1}), (2, {"s.c": 1}), (3, {}), (2**40, {})):
        info = await stream.info(subjects_filter="s.*", offset=offset)
        assert (info.state.subjects, info.total) == (subjects, 3), offset


@case
async def deleted_sequences_are_listed_where_asked(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"")] * 6)
    for seq in (3, 5, 1):
        await stream.delete_message(seq)
    state = (await stream.info(deleted_details=True)).state
    assert (state.first_seq, state.num_deleted, state.deleted) == (2, 2, [3, 5])
    assert (await stream.info()).state.deleted == []


@case
async def the_account_counts_streams_and_consumers(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.create_stream("T", subjects=["t"])
    await stream.create_consumer(durable_name="c")
    info = await jet.account_info()
    assert (info.streams, info.consumers) == (2, 1)


@case
async def names_are_no_paths(jet: Jet) -> None:
    await jet.create_stream("S")
    for name in ("a/b", "a\\b", "/"):
        await refused(10128, jet.backend.call(StreamCreate(config=StreamConfig(name=name))))
        for durable in ("", name):
            config = ConsumerConfig(name=name, durable_name=durable)
            await refused(10127, jet.backend.call(ConsumerCreate(stream_name="S", config=config)))
