"""Deliveries that are taken and settled in bulk: the same as one by one, whatever is among them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.api import AckOp, AckRejectedError, Delivered, Outgoing, PullRequest, Settled
from pelton.engine.salvage import recount

EACH_OWN: dict[str, Any] = {}
TRIMMED: dict[str, Any] = {"max_msgs_per_subject": 2}


def done(one: Delivered, kind: Any = "ack") -> AckOp:
    return AckOp(kind=kind, seq=one.seq, consumer_seq=one.consumer_seq)


def record_of(draw: random.Random, seq: int, turn: int) -> Outgoing:
    subject = f"h.done.{seq}" if draw.random() < 0.9 else f"h.failed.{turn % 3}"
    return Outgoing(subject, b"%d" % seq, b"NATS/1.0\r\nA: b\r\n\r\n" if draw.random() < 0.005 else None)


@pytest.mark.parametrize("seed", range(6))
async def test_many_are_settled_like_one(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = tmp_path / "a.pelton"
    history = TRIMMED if seed == 5 else EACH_OWN
    told: Counter[str] = Counter()
    left = set(range(1, 1201))
    async with pelton.open(path, sync="off") as jet:
        stream = await jet.create_stream("W", subjects=["w.*"], retention="workqueue")
        kept = await jet.create_stream("H", subjects=["h.>"], **history)
        subjects = ["w.a"] if seed % 2 else ["w.a", "w.a", "w.b"]
        await jet.publish_batch([(draw.choice(subjects), b"%d" % number) for number in range(1, 1201)])
        await stream.create_consumer(durable_name="c", ack_wait=3600)
        turn = 0
        while left:
            turn += 1
            found = await jet.backend.pull("W", "c", PullRequest(batch=draw.choice([1, 7, 60, 200]), no_wait=True))
            assert [one.data for one in found] == [b"%d" % one.seq for one in found]
            back = {one.seq for one in found if draw.random() < 0.03}
            endings = [
                Settled([], done(one, "nak"))
                if one.seq in back
                else Settled([record_of(draw, one.seq, turn)], done(one))
                for one in found
            ]
            if draw.random() < 0.3:
                late = AckOp(seq=endings[0].ack.seq, consumer_seq=10_000)
                endings.append(Settled([Outgoing("h.done.never", b"")], late))
            draw.shuffle(endings)
            answers = await jet.backend.settle_many(endings, "W", "c")
            for ending, refused in zip(endings, answers, strict=True):
                assert isinstance(refused, AckRejectedError) == (ending.ack.consumer_seq == 10_000)
                if refused is None and ending.ack.kind == "ack":
                    told[ending.messages[0].subject] += 1
                    left.discard(ending.ack.seq)
        state = (await kept.info(subjects_filter=">")).state
        limit = history.get("max_msgs_per_subject", 1200)
        assert state.subjects == {subject: min(count, limit) for subject, count in told.items()}
        work = (await stream.info()).state
        assert (work.messages, work.bytes, work.first_seq, work.last_seq) == (0, 0, 1201, 1200)
    assert recount(str(path)) == []


async def test_what_listens_and_what_is_awaited_hears_of_many(tmp_path: Path) -> None:
    async with pelton.open(tmp_path / "a.pelton") as jet, pelton.open(tmp_path / "a.pelton") as other:
        stream = await jet.create_stream("W", subjects=["w"], retention="workqueue")
        await stream.create_consumer(durable_name="c")
        history = await other.create_stream("H", subjects=["h.*"])
        consumer = await history.create_consumer(durable_name="late", filter_subject="h.90")
        await jet.publish_batch([("w", b"")] * 100)
        found = await jet.backend.pull("W", "c", PullRequest(batch=100))
        endings = [Settled([Outgoing(f"h.{one.seq}", b"x")], done(one)) for one in found]
        pulled, _ = await asyncio.gather(consumer.fetch(1, timeout=60), jet.backend.settle_many(endings, "W", "c"))
        assert [message.subject for message in pulled] == ["h.90"]


async def test_a_damaged_message_among_many_is_passed_by(tmp_path: Path) -> None:
    path = tmp_path / "a.pelton"
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("W", subjects=["w"])
        await stream.create_consumer(durable_name="c")
        await jet.publish_batch([("w", b"%d" % number) for number in range(50)])
        engine: Any = jet.backend
        await engine.stage(lambda: engine.session.db.execute("UPDATE m_1 SET data='x' WHERE seq=20"), durable=True)
        found = await jet.backend.pull("W", "c", PullRequest(batch=50, no_wait=True))
        assert [one.seq for one in found] == [seq for seq in range(1, 51) if seq != 20]
