"""Reading and deleting single messages, and listing streams: every form of the requests."""

from __future__ import annotations

from typing import Any

from pelton.api import MsgDelete, MsgGet, StreamInfoRequest, StreamList, StreamNames, WireMessage
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.table import case, refused

_PAST, _FUTURE = "2020-01-01T00:00:00Z", "2040-01-01T00:00:00Z"


async def _ten(jet: Jet) -> Stream:
    """Return a stream of ten messages, of ``s.0`` and ``s.1`` in turn, the first and the fifth deleted."""
    stream = await jet.create_stream("S", subjects=["s.*"])
    await jet.publish_batch([(f"s.{n % 2}", b"%d" % n) for n in range(10)])
    for seq in (1, 5):
        await stream.delete_message(seq)
    return stream


async def _get(jet: Jet, **request: Any) -> WireMessage:
    return (await jet.backend.call(MsgGet(stream="S", **request))).message


@case
async def by_sequence_or_subject(jet: Jet) -> None:
    await _ten(jet)
    for request, seq in (
        ({"seq": 2}, 2),
        ({"last_by_subj": "s.1"}, 10),
        ({"last_by_subj": "s.0"}, 9),
        ({"last_by_subj": "s.*"}, 10),
        ({"last_by_subj": ">"}, 10),
        ({"next_by_subj": "s.0"}, 3),
        ({"next_by_subj": "s.0", "seq": 4}, 7),
        ({"next_by_subj": "s.*", "seq": 5}, 6),
        ({"next_by_subj": ">"}, 2),
    ):
        assert (await _get(jet, **request)).seq == seq, request


@case
async def from_a_time_on(jet: Jet) -> None:
    stream = await _ten(jet)
    assert (await _get(jet, start_time=_PAST)).seq == 2
    assert (await _get(jet, start_time=_PAST, next_by_subj="s.0")).seq == 3
    at = (await stream.get_message(8)).time
    found = await _get(jet, start_time=at)
    assert (found.seq, found.time) in {(8, at), (7, at), (6, at), (4, at), (3, at), (2, at)}
    await refused(10037, _get(jet, start_time=_FUTURE))
    await refused(10037, _get(jet, start_time=_FUTURE, next_by_subj="s.0"))
    await refused(10025, _get(jet, start_time="yesterday"))


@case
async def what_is_not_there(jet: Jet) -> None:
    await _ten(jet)
    for request in (
        {"seq": 1},
        {"seq": 5},
        {"seq": 99},
        {"last_by_subj": "s.9"},
        {"last_by_subj": "s..9"},
        {"next_by_subj": "s.9"},
        {"next_by_subj": "s.0", "seq": 99},
    ):
        await refused(10037, _get(jet, **request))
    await refused(10059, jet.backend.call(MsgGet(stream="NONE", seq=1)))


@case
async def questions_that_contradict_themselves(jet: Jet) -> None:
    await _ten(jet)
    for request in (
        {},
        {"seq": 0},
        {"seq": 1, "last_by_subj": "s.0"},
        {"next_by_subj": "s.0", "last_by_subj": "s.1"},
        {"start_time": _PAST, "seq": 2},
        {"start_time": _PAST, "last_by_subj": "s.0"},
    ):
        await refused(10003, _get(jet, **request))
    await refused(10025, _get(jet, seq=-1))


@case
async def headers_can_be_left_out(jet: Jet) -> None:
    await jet.create_stream("S", subjects=["s"])
    await jet.publish("s", b"1", headers={"A": "b"})
    for request in ({"seq": 1}, {"last_by_subj": "s"}, {"next_by_subj": "s"}):
        assert (await _get(jet, **request)).hdrs
        bare = await _get(jet, no_hdr=True, **request)
        assert (bare.hdrs, bare.data) == (b"", b"1")


@case
async def deleting_with_and_without_erasing(jet: Jet) -> None:
    stream = await _ten(jet)
    await jet.backend.call(MsgDelete(stream="S", seq=2))
    await jet.backend.call(MsgDelete(stream="S", seq=7, no_erase=True))
    for no_erase in (False, True):
        await refused(10043, jet.backend.call(MsgDelete(stream="S", seq=7, no_erase=no_erase)))
        await refused(10057, jet.backend.call(MsgDelete(stream="S", seq=1, no_erase=no_erase)))
    await refused(10057, jet.backend.call(MsgDelete(stream="S", seq=99)))
    await refused(10025, jet.backend.call(MsgDelete(stream="S", seq=-1)))
    await refused(10059, jet.backend.call(MsgDelete(stream="NONE", seq=1)))
    state = (await stream.info(deleted_details=True)).state
    assert (state.messages, state.first_seq, state.deleted) == (6, 3, [5, 7])


@case
async def deleting_the_last_leaves_its_sequence(jet: Jet) -> None:
    stream = await _ten(jet)
    before = (await stream.info()).state
    await stream.delete_message(10)
    state = (await stream.info(deleted_details=True)).state
    assert (state.last_seq, state.last_ts, state.deleted) == (10, before.last_ts, [5, 10])
    assert (await jet.publish("s.0")).seq == 11


@case
async def deleting_all_one_by_one(jet: Jet) -> None:
    stream = await jet.create_stream("S", subjects=["s"])
    await jet.publish_batch([("s", b"")] * 3)
    for seq in (2, 3, 1):
        await stream.delete_message(seq)
    state = (await stream.info(deleted_details=True)).state
    assert (state.messages, state.bytes, state.num_subjects, state.deleted) == (0, 0, 0, [])
    assert (state.first_seq, state.last_seq, state.num_deleted) == (4, 3, 0)


@case
async def names_come_in_pages(jet: Jet) -> None:
    for name in "ABC":
        await jet.create_stream(name, subjects=[f"{name}.*"])
    for offset, start, names in ((0, 0, "ABC"), (1, 1, "BC"), (3, 3, ""), (9, 3, ""), (-1, 0, "ABC")):
        page = await jet.backend.call(StreamNames(offset=offset))
        assert (page.total, page.offset, page.limit, page.streams) == (3, start, 1024, tuple(names))
    page = await jet.backend.call(StreamNames(subject="B.>", offset=0))
    assert (page.total, page.streams) == (1, ("B",))
    assert (await jet.backend.call(StreamNames(subject="B..x"))).total == 0


@case
async def streams_come_in_pages(jet: Jet) -> None:
    for name in "ABC":
        await jet.create_stream(name, subjects=[f"{name}.*"])
    await jet.publish("B.1")
    page = await jet.backend.call(StreamList(offset=1))
    assert (page.total, page.offset, page.limit) == (3, 1, 256)
    assert [(info.config.name, info.state.messages) for info in page.streams] == [("B", 1), ("C", 0)]
    page = await jet.backend.call(StreamList(subject="A.*", offset=5))
    assert (page.total, page.offset, page.streams) == (1, 1, ())


@case
async def subjects_come_in_pages(jet: Jet) -> None:
    await _ten(jet)
    for subjects_filter, offset, counts, said in (
        (">", 0, {"s.0": 3, "s.1": 5}, (2, 0, 100_000)),
        (">", 1, {"s.1": 5}, (2, 1, 100_000)),
        (">", 9, {}, (2, 9, 100_000)),
        ("s.1", -1, {"s.1": 5}, (1, 0, 100_000)),
        ("t.>", 0, {}, (0, 0, 0)),
        ("s..1", 0, {}, (0, 0, 0)),
        ("", 1, {}, (0, 0, 0)),
    ):
        info = await jet.backend.call(StreamInfoRequest(name="S", subjects_filter=subjects_filter, offset=offset))
        assert (info.state.subjects, (info.total, info.offset, info.limit)) == (counts, said), subjects_filter
