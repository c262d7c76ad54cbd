"""Many callers share one transaction: each gets its own result, and a failing one fails alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

import pelton
from pelton.api import (
    AckOp,
    AckRejectedError,
    ConsumerNotFoundError,
    NoStreamForSubjectError,
    Outgoing,
    PubAck,
    Settled,
    StreamNotFoundError,
)
from pelton.engine.salvage import recount
from tests.kit.faults import FaultySync
from tests.storage.stores import Unstorable, a_store, last_seq, open_engine


async def outcomes(*calls: Any) -> list[Any]:
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    return [result.seq if isinstance(result, PubAck) else type(result) for result in results]


async def test_refused_publishes_leave_their_neighbours_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    disk = FaultySync()
    async with open_engine(path, sync_file=disk) as jet:
        before = disk.calls
        found = await outcomes(
            jet.publish("s.1"),
            jet.publish("nobody.listens"),
            jet.publish("s.1"),
            jet.publish("s..bad"),
            jet.publish("s.1", expected_last_seq=1),
            jet.publish("s.1", expected_last_seq=5),
            jet.stream("missing"),
        )
        assert found[:4] == [4, NoStreamForSubjectError, 5, pelton.ConfigError]
        assert issubclass(found[4], pelton.api.ExpectationError)
        assert found[5:] == [6, StreamNotFoundError]
        assert disk.calls <= before + 2
    assert recount(str(path)) == []


async def test_arguments_of_a_wrong_kind_harm_only_their_caller(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with pelton.open(path) as jet:
        wrong: Any = "text, not bytes"
        found = await outcomes(
            *(jet.publish("s.1", b"%d" % n) for n in range(20)),
            jet.publish("s.2", wrong),
            jet.publish_batch([("s.3", b"first"), ("s.3", wrong), ("s.3", b"last")]),
            *(jet.publish("s.1", b"%d" % n) for n in range(20)),
        )
        assert found[:20] + found[22:] == list(range(4, 44))
        assert all(issubclass(error, Exception) for error in found[20:22])
        state = (await (await jet.stream("s")).info(subjects_filter=">")).state
        assert state.subjects == {"s.1": 41, "s.2": 1, "s.3": 1}
    assert recount(str(path)) == []


async def test_a_settlement_whose_publish_is_refused_is_undone_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        work = await jet.create_stream("w", subjects=["w.>"], retention="workqueue")
        await jet.create_stream("out", subjects=["out.>"])
        consumer = await work.create_consumer(durable_name="c", max_ack_pending_per_subject=1)
        await jet.publish_batch([(f"w.{n % 4}", b"%d" % n) for n in range(8)])
        held = await consumer.fetch(9)
        assert len(held) == 4

        def settle(n: int, *subjects: str) -> Any:
            ack = AckOp(kind="ack", seq=held[n].delivered.seq, consumer_seq=held[n].delivered.consumer_seq)
            return jet.backend.settle([Outgoing(subject, b"") for subject in subjects], "w", "c", ack)

        found = await asyncio.gather(
            settle(0, "out.0", "out.0"),
            settle(1, "out.1", "nobody.listens"),
            settle(2, "out.2"),
            held[3].ack(),
            settle(3, "out.late"),
            jet.publish("out.free"),
            return_exceptions=True,
        )
        assert [ack.seq for ack in found[0]] == [1, 2]
        assert isinstance(found[1], NoStreamForSubjectError)
        assert [ack.seq for ack in found[2]] == [3]
        assert found[3] is None
        assert isinstance(found[4], AckRejectedError)
        assert await last_seq_of(jet, "out") == 4
        assert [message.subject for message in await consumer.fetch(9)] == ["w.0", "w.2", "w.3"]
        await held[1].ack()
        assert [message.subject for message in await consumer.fetch(9)] == ["w.1"]
    assert recount(str(path)) == []


async def test_a_message_too_large_for_sqlite_fails_alone(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        backend: Any = jet.backend
        # A gigabyte by default.
        backend._db.connection.limit(apsw.SQLITE_LIMIT_LENGTH, 100_000)
        found = await asyncio.gather(
            jet.publish("s.1"), jet.publish("s.2", bytes(200_000)), jet.publish("s.3"), return_exceptions=True
        )
        assert isinstance(found[1], pelton.MessageTooLargeError)
        assert await last_seq_of(jet, "s") == 2


@pytest.mark.parametrize("refused", [False, True])
async def test_each_of_many_settlements_stands_for_itself(tmp_path: Path, refused: bool) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        work = await jet.create_stream("w", subjects=["w.>"], retention="workqueue")
        await jet.create_stream("out", subjects=["out.>"])
        consumer = await work.create_consumer(durable_name="c", max_ack_pending_per_subject=1)
        await jet.publish_batch([(f"w.{n % 4}", b"%d" % n) for n in range(8)])
        held = [message.delivered for message in await consumer.fetch(9)]
        subjects = [["out.0", "out.0"], ["out.1", "nobody.listens"] if refused else [], ["out.late"], ["out.3"]]
        numbers = [held[0].consumer_seq, held[1].consumer_seq, held[2].consumer_seq + 7, held[3].consumer_seq]
        kinds: list[Any] = ["ack", "ack", "ack", "nak"]
        endings = [
            Settled([Outgoing(subject, b"") for subject in mine], AckOp(kind=kind, seq=d.seq, consumer_seq=number))
            for mine, kind, d, number in zip(subjects, kinds, held, numbers, strict=True)
        ]
        found = await jet.backend.settle_many(endings, "w", "c")
        assert [type(answer) for answer in found] == [
            type(None),
            NoStreamForSubjectError if refused else type(None),
            AckRejectedError,
            type(None),
        ]
        assert await last_seq_of(jet, "out") == 3
        again = [message.subject for message in await consumer.fetch(9)]
        assert sorted(again) == (["w.0", "w.3"] if refused else ["w.0", "w.1", "w.3"])
        assert await jet.backend.settle_many([], "w", "c") == []
        gone = await jet.backend.settle_many(endings, "w", "d")
        assert [type(answer) for answer in gone] == [ConsumerNotFoundError] * 4
    assert recount(str(path)) == []


async def last_seq_of(jet: pelton.Jet, stream: str) -> int:
    return (await (await jet.stream(stream)).info()).state.last_seq


async def test_a_rolled_back_group_leaves_no_trace_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    await a_store(path)
    async with pelton.open(path) as jet:
        for _ in range(3):
            found = await outcomes(
                jet.create_stream("t", subjects=["t.>"]),
                jet.publish("t.1", msg_id="x"),
                jet.publish("s.1", Unstorable(), msg_id="z"),
                jet.publish("s.1", b"y", msg_id="y"),
                jet.delete_stream("t"),
            )
            assert found[1] == 1
            assert issubclass(found[2], TypeError)
            assert found[3] == 4
            assert await jet.stream_names() == ["s"]
        assert await last_seq(jet) == 4
    assert recount(str(path)) == []


@pytest.mark.parametrize("address", ["file", "memory:"])
async def test_callers_that_give_up_do_not_disturb_the_others(tmp_path: Path, address: str) -> None:
    path = str(tmp_path / "a.pelton") if address == "file" else address
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        calls = [asyncio.ensure_future(jet.publish("s.1", b"%d" % n)) for n in range(60)]
        await asyncio.sleep(0)
        for call in calls[1::2]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        acked = [ack.seq for ack in results if isinstance(ack, PubAck)]
        assert acked == sorted(set(acked))
        assert len(acked) >= 30
        assert (await jet.publish("s.1")).seq == await last_seq(jet)


async def test_order_of_publishing_is_order_in_the_stream(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton", sync="off") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        acks = await asyncio.gather(
            *(jet.publish("s.1", b"%d" % n) if n % 7 else jet.publish_batch([("s.1", b"%d" % n)]) for n in range(500))
        )
        seqs = [ack.seq if isinstance(ack, PubAck) else ack[0].seq for ack in acks]
        assert seqs == list(range(1, 501))
