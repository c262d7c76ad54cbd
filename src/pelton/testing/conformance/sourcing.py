"""Sources and mirrors (ADR-59, ADR-60): streams that take their messages from others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from pelton.api.errors import MessageNotFoundError
from pelton.api.info import StreamSourceInfo
from pelton.connect import Jet
from pelton.jet import Stream
from pelton.testing.conformance.eventually import eventually
from pelton.testing.conformance.table import case, only, refused

_ALL: Final = {"name": "O"}
_SOURCE: Final = "Nats-Stream-Source"
Stored = tuple[int, str, bytes]


async def _origin(jet: Jet, count: int = 3, **fields: Any) -> Stream:
    """A stream with ``count`` messages, each on a subject of its own."""
    stream = await jet.create_stream("O", subjects=["o.>"], **fields)
    for number in range(1, count + 1):
        await jet.publish(f"o.{number}", b"%d" % number)
    return stream


async def _stored(stream: Stream) -> list[Stored]:
    state = (await stream.info(deleted_details=True)).state
    found = set(range(max(state.first_seq, 1), state.last_seq + 1)) - set(state.deleted or ())
    messages = []
    for seq in sorted(found):
        # What another stream takes meanwhile is no longer stored.
        with suppress(MessageNotFoundError):
            messages.append(await stream.get_message(seq))
    return [(message.seq, message.subject, message.data) for message in messages]


async def _becomes(stream: Stream, *expected: Stored) -> None:
    await eventually(lambda: _stored(stream), list(expected))


async def _data(stream: Stream) -> list[bytes]:
    return [data for _, _, data in await _stored(stream)]


async def _source(stream: Stream, number: int = 0) -> StreamSourceInfo:
    return (await stream.info()).sources[number]


async def _settled(stream: Stream, seq: int) -> StreamSourceInfo:
    """The only source of a stream, when it has come to a sequence."""

    async def reached() -> int:
        return (await _source(stream)).seq

    await eventually(reached, seq)
    return await _source(stream)


# --- sources


@case
async def a_source_brings_what_is_there_and_what_comes(jet: Jet) -> None:
    await _origin(jet, 2)
    stream = await jet.create_stream("S", sources=[_ALL])
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await jet.publish("o.3", b"3")
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))


@case
async def a_sourced_message_tells_where_it_is_from(jet: Jet) -> None:
    await jet.create_stream("O", subjects=["o.>"])
    await jet.publish("o.1", b"a", headers={"X": "1", "Nats-Expected-Stream": "O"})
    stream = await jet.create_stream("S", sources=[_ALL])
    await _becomes(stream, (1, "o.1", b"a"))
    headers = (await stream.get_message(1)).headers
    assert set(headers) == {"X", _SOURCE}
    *words, identity = headers[_SOURCE].split(" ")
    assert words == ["O", "1", ">", ">", "o.1"]
    assert len(identity) == 8


@case
async def the_last_stream_on_the_way_is_told(jet: Jet) -> None:
    await _origin(jet, 1)
    await jet.create_stream("S", sources=[_ALL])
    last = await jet.create_stream("T", sources=[{"name": "S"}])
    await _becomes(last, (1, "o.1", b"1"))
    assert (await last.get_message(1)).headers[_SOURCE].startswith("S 1 > > o.1 ")


@case
async def a_publisher_cannot_say_it(jet: Jet) -> None:
    await _origin(jet, 0)
    await jet.create_stream("S", subjects=["s"], sources=[_ALL])
    await refused(10227, jet.publish("s", b"", headers={_SOURCE: "O 1 > > o.1 abcdefgh"}))


@case
async def a_filter_takes_a_part(jet: Jet) -> None:
    await _origin(jet)
    stream = await jet.create_stream("S", sources=[{"name": "O", "filter_subject": "o.2"}])
    await _becomes(stream, (1, "o.2", b"2"))
    assert (await stream.get_message(1)).headers[_SOURCE].startswith("O 2 o.2 > o.2 ")
    source = await _settled(stream, 2)
    assert (source.name, source.lag, source.filter_subject) == ("O", 0, "o.2")


@case
async def transforms_take_parts_and_rename_them(jet: Jet) -> None:
    await _origin(jet)
    transforms = [{"src": "o.1", "dest": "n.1"}, {"src": "o.3", "dest": ""}]
    stream = await jet.create_stream("S", sources=[{"name": "O", "subject_transforms": transforms}])
    await _becomes(stream, (1, "n.1", b"1"), (2, "o.3", b"3"))
    assert (await stream.get_message(1)).headers[_SOURCE].startswith("O 1 o.1\fo.3 n.1\f> o.1 ")


@case
async def the_transform_of_the_stream_comes_after_that_of_the_source(jet: Jet) -> None:
    await _origin(jet, 1)
    source = {"name": "O", "subject_transforms": [{"src": "o.*", "dest": "n.{{wildcard(1)}}.x"}]}
    stream = await jet.create_stream("S", sources=[source], subject_transform={"src": "n.>", "dest": "m.>"})
    await _becomes(stream, (1, "m.1.x", b"1"))


@case
async def a_source_begins_where_it_is_told(jet: Jet) -> None:
    origin = await _origin(jet)
    second = (await origin.get_message(2)).time
    by_seq = await jet.create_stream("S", sources=[{"name": "O", "opt_start_seq": 3}])
    by_time = await jet.create_stream("T", sources=[{"name": "O", "opt_start_time": second}])
    await _becomes(by_seq, (1, "o.3", b"3"))
    await _becomes(by_time, (1, "o.2", b"2"), (2, "o.3", b"3"))


@case
async def many_sources_and_own_subjects(jet: Jet) -> None:
    for name in "ABC":
        await jet.create_stream(name, subjects=[f"{name}.>"])
        await jet.publish(f"{name}.1", name.encode())
    stream = await jet.create_stream("S", subjects=["s"], sources=[{"name": name} for name in "ABC"])
    await jet.publish("s", b"own")

    async def found() -> list[bytes]:
        return sorted(await _data(stream))

    await eventually(found, [b"A", b"B", b"C", b"own"])


@case
async def an_origin_is_sourced_twice_with_other_filters(jet: Jet) -> None:
    await _origin(jet)
    stream = await jet.create_stream("S", sources=[_ALL, {"name": "O", "filter_subject": "o.1"}])

    async def found() -> list[bytes]:
        return sorted(await _data(stream))

    await eventually(found, [b"1", b"1", b"2", b"3"])


@case
async def an_origin_may_come_later(jet: Jet) -> None:
    stream = await jet.create_stream("S", sources=[{"name": "LATER"}])
    await jet.create_stream("LATER", subjects=["l"])
    await jet.publish("l", b"x")
    await _becomes(stream, (1, "l", b"x"))


@case
async def a_source_is_added_removed_and_added_again(jet: Jet) -> None:
    await _origin(jet, 2)
    await jet.create_stream("P", subjects=["p"])
    await jet.publish("p", b"p")
    stream = await jet.create_stream("S", sources=[_ALL])
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await jet.update_stream("S", sources=[_ALL, {"name": "P"}])
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "p", b"p"))
    await jet.update_stream("S", sources=[{"name": "P"}])
    await jet.publish("o.3", b"3")
    await jet.update_stream("S", sources=[_ALL, {"name": "P"}])
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "p", b"p"), (4, "o.3", b"3"))


@case
async def another_filter_is_another_source(jet: Jet) -> None:
    await _origin(jet, 2)
    stream = await jet.create_stream("S", sources=[_ALL])
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await jet.update_stream("S", sources=[{"name": "O", "filter_subject": "o.1"}])
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.1", b"1"))


@case
async def another_start_of_the_same_source_changes_nothing(jet: Jet) -> None:
    await _origin(jet, 2)
    stream = await jet.create_stream("S", sources=[_ALL])
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await jet.update_stream("S", sources=[{"name": "O", "opt_start_seq": 1}])
    await jet.publish("o.3", b"3")
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))


@case
async def a_purge_is_not_filled_again(jet: Jet) -> None:
    await _origin(jet, 2)
    stream = await jet.create_stream("S", sources=[_ALL])
    await _settled(stream, 2)
    await stream.purge()
    await jet.publish("o.3", b"3")
    await _becomes(stream, (3, "o.3", b"3"))


@case
async def without_sources_it_is_a_stream_of_its_own(jet: Jet) -> None:
    await _origin(jet, 1)
    stream = await jet.create_stream("S", sources=[_ALL])
    await _becomes(stream, (1, "o.1", b"1"))
    info = await jet.update_stream("S", sources=[])
    assert (await info.info()).config.subjects == ("S",)
    await jet.publish("S", b"own")
    await _becomes(stream, (1, "o.1", b"1"), (2, "S", b"own"))


@case
async def limits_of_the_stream_hold_for_what_is_sourced(jet: Jet) -> None:
    await _origin(jet, 5)
    stream = await jet.create_stream("S", sources=[_ALL], max_msgs=2)
    await _becomes(stream, (4, "o.4", b"4"), (5, "o.5", b"5"))


@case
async def what_there_is_no_room_for_waits(jet: Jet) -> None:
    await _origin(jet, 3)
    stream = await jet.create_stream("S", sources=[_ALL], max_msgs=2, discard="new")
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await stream.delete_message(1)
    await _becomes(stream, (2, "o.2", b"2"), (3, "o.3", b"3"))


@case
async def duplicates_are_dropped_within_the_window(jet: Jet) -> None:
    for name in "OP":
        await jet.create_stream(name, subjects=[f"{name}.>"])
        await jet.publish(f"{name}.1", name.encode(), msg_id="same")
    stream = await jet.create_stream("S", sources=[_ALL], duplicate_window=100)
    await _becomes(stream, (1, "O.1", b"O"))
    await jet.update_stream("S", sources=[_ALL, {"name": "P"}])
    await jet.publish("P.2", b"after")
    await _becomes(stream, (1, "O.1", b"O"), (2, "P.2", b"after"))


@case
async def without_a_window_ids_mean_nothing(jet: Jet) -> None:
    for name in "OP":
        await jet.create_stream(name, subjects=[f"{name}.>"])
        await jet.publish(f"{name}.1", b"x", msg_id="same")
    stream = await jet.create_stream("S", sources=[_ALL, {"name": "P"}])
    await eventually(lambda: _data(stream), [b"x", b"x"])
    assert (await stream.info()).config.duplicate_window == 0


@case
async def a_rollup_is_followed_where_it_is_allowed(jet: Jet) -> None:
    await _origin(jet, 1, allow_rollup_hdrs=True)
    following = await jet.create_stream("S", sources=[_ALL], allow_rollup_hdrs=True)
    keeping = await jet.create_stream("T", sources=[_ALL])
    for stream in (following, keeping):
        await _becomes(stream, (1, "o.1", b"1"))
    await jet.publish("o.1", b"all", headers={"Nats-Rollup": "sub"})
    await _becomes(following, (2, "o.1", b"all"))
    await _becomes(keeping, (1, "o.1", b"1"), (2, "o.1", b"all"))
    assert (await keeping.get_message(2)).headers["Nats-Rollup"] == "sub"


@case
async def a_time_to_live_is_kept_where_it_is_not_allowed(jet: Jet) -> None:
    await _origin(jet, 0, allow_msg_ttl=True)
    stream = await jet.create_stream("S", sources=[_ALL])
    await jet.publish("o.1", b"x", headers={"Nats-TTL": "1h"})
    await _becomes(stream, (1, "o.1", b"x"))
    assert (await stream.get_message(1)).headers["Nats-TTL"] == "1h"


@case
async def a_work_queue_is_emptied_by_its_source(jet: Jet) -> None:
    origin = await _origin(jet, 2, retention="workqueue")
    stream = await jet.create_stream("S", sources=[_ALL])
    await jet.publish("o.3", b"3")
    await _becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))
    await _becomes(origin)


@case
async def interest_is_that_of_the_source(jet: Jet) -> None:
    origin = await _origin(jet, 2, retention="interest")
    stream = await jet.create_stream("S", sources=[_ALL])

    async def interested() -> bool:
        """Whether a message is sourced that is published now; the server takes its time."""
        await jet.publish("o.x", b"x")
        return bool(await _data(stream))

    await eventually(interested, True)
    await _becomes(origin)
    assert set(await _data(stream)) == {b"x"}


@only("engine", "a server makes a consumer that everybody sees, and leaves it behind when the stream is deleted")
async def a_source_is_no_consumer(jet: Jet) -> None:
    origin = await _origin(jet, 2, retention="workqueue")
    await jet.create_stream("S", sources=[_ALL])
    assert (await origin.info()).state.consumer_count == 0


@case
async def counters_add_up(jet: Jet) -> None:
    for name, added in (("A", 5), ("B", 7)):
        await jet.create_stream(name, subjects=[f"{name}.>"], allow_msg_counter=True)
        await jet.publish(f"{name}.1", b"", headers={"Nats-Incr": str(added)})
    sources = [{"name": name, "subject_transforms": [{"src": f"{name}.>", "dest": "t.>"}]} for name in "AB"]
    stream = await jet.create_stream("S", sources=sources, allow_msg_counter=True)

    async def last() -> bytes:
        found = await _data(stream)
        return found[-1] if len(found) >= 2 else b""

    await eventually(last, b'{"val":"12"}')
    await jet.publish("A.1", b"", headers={"Nats-Incr": "-2"})
    await eventually(last, b'{"val":"10"}')
    headers = (await stream.get_message(3)).headers
    assert headers["Nats-Counter-Sources"] == '{"A":{"A.1":"3"},"B":{"B.1":"7"}}'
    assert headers["Nats-Incr"] == "-2"
    final = await jet.create_stream("T", sources=[{"name": "S"}], allow_msg_counter=True)
    await eventually(lambda: _data(final), await _data(stream))
    assert (await final.get_message(3)).headers["Nats-Counter-Sources"] == '{"S":{"t.1":"10"}}'


@case
async def a_counter_is_copied_where_nothing_counts(jet: Jet) -> None:
    await jet.create_stream("O", subjects=["o.>"], allow_msg_counter=True)
    await jet.publish("o.1", b"", headers={"Nats-Incr": "5"})
    stream = await jet.create_stream("S", sources=[_ALL])
    await _becomes(stream, (1, "o.1", b'{"val":"5"}'))


@case
async def an_origin_that_is_made_again_is_another_one(jet: Jet) -> None:
    await _origin(jet, 2)
    stream = await jet.create_stream("S", sources=[_ALL])
    await _settled(stream, 2)
    await jet.delete_stream("O")
    await _origin(jet, 1)

    async def found() -> int:
        return len(await _data(stream))

    # A server notices after some ten seconds.
    for _ in range(6):
        try:
            await eventually(found, 3)
        except AssertionError:
            continue
        break
    assert await _stored(stream) == [(1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.1", b"1")]


@case
async def what_no_source_can_be(jet: Jet) -> None:
    await _origin(jet, 0)
    both = {"filter_subject": "o.1", "subject_transforms": [{"src": "o.1", "dest": "x"}]}
    overlapping = [{"src": "o.>", "dest": "x.>"}, {"src": "o.1", "dest": "y"}]
    wrong: dict[int, list[dict[str, Any]]] = {
        10140: [_ALL, {"name": "O", "opt_start_seq": 2}],
        10141: [{"name": "O.x"}],
        10144: [{"name": "O", **both}],
        10145: [{"name": "O", "subject_transforms": [{"src": "o..1", "dest": "x"}]}],
        10146: [{"name": "O", "subject_transforms": [{"src": "o.1", "dest": "x.{{wildcard(1)}}"}]}],
        10147: [{"name": "O", "subject_transforms": overlapping}],
        10049: [{"name": "O", "filter_subject": "o..x"}],
        10052: [{"name": "S"}],
    }
    for code, sources in wrong.items():
        await refused(code, jet.create_stream("S", subjects=["s"], sources=sources))
    await refused(10187, jet.create_stream("S", sources=[_ALL], allow_msg_schedules=True))
    await jet.create_stream("S", sources=[_ALL])
    await refused(10140, jet.update_stream("S", sources=[_ALL, _ALL]))


@case
async def no_stream_takes_from_itself(jet: Jet) -> None:
    await _origin(jet, 0)
    await jet.create_stream("A", subjects=["a.>"], sources=[_ALL])
    await jet.create_stream("B", subjects=["b.>"], sources=[{"name": "A"}])
    error = await refused(10052, jet.update_stream("O", subjects=["o.>"], sources=[{"name": "B"}]))
    assert error.description == "detected cycle"
    await jet.create_stream("C", mirror={"name": "D"})
    await refused(10052, jet.create_stream("D", subjects=["d"], sources=[{"name": "C"}]))


# --- mirrors


@case
async def a_mirror_has_the_same_sequences(jet: Jet) -> None:
    origin = await _origin(jet, 4)
    for seq in (1, 3):
        await origin.delete_message(seq)
    mirror = await jet.create_stream("M", mirror=_ALL)
    await _becomes(mirror, (2, "o.2", b"2"), (4, "o.4", b"4"))
    await jet.publish("o.5", b"5")
    await _becomes(mirror, (2, "o.2", b"2"), (4, "o.4", b"4"), (5, "o.5", b"5"))
    state = (await mirror.info()).state
    assert (state.first_seq, state.last_seq, state.messages) == (2, 5, 3)
    for seq in (2, 4, 5):
        mine, theirs = await mirror.get_message(seq), await origin.get_message(seq)
        assert (mine.time, mine.headers) == (theirs.time, theirs.headers)


@case
async def a_mirror_of_a_part_leaves_gaps(jet: Jet) -> None:
    await _origin(jet, 4)
    mirror = await jet.create_stream("M", mirror={"name": "O", "filter_subject": "o.2"})
    await _becomes(mirror, (2, "o.2", b"2"))
    await jet.publish("o.2", b"again")
    await _becomes(mirror, (2, "o.2", b"2"), (5, "o.2", b"again"))


@case
async def a_mirror_renames(jet: Jet) -> None:
    await _origin(jet, 3)
    transforms = [{"src": "o.1", "dest": "n.1"}, {"src": "o.3", "dest": "z.3"}]
    mirror = await jet.create_stream("M", mirror={"name": "O", "subject_transforms": transforms})
    await _becomes(mirror, (1, "n.1", b"1"), (3, "z.3", b"3"))


@case
async def a_mirror_begins_where_it_is_told(jet: Jet) -> None:
    await _origin(jet, 3)
    mirror = await jet.create_stream("M", mirror={"name": "O", "opt_start_seq": 3})
    await _becomes(mirror, (3, "o.3", b"3"))
    later = await jet.create_stream("N", mirror={"name": "O", "opt_start_seq": 40})

    async def bounds() -> tuple[int, int]:
        state = (await later.info()).state
        return state.first_seq, state.last_seq

    await eventually(bounds, (40, 39))


@case
async def a_mirror_keeps_no_ids_and_takes_no_messages(jet: Jet) -> None:
    await _origin(jet, 1)
    config = (await (await jet.create_stream("M", mirror=_ALL)).info()).config
    assert (config.subjects, config.duplicate_window) == ((), 0)


@case
async def a_mirror_has_limits_of_its_own(jet: Jet) -> None:
    await _origin(jet, 4)
    newest = await jet.create_stream("M", mirror=_ALL, max_msgs=2)
    oldest = await jet.create_stream("N", mirror=_ALL, max_msgs=2, discard="new")
    await _becomes(newest, (3, "o.3", b"3"), (4, "o.4", b"4"))
    await _becomes(oldest, (1, "o.1", b"1"), (2, "o.2", b"2"))


@case
async def a_mirror_is_purged_alone(jet: Jet) -> None:
    origin = await _origin(jet, 2)
    mirror = await jet.create_stream("M", mirror=_ALL)
    await _becomes(mirror, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await mirror.delete_message(2)
    await mirror.purge()
    await origin.delete_message(1)
    await jet.publish("o.3", b"3")
    await _becomes(mirror, (3, "o.3", b"3"))


@case
async def a_mirror_follows_rollups_where_they_are_allowed(jet: Jet) -> None:
    await _origin(jet, 1, allow_rollup_hdrs=True)
    following = await jet.create_stream("M", mirror=_ALL, allow_rollup_hdrs=True)
    keeping = await jet.create_stream("N", mirror=_ALL)
    for mirror in (following, keeping):
        await _becomes(mirror, (1, "o.1", b"1"))
    await jet.publish("o.1", b"all", headers={"Nats-Rollup": "sub"})
    await _becomes(following, (2, "o.1", b"all"))
    await _becomes(keeping, (1, "o.1", b"1"), (2, "o.1", b"all"))


@case
async def a_mirror_forgets_conditions(jet: Jet) -> None:
    await _origin(jet, 0)
    mirror = await jet.create_stream("M", mirror=_ALL)
    await jet.publish("o.1", b"x", headers={"Nats-Expected-Last-Sequence": "0", "X": "1"})
    await _becomes(mirror, (1, "o.1", b"x"))
    assert dict((await mirror.get_message(1)).headers) == {"X": "1"}


@case
async def a_work_queue_is_emptied_by_its_mirror(jet: Jet) -> None:
    origin = await _origin(jet, 2, retention="workqueue")
    mirror = await jet.create_stream("M", mirror=_ALL)
    await _becomes(mirror, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await _becomes(origin)


@case
async def a_mirror_is_read_by_consumers(jet: Jet) -> None:
    await _origin(jet, 3)
    mirror = await jet.create_stream("M", mirror=_ALL)
    await _becomes(mirror, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))
    consumer = await mirror.create_consumer(durable_name="c", filter_subject="o.3")
    (message,) = await consumer.fetch(5, timeout=5)
    assert message.metadata.stream_seq == 3


@case
async def a_mirror_tells_of_its_origin(jet: Jet) -> None:
    await _origin(jet, 1)
    mirror = await jet.create_stream("M", mirror={"name": "O", "filter_subject": "o.1"})
    await _becomes(mirror, (1, "o.1", b"1"))
    told = (await mirror.info()).mirror
    assert told is not None
    assert (told.name, told.lag, told.seq, told.filter_subject) == ("O", 0, 0, "o.1")
    assert told.active >= 0
    assert (await mirror.info()).sources == []


@case
async def a_mirror_of_nothing_says_so(jet: Jet) -> None:
    mirror = await jet.create_stream("M", mirror={"name": "NOWHERE"})

    async def problem() -> int:
        told = (await mirror.info()).mirror
        return told.error.err_code if told is not None and told.error is not None else 0

    await eventually(problem, 10059)


@case
async def a_mirror_becomes_a_stream_and_nothing_else(jet: Jet) -> None:
    await _origin(jet, 1)
    mirror = await jet.create_stream("M", mirror=_ALL)
    await _becomes(mirror, (1, "o.1", b"1"))
    for wrong in ({"name": "P"}, {"name": "O", "filter_subject": "o.1"}):
        await refused(10055, jet.update_stream("M", mirror=wrong))
    await jet.update_stream("M", mirror=None, subjects=["m"])
    await jet.publish("m", b"own")
    await _becomes(mirror, (1, "o.1", b"1"), (2, "m", b"own"))
    await refused(10055, jet.update_stream("M", subjects=[], mirror=_ALL))


@case
async def what_no_mirror_can_be(jet: Jet) -> None:
    await _origin(jet, 0)
    overlapping = [{"src": "o.>", "dest": "x.>"}, {"src": "o.1", "dest": "y"}]
    wrong: dict[int, dict[str, Any]] = {
        10142: {"name": "O.x"},
        10150: {"name": "O", "filter_subject": "o.1", "subject_transforms": [{"src": "o.1", "dest": "x"}]},
        10151: {"name": "O", "subject_transforms": [{"src": "o..1", "dest": "x"}]},
        10152: {"name": "O", "subject_transforms": overlapping},
        10154: {"name": "O", "subject_transforms": [{"src": "o.1", "dest": "x.{{wildcard(1)}}"}]},
        10049: {"name": "O", "filter_subject": "o..x"},
        10052: {"name": "M"},
    }
    for code, mirror in wrong.items():
        await refused(code, jet.create_stream("M", mirror=mirror))


@case
async def what_no_mirror_can_have(jet: Jet) -> None:
    await _origin(jet, 0)
    wrong: dict[int, dict[str, Any]] = {
        10031: {"sources": [_ALL]},
        10034: {"subjects": ["m"]},
        10143: {"first_seq": 5},
        10173: {"allow_msg_counter": True},
        10186: {"allow_msg_schedules": True},
        10198: {"allow_atomic": True},
    }
    for code, fields in wrong.items():
        await refused(code, jet.create_stream("M", mirror=_ALL, **fields))
    marking = {"subject_delete_marker_ttl": 1, "allow_rollup_hdrs": True}
    await refused(10052, jet.create_stream("M", mirror=_ALL, **marking))
