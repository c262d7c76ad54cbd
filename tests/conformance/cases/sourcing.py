"""Sources (ADR-59, ADR-60): streams that take messages from others, besides their own."""

from __future__ import annotations

from typing import Any

from pelton.connect import Jet
from tests.conformance.cases.eventually import eventually
from tests.conformance.cases.sourced import ALL, SOURCE_HEADER, becomes, data_of, make_origin, settled, stored
from tests.conformance.cases.table import case, only, refused


@case
async def a_source_brings_what_is_there_and_what_comes(jet: Jet) -> None:
    await make_origin(jet, 2)
    stream = await jet.create_stream("S", sources=[ALL])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await jet.publish("o.3", b"3")
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))


@case
async def a_sourced_message_tells_where_it_is_from(jet: Jet) -> None:
    await jet.create_stream("O", subjects=["o.>"])
    await jet.publish("o.1", b"a", headers={"X": "1", "Nats-Expected-Stream": "O"})
    stream = await jet.create_stream("S", sources=[ALL])
    await becomes(stream, (1, "o.1", b"a"))
    headers = (await stream.get_message(1)).headers
    assert set(headers) == {"X", SOURCE_HEADER}
    *words, identity = headers[SOURCE_HEADER].split(" ")
    assert words == ["O", "1", ">", ">", "o.1"]
    assert len(identity) == 8


@case
async def the_last_stream_on_the_way_is_told(jet: Jet) -> None:
    await make_origin(jet, 1)
    await jet.create_stream("S", sources=[ALL])
    last = await jet.create_stream("T", sources=[{"name": "S"}])
    await becomes(last, (1, "o.1", b"1"))
    assert (await last.get_message(1)).headers[SOURCE_HEADER].startswith("S 1 > > o.1 ")


@case
async def a_publisher_cannot_say_it(jet: Jet) -> None:
    await make_origin(jet, 0)
    await jet.create_stream("S", subjects=["s"], sources=[ALL])
    await refused(10227, jet.publish("s", b"", headers={SOURCE_HEADER: "O 1 > > o.1 abcdefgh"}))


@case
async def a_filter_takes_a_part(jet: Jet) -> None:
    await make_origin(jet)
    stream = await jet.create_stream("S", sources=[{"name": "O", "filter_subject": "o.2"}])
    await becomes(stream, (1, "o.2", b"2"))
    assert (await stream.get_message(1)).headers[SOURCE_HEADER].startswith("O 2 o.2 > o.2 ")
    source = await settled(stream, 2)
    assert (source.name, source.lag, source.filter_subject) == ("O", 0, "o.2")


@case
async def transforms_take_parts_and_rename_them(jet: Jet) -> None:
    await make_origin(jet)
    transforms = [{"src": "o.1", "dest": "n.1"}, {"src": "o.3", "dest": ""}]
    stream = await jet.create_stream("S", sources=[{"name": "O", "subject_transforms": transforms}])
    await becomes(stream, (1, "n.1", b"1"), (2, "o.3", b"3"))
    assert (await stream.get_message(1)).headers[SOURCE_HEADER].startswith("O 1 o.1\fo.3 n.1\f> o.1 ")


@case
async def the_transform_of_the_stream_comes_after_that_of_the_source(jet: Jet) -> None:
    await make_origin(jet, 1)
    source = {"name": "O", "subject_transforms": [{"src": "o.*", "dest": "n.{{wildcard(1)}}.x"}]}
    stream = await jet.create_stream("S", sources=[source], subject_transform={"src": "n.>", "dest": "m.>"})
    await becomes(stream, (1, "m.1.x", b"1"))


@case
async def a_source_begins_where_it_is_told(jet: Jet) -> None:
    origin = await make_origin(jet)
    second = (await origin.get_message(2)).time
    by_seq = await jet.create_stream("S", sources=[{"name": "O", "opt_start_seq": 3}])
    by_time = await jet.create_stream("T", sources=[{"name": "O", "opt_start_time": second}])
    await becomes(by_seq, (1, "o.3", b"3"))
    await becomes(by_time, (1, "o.2", b"2"), (2, "o.3", b"3"))


@case
async def many_sources_and_own_subjects(jet: Jet) -> None:
    for name in "ABC":
        await jet.create_stream(name, subjects=[f"{name}.>"])
        await jet.publish(f"{name}.1", name.encode())
    stream = await jet.create_stream("S", subjects=["s"], sources=[{"name": name} for name in "ABC"])
    await jet.publish("s", b"own")

    async def found() -> list[bytes]:
        return sorted(await data_of(stream))

    await eventually(found, [b"A", b"B", b"C", b"own"])


@case
async def an_origin_is_sourced_twice_with_other_filters(jet: Jet) -> None:
    await make_origin(jet)
    stream = await jet.create_stream("S", sources=[ALL, {"name": "O", "filter_subject": "o.1"}])

    async def found() -> list[bytes]:
        return sorted(await data_of(stream))

    await eventually(found, [b"1", b"1", b"2", b"3"])


@case
async def an_origin_may_come_later(jet: Jet) -> None:
    stream = await jet.create_stream("S", sources=[{"name": "LATER"}])
    await jet.create_stream("LATER", subjects=["l"])
    await jet.publish("l", b"x")
    await becomes(stream, (1, "l", b"x"))


@case
async def a_source_is_added_removed_and_added_again(jet: Jet) -> None:
    await make_origin(jet, 2)
    await jet.create_stream("P", subjects=["p"])
    await jet.publish("p", b"p")
    stream = await jet.create_stream("S", sources=[ALL])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await jet.update_stream("S", sources=[ALL, {"name": "P"}])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "p", b"p"))
    await jet.update_stream("S", sources=[{"name": "P"}])
    await jet.publish("o.3", b"3")
    await jet.update_stream("S", sources=[ALL, {"name": "P"}])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "p", b"p"), (4, "o.3", b"3"))


@case
async def another_filter_is_another_source(jet: Jet) -> None:
    await make_origin(jet, 2)
    stream = await jet.create_stream("S", sources=[ALL])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await jet.update_stream("S", sources=[{"name": "O", "filter_subject": "o.1"}])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.1", b"1"))


@case
async def another_start_of_the_same_source_changes_nothing(jet: Jet) -> None:
    await make_origin(jet, 2)
    stream = await jet.create_stream("S", sources=[ALL])
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await jet.update_stream("S", sources=[{"name": "O", "opt_start_seq": 1}])
    await jet.publish("o.3", b"3")
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))


@case
async def a_purge_is_not_filled_again(jet: Jet) -> None:
    await make_origin(jet, 2)
    stream = await jet.create_stream("S", sources=[ALL])
    await settled(stream, 2)
    await stream.purge()
    await jet.publish("o.3", b"3")
    await becomes(stream, (3, "o.3", b"3"))


@case
async def without_sources_it_is_a_stream_of_its_own(jet: Jet) -> None:
    await make_origin(jet, 1)
    stream = await jet.create_stream("S", sources=[ALL])
    await becomes(stream, (1, "o.1", b"1"))
    info = await jet.update_stream("S", sources=[])
    assert (await info.info()).config.subjects == ("S",)
    await jet.publish("S", b"own")
    await becomes(stream, (1, "o.1", b"1"), (2, "S", b"own"))


@case
async def limits_of_the_stream_hold_for_what_is_sourced(jet: Jet) -> None:
    await make_origin(jet, 5)
    stream = await jet.create_stream("S", sources=[ALL], max_msgs=2)
    await becomes(stream, (4, "o.4", b"4"), (5, "o.5", b"5"))


@case
async def what_there_is_no_room_for_waits(jet: Jet) -> None:
    await make_origin(jet, 3)
    stream = await jet.create_stream("S", sources=[ALL], max_msgs=2, discard="new")
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"))
    await stream.delete_message(1)
    await becomes(stream, (2, "o.2", b"2"), (3, "o.3", b"3"))


@case
async def duplicates_are_dropped_within_the_window(jet: Jet) -> None:
    for name in "OP":
        await jet.create_stream(name, subjects=[f"{name}.>"])
        await jet.publish(f"{name}.1", name.encode(), msg_id="same")
    stream = await jet.create_stream("S", sources=[ALL], duplicate_window=100)
    await becomes(stream, (1, "O.1", b"O"))
    await jet.update_stream("S", sources=[ALL, {"name": "P"}])
    await jet.publish("P.2", b"after")
    await becomes(stream, (1, "O.1", b"O"), (2, "P.2", b"after"))


@case
async def without_a_window_ids_mean_nothing(jet: Jet) -> None:
    for name in "OP":
        await jet.create_stream(name, subjects=[f"{name}.>"])
        await jet.publish(f"{name}.1", b"x", msg_id="same")
    stream = await jet.create_stream("S", sources=[ALL, {"name": "P"}])
    await eventually(lambda: data_of(stream), [b"x", b"x"])
    assert (await stream.info()).config.duplicate_window == 0


@case
async def a_rollup_is_followed_where_it_is_allowed(jet: Jet) -> None:
    await make_origin(jet, 1, allow_rollup_hdrs=True)
    following = await jet.create_stream("S", sources=[ALL], allow_rollup_hdrs=True)
    keeping = await jet.create_stream("T", sources=[ALL])
    for stream in (following, keeping):
        await becomes(stream, (1, "o.1", b"1"))
    await jet.publish("o.1", b"all", headers={"Nats-Rollup": "sub"})
    await becomes(following, (2, "o.1", b"all"))
    await becomes(keeping, (1, "o.1", b"1"), (2, "o.1", b"all"))
    assert (await keeping.get_message(2)).headers["Nats-Rollup"] == "sub"


@case
async def a_time_to_live_is_kept_where_it_is_not_allowed(jet: Jet) -> None:
    await make_origin(jet, 0, allow_msg_ttl=True)
    stream = await jet.create_stream("S", sources=[ALL])
    await jet.publish("o.1", b"x", headers={"Nats-TTL": "1h"})
    await becomes(stream, (1, "o.1", b"x"))
    assert (await stream.get_message(1)).headers["Nats-TTL"] == "1h"


@case
async def a_work_queue_is_emptied_by_its_source(jet: Jet) -> None:
    origin = await make_origin(jet, 2, retention="workqueue")
    stream = await jet.create_stream("S", sources=[ALL])
    await jet.publish("o.3", b"3")
    await becomes(stream, (1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.3", b"3"))
    await becomes(origin)


@case
async def interest_is_that_of_the_source(jet: Jet) -> None:
    origin = await make_origin(jet, 2, retention="interest")
    stream = await jet.create_stream("S", sources=[ALL])

    async def interested() -> bool:
        """Whether a message published now is sourced; the server takes some time."""
        await jet.publish("o.x", b"x")
        return bool(await data_of(stream))

    await eventually(interested, True)
    await becomes(origin)
    assert set(await data_of(stream)) == {b"x"}


@only("engine", "a server makes a consumer that everybody sees, and leaves it behind when the stream is deleted")
async def a_source_is_no_consumer(jet: Jet) -> None:
    origin = await make_origin(jet, 2, retention="workqueue")
    await jet.create_stream("S", sources=[ALL])
    assert (await origin.info()).state.consumer_count == 0


@case
async def counters_add_up(jet: Jet) -> None:
    for name, added in (("A", 5), ("B", 7)):
        await jet.create_stream(name, subjects=[f"{name}.>"], allow_msg_counter=True)
        await jet.publish(f"{name}.1", b"", headers={"Nats-Incr": str(added)})
    sources = [{"name": name, "subject_transforms": [{"src": f"{name}.>", "dest": "t.>"}]} for name in "AB"]
    stream = await jet.create_stream("S", sources=sources, allow_msg_counter=True)

    async def last() -> bytes:
        found = await data_of(stream)
        return found[-1] if len(found) >= 2 else b""

    await eventually(last, b'{"val":"12"}')
    await jet.publish("A.1", b"", headers={"Nats-Incr": "-2"})
    await eventually(last, b'{"val":"10"}')
    headers = (await stream.get_message(3)).headers
    assert headers["Nats-Counter-Sources"] == '{"A":{"A.1":"3"},"B":{"B.1":"7"}}'
    assert headers["Nats-Incr"] == "-2"
    final = await jet.create_stream("T", sources=[{"name": "S"}], allow_msg_counter=True)
    await eventually(lambda: data_of(final), await data_of(stream))
    assert (await final.get_message(3)).headers["Nats-Counter-Sources"] == '{"S":{"t.1":"10"}}'


@case
async def a_counter_is_copied_where_nothing_counts(jet: Jet) -> None:
    await jet.create_stream("O", subjects=["o.>"], allow_msg_counter=True)
    await jet.publish("o.1", b"", headers={"Nats-Incr": "5"})
    stream = await jet.create_stream("S", sources=[ALL])
    await becomes(stream, (1, "o.1", b'{"val":"5"}'))


@case
async def an_origin_that_is_made_again_is_another_one(jet: Jet) -> None:
    await make_origin(jet, 2)
    stream = await jet.create_stream("S", sources=[ALL])
    await settled(stream, 2)
    await jet.delete_stream("O")
    await make_origin(jet, 1)

    async def found() -> int:
        return len(await data_of(stream))

    # A server notices after about ten seconds.
    for _ in range(6):
        try:
            await eventually(found, 3)
        except AssertionError:
            continue
        break
    assert await stored(stream) == [(1, "o.1", b"1"), (2, "o.2", b"2"), (3, "o.1", b"1")]


@case
async def what_no_source_can_be(jet: Jet) -> None:
    await make_origin(jet, 0)
    both = {"filter_subject": "o.1", "subject_transforms": [{"src": "o.1", "dest": "x"}]}
    overlapping = [{"src": "o.>", "dest": "x.>"}, {"src": "o.1", "dest": "y"}]
    wrong: dict[int, list[dict[str, Any]]] = {
        10140: [ALL, {"name": "O", "opt_start_seq": 2}],
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
    await refused(10187, jet.create_stream("S", sources=[ALL], allow_msg_schedules=True))
    await jet.create_stream("S", sources=[ALL])
    await refused(10140, jet.update_stream("S", sources=[ALL, ALL]))


@case
async def no_stream_takes_from_itself(jet: Jet) -> None:
    await make_origin(jet, 0)
    await jet.create_stream("A", subjects=["a.>"], sources=[ALL])
    await jet.create_stream("B", subjects=["b.>"], sources=[{"name": "A"}])
    error = await refused(10052, jet.update_stream("O", subjects=["o.>"], sources=[{"name": "B"}]))
    assert error.description == "detected cycle"
    await jet.create_stream("C", mirror={"name": "D"})
    await refused(10052, jet.create_stream("D", subjects=["d"], sources=[{"name": "C"}]))
