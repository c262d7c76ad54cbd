"""Mirrors (ADR-59): streams that copy another one, or a part of it."""

from __future__ import annotations

from typing import Any

from pelton.api import Duration
from pelton.connect import Jet
from tests.conformance.cases.eventually import eventually
from tests.conformance.cases.sourced import ALL, becomes, make_origin
from tests.conformance.cases.table import case, refused


@case
async def a_mirror_has_the_same_sequences(jet: Jet) -> None:
    origin = await make_origin(jet, 4)
    for seq in (1, 3):
        await origin.delete_message(seq)
    mirror = await jet.create_stream("M", mirror=ALL)
    await becomes(mirror, (2, "o.2", b"2"), (4, "o.4", b"4"))
    await jet.publish("o.5", b"5")
    await becomes(mirror, (2, "o.2", b"2"), (4, "o.4", b"4"), (5, "o.5", b"5"))
    state = (await mirror.info()).state
    assert (state.first_seq, state.last_seq, state.messages) == (2, 5, 3)
    for seq in (2, 4, 5):
        mine, theirs = await mirror.get_message(seq), await origin.get_message(seq)
        assert (mine.time, mine.headers) == (theirs.time, theirs.headers)


@case
async def a_mirror_of_a_part_leaves_gaps(jet: Jet) -> None:
    await make_origin(jet, 4)
    mirror = await jet.create_stream("M", mirror={"name": "O", "filter_subject": "o.2"})
    await becomes(mirror, (2, "o.2", b"2"))
    await jet.publish("o.2", b"again")
    await becomes(mirror, (2, "o.2", b"2"), (5, "o.2", b"again"))


@case
async def a_mirror_renames(jet: Jet) -> None:
    await make_origin(jet, 3)
    transforms = [{"src": "o.1", "dest": "n.1"}, {"src": "o.3", "dest": "z.3"}]
    mirror = await jet.create_stream("M", mirror={"name": "O", "subject_transforms": transforms})
    await becomes(mirror, (1, "n.1", b"1"), (3, "z.3", b"3"))


@case
async def a_mirror_begins_where_it_is_told(jet: Jet) -> None:
    await make_origin(jet, 3)
    mirror = await jet.create_stream("M", mirror={"name": "O", "opt_start_seq": 3})
    await becomes(mirror, (3, "o.3", b"3"))
    later = await jet.create_stream("N", mirror={"name": "O", "opt_start_seq": 40})

    async def bounds() -> tuple[int, int]:
        state = (await later.info()).state
        return state.first_seq, state.last_seq

    await eventually(bounds, (40, 39))


@case
async def a_mirror_keeps_no_ids_and_takes_no_messages(jet: Jet) -> None:
    await make_origin(jet, 1)
    config = (await (await jet.create_stream("M", mirror=ALL)).info()).config
    assert (config.subjects, config.duplicate_window) == ((), Duration(0))


@case
async def a_mirror_has_limits_of_its_own(jet: Jet) -> None:
    await make_origin(jet, 4)
    newest = await jet.create_stream("M", mirror=ALL, max_msgs=2)
    oldest = await jet.create_stream("N", mirror=ALL, max_msgs=2, discard="new")
    await becomes(newest, (3, "o.3", b"3"), (4, "o.4", b"4"))
    await becomes(oldest, (1, "o.1", b"1"), (2, "o.2", b"2"))


@case
async def a_mirror_is_purged_alone(jet: Jet) -> None:
    origin = await make_origin(jet, 2)
    mirror = await jet.create_stream("M", mirror=ALL)
    await becomes(mirror, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await mirror.delete_message(2)
    await mirror.purge()
    await origin.delete_message(1)
    await jet.publish("o.3", b"3")
    await becomes(mirror, (3, "o.3", b"3"))


@case
async def a_mirror_follows_rollups_where_they_are_allowed(jet: Jet) -> None:
    await make_origin(jet, 1, allow_rollup_hdrs=True)
    following = await jet.create_stream("M", mirror=ALL, allow_rollup_hdrs=True)
    keeping = await jet.create_stream("N", mirror=ALL)
    for mirror in (following, keeping):
        await becomes(mirror, (1, "o.1", b"1"))
    await jet.publish("o.1", b"all", headers={"Nats-Rollup": "sub"})
    await becomes(following, (2, "o.1", b"all"))
    await becomes(keeping, (1, "o.1", b"1"), (2, "o.1", b"all"))


@case
async def a_mirror_forgets_conditions(jet: Jet) -> None:
    await make_origin(jet, 0)
    mirror = await jet.create_stream("M", mirror=ALL)
    await jet.publish("o.1", b"x", headers={"Nats-Expected-Last-Sequence": "0", "X": "1"})
    await becomes(mirror, (1, "o.1", b"x"))
    assert dict((await mirror.get_message(1)).headers) == {"X": "1"}


@case
async def a_work_queue_is_emptied_by_its_mirror(jet: Jet) -> None:
    origin = await make_origin(jet, 2, retention="workqueue")
    mirror = await jet.create_stream("M", mirror=ALL)
    await becomes(mirror, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await becomes(origin)


@case
async def a_mirror_is_read_by_consumers(jet: Jet) -> None:
    await make_origin(jet, 3)
    mirror = await jet.create_stream("M", mirror=ALL)
    await becomes(mirror, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))
    consumer = await mirror.create_consumer(durable_name="c", filter_subject="o.3")
    (message,) = await consumer.fetch(5, timeout=5)
    assert message.metadata.stream_seq == 3


@case
async def a_mirror_tells_of_its_origin(jet: Jet) -> None:
    await make_origin(jet, 1)
    mirror = await jet.create_stream("M", mirror={"name": "O", "filter_subject": "o.1"})
    await becomes(mirror, (1, "o.1", b"1"))
    told = (await mirror.info()).mirror
    assert told is not None
    assert (told.name, told.lag, told.seq, told.filter_subject) == ("O", 0, 0, "o.1")
    assert told.active.ns >= 0
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
    await make_origin(jet, 1)
    mirror = await jet.create_stream("M", mirror=ALL)
    await becomes(mirror, (1, "o.1", b"1"))
    for wrong in ({"name": "P"}, {"name": "O", "filter_subject": "o.1"}):
        await refused(10055, jet.update_stream("M", mirror=wrong))
    await jet.update_stream("M", mirror=None, subjects=["m"])
    await jet.publish("m", b"own")
    await becomes(mirror, (1, "o.1", b"1"), (2, "m", b"own"))
    await refused(10055, jet.update_stream("M", subjects=[], mirror=ALL))


@case
async def what_no_mirror_can_be(jet: Jet) -> None:
    await make_origin(jet, 0)
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
    await make_origin(jet, 0)
    wrong: dict[int, dict[str, Any]] = {
        10031: {"sources": [ALL]},
        10034: {"subjects": ["m"]},
        10143: {"first_seq": 5},
        10173: {"allow_msg_counter": True},
        10186: {"allow_msg_schedules": True},
        10198: {"allow_atomic": True},
        10209: {"allow_batched": True},
    }
    for code, fields in wrong.items():
        await refused(code, jet.create_stream("M", mirror=ALL, **fields))
    marking = {"subject_delete_marker_ttl": 1, "allow_rollup_hdrs": True}
    await refused(10052, jet.create_stream("M", mirror=ALL, **marking))
