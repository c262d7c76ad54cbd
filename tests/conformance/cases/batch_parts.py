"""Atomic batches that are published message by message and committed by the last (ADR-50)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pelton.api import BadRequestError, LimitError, PubAck
from pelton.connect import Jet
from pelton.jet import Stream
from tests.conformance.cases.eventually import taken
from tests.conformance.cases.table import case, refused

_LAST: Final = "Nats-Expected-Last-Sequence"
_MSG_ID: Final = "Nats-Msg-Id"
_STAGED: Final = PubAck("", 0)


async def _stream(jet: Jet, **config: Any) -> Stream:
    return await jet.create_stream("S", subjects=["s.>"], **{"allow_atomic": True, **config})


async def _last(stream: Stream) -> int:
    return (await stream.info()).state.last_seq


async def _part(jet: Jet, batch: str, seq: int, commit: str = "", subject: str = "s.a", **more: str) -> PubAck:
    named = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(seq)}
    if commit:
        named["Nats-Batch-Commit"] = commit
    return await jet.publish(subject, b"%d" % seq, headers={**named, **more})


@case
async def a_stream_must_allow_batches(jet: Jet) -> None:
    await _stream(jet, allow_atomic=False)
    await refused(10174, _part(jet, "x", 1))
    await refused(10174, jet.publish("s.a", headers={"Nats-Batch-Id": "x" * 99}))


@case
async def a_batch_is_stored_when_it_is_committed(jet: Jet) -> None:
    stream = await _stream(jet)
    assert [await _part(jet, "x", seq) for seq in (1, 2)] == [_STAGED] * 2
    assert await _last(stream) == 0
    await jet.publish("s.b")
    ack = await _part(jet, "x", 3, "1")
    assert ack == PubAck("S", 4, batch="x", count=3)
    head = b"NATS/1.0\r\nNats-Batch-Id: x\r\nNats-Batch-Sequence: %d\r\n"
    assert (await stream.get_message(3)).hdrs == head % 2 + b"\r\n"
    assert (await stream.get_message(4)).hdrs == head % 3 + b"Nats-Batch-Commit: 1\r\n\r\n"
    await refused(10176, _part(jet, "x", 4, "1"))


@case
async def a_batch_that_is_said_again_is_one_to_who_takes_it(jet: Jet) -> None:
    await _stream(jet, republish={"src": "s.>", "dest": "again.>"})
    await jet.create_stream("L", subjects=["again.a"])
    taker = await jet.create_stream("M", subjects=["again.b"], allow_atomic=True)
    for subject in ("s.a", "s.b"):
        await _part(jet, subject, 1, subject=subject)
        await _part(jet, subject, 2, "1", subject=subject)
    # L allows no batches; it is asked after M, to give it time.
    consumer = await taker.create_consumer(ack_policy="none")
    assert [message.data for message in await taken(consumer, 2)] == [b"1", b"2"]
    assert await _last(await jet.stream("L")) == 0


@case
async def a_batch_can_be_committed_by_what_is_not_stored(jet: Jet) -> None:
    stream = await _stream(jet)
    await _part(jet, "x", 1)
    await _part(jet, "x", 2, A="b")
    wrong = {_LAST: "99", _MSG_ID: "i", "Nats-Expected-Last-Msg-Id": "x"}
    assert await _part(jet, "x", 3, "eob", **wrong) == PubAck("S", 2, batch="x", count=2)
    expected = b"NATS/1.0\r\nNats-Batch-Id: x\r\nNats-Batch-Sequence: 2\r\nA: b\r\nNats-Batch-Commit: 1\r\n\r\n"
    assert (await stream.get_message(2)).hdrs == expected
    await refused(10176, _part(jet, "y", 1, "eob"))


@case
async def a_batch_of_one_message_is_committed_at_once(jet: Jet) -> None:
    await _stream(jet)
    assert await _part(jet, "x", 1, "1") == PubAck("S", 1, batch="x", count=1)


@case
async def what_is_refused_at_the_commit_ends_the_batch(jet: Jet) -> None:
    stream = await _stream(jet)
    await _part(jet, "x", 1, **{_LAST: "7"})
    await refused(10071, _part(jet, "x", 2, "1"))
    await refused(10176, _part(jet, "x", 2, "1"))
    assert await _last(stream) == 0


@case
async def the_values_of_batch_headers(jet: Jet) -> None:
    await _stream(jet)
    named = {"Nats-Batch-Id": "x"}
    await refused(10175, jet.publish("s.a", headers=named))
    for text in ("-1", "x", "", "1x", "+1", "18446744073709551617"):
        await refused(10175, jet.publish("s.a", headers={**named, "Nats-Batch-Sequence": text}))
    await refused(10176, _part(jet, "x", 0))
    for text in (" 1", "01"):
        assert await jet.publish("s.a", headers={**named, "Nats-Batch-Sequence": text}) == _STAGED
        for commit in ("0", "2", "x", "EOB", "true", "01"):
            await refused(10200, _part(jet, f"with {commit}", 1, commit))
        assert (await _part(jet, "x", 2, " 1")).count == 2
    for batch in ("a" * 64, "\u00fc" * 32, "a b", "a.b", "*"):
        assert (await _part(jet, batch, 1, "1")).batch == batch
    for batch in ("a" * 65, "\u00fc" * 33):
        await refused(10179, _part(jet, batch, 1, "1"))
    assert (await jet.publish("s.a", headers={"Nats-Batch-Id": "", "Nats-Batch-Commit": "x"})).stream == "S"


@case
async def an_invalid_commit_ends_the_batch(jet: Jet) -> None:
    await _stream(jet)
    await _part(jet, "x", 1)
    await refused(10200, _part(jet, "x", 2, "no"))
    await refused(10176, _part(jet, "x", 2, "1"))
    await refused(10176, _part(jet, "y", 2, "no"))


@case
async def a_missing_message_ends_the_batch(jet: Jet) -> None:
    stream = await _stream(jet)
    for wrong in (1, 2, 4):
        for seq in (1, 2):
            await _part(jet, "x", seq)
        await refused(10176, _part(jet, "x", wrong))
        await refused(10176, _part(jet, "x", 3, "1"))
    await refused(10176, _part(jet, "y", 2))
    assert await _last(stream) == 0


@case
async def what_never_was_part_of_a_batch_does_not_end_it(jet: Jet) -> None:
    await _stream(jet, max_msg_size=200)
    await _part(jet, "x", 1)
    await refused(10054, jet.publish("s.a", b"x" * 300, headers={"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "2"}))
    await refused(10175, jet.publish("s.a", headers={"Nats-Batch-Id": "x"}))
    assert (await _part(jet, "x", 2, "1")).count == 2


@case
async def batches_do_not_hinder_each_other(jet: Jet) -> None:
    await _stream(jet)
    await jet.create_stream("T", subjects=["t.>"], allow_atomic=True)
    for batch, subject in (("x", "s.a"), ("y", "s.a"), ("x", "t.a")):
        assert await _part(jet, batch, 1, subject=subject) == _STAGED
    assert await _part(jet, "y", 2, "1") == PubAck("S", 2, batch="y", count=2)
    assert await _part(jet, "x", 2, "1", "t.a") == PubAck("T", 2, batch="x", count=2)
    assert await _part(jet, "x", 2, "1") == PubAck("S", 4, batch="x", count=2)


@case
async def members_may_come_in_one_call(jet: Jet) -> None:
    await _stream(jet)
    named = [{"Nats-Batch-Id": "x", "Nats-Batch-Sequence": str(seq)} for seq in (1, 2, 3)]
    named[2]["Nats-Batch-Commit"] = "1"
    acks = await jet.publish_batch([("s.a", b"", headers) for headers in named])
    assert acks == [_STAGED, _STAGED, PubAck("S", 3, batch="x", count=3)]


@case
async def a_batch_too_large_ends(jet: Jet) -> None:
    stream = await _stream(jet)
    for batch in ("x", "y"):
        acks = await jet.publish_batch(
            [("s.a", b"", {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(seq)}) for seq in range(1, 1001)]
        )
        assert acks == [_STAGED] * 1000
    await refused(10199, _part(jet, "x", 1001, "1"))
    assert (await _part(jet, "y", 1001, "eob")).count == 1000
    await refused(10199, _part(jet, "z", 1001, "no"))
    assert (await _part(jet, "x", 1, "1")).seq == await _last(stream) == 1001


@case
async def fifty_batches_of_a_stream_are_open(jet: Jet) -> None:
    await _stream(jet)
    await jet.create_stream("T", subjects=["t.>"], allow_atomic=True)
    for number in range(50):
        await _part(jet, str(number), 1)
    for commit in ("", "1", "eob"):
        assert isinstance(await refused(10210, _part(jet, "more", 1, commit)), LimitError)
    assert (await _part(jet, "more", 1, "1", "t.a")).count == 1
    assert (await _part(jet, "7", 2, "1")).count == 2
    assert (await _part(jet, "more", 1, "1")).count == 1


@case
async def an_api_level_that_nobody_has(jet: Jet) -> None:
    await _stream(jet)
    for text in ("99", "x"):
        await _part(jet, "x", 1)
        await refused(10185, _part(jet, "x", 2, **{"Nats-Required-Api-Level": text}))
        await refused(10176, _part(jet, "x", 2, "1"))
    assert (await _part(jet, "x", 1, "1", **{"Nats-Required-Api-Level": "1"})).count == 1


@case
async def a_purge_leaves_open_batches(jet: Jet) -> None:
    stream = await _stream(jet)
    await _part(jet, "x", 1)
    await stream.purge()
    assert (await _part(jet, "x", 2, "1")).seq == 2


@case
async def open_batches_end_with_the_setting_and_the_stream(jet: Jet) -> None:
    stream = await _stream(jet)
    await _part(jet, "x", 1)
    await jet.update_stream("S", allow_atomic=False)
    await jet.update_stream("S", allow_atomic=True)
    await refused(10176, _part(jet, "x", 2, "1"))
    await _part(jet, "x", 1)
    await stream.delete()
    await _stream(jet)
    assert isinstance(await refused(10176, _part(jet, "x", 2, "1")), BadRequestError)


@case
async def an_advisory_tells_of_an_abandoned_batch(jet: Jet) -> None:
    await _stream(jet)
    told = await jet.create_stream("A", subjects=["$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.*"])
    consumer = await told.create_consumer()
    await _part(jet, "x", 1)
    await refused(10176, _part(jet, "x", 3))
    await refused(10185, _part(jet, "y", 1, **{"Nats-Required-Api-Level": "99"}))
    await refused(10176, _part(jet, "z", 1, "eob"))
    found = await consumer.fetch(1) + await consumer.fetch(1) + await consumer.fetch(1)
    advisories = [msgspec.json.decode(message.data) for message in found]
    assert [(told["batch"], told["reason"]) for told in advisories] == [
        ("x", "incomplete"),
        ("y", "unsupported"),
        ("z", "incomplete"),
    ]
    assert all(told["type"] == "io.nats.jetstream.advisory.v1.stream_batch_abandoned" for told in advisories)
    assert all(told["stream"] == "S" and told["id"] and told["timestamp"] for told in advisories)
    assert {message.subject for message in found} == {"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S"}
