"""Subjects with a limit take turns, and those with a rank come first."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

import pelton
from pelton.api import AckOp, Delivered, PullRequest
from pelton.consumers import deliver
from pelton.engine.salvage import recount
from pelton.runtime import RankBypass

RANKS = {
    "filter_subjects": ["s.r0.>", "s.r1.>", "s.r2.>", "s.r3.>"],
    "max_ack_pending_subject_ranks": ["s.r0", "s.r1", "s.r2", "s.r3"],
}


async def _consumer(jet: pelton.Jet, **config: object) -> pelton.Consumer:
    stream = await jet.create_stream("s", subjects=["s.>"], retention="workqueue")
    return await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1, **config)


async def _served(consumer: pelton.Consumer, number: int, batch: int = 1) -> list[str]:
    """Take and acknowledge so many messages, ``batch`` at a time; return the last tokens of their subjects."""
    found: list[str] = []
    while len(found) < number and (messages := await consumer.fetch(batch, no_wait=True)):
        found += [message.subject.rpartition(".")[2] for message in messages]
        await consumer.ack(messages)
    return found


async def test_a_subject_with_thousands_of_messages_has_one_turn(jet: pelton.Jet) -> None:
    consumer = await _consumer(jet)
    await jet.publish_batch([("s.hot", b"")] * 10_000 + [("s.cold", b"")])
    assert await _served(consumer, 4) == ["hot", "cold", "hot", "hot"]
    await jet.publish_batch([("s.b", b""), ("s.b", b""), ("s.a", b"")])
    assert await _served(consumer, 6) == ["hot", "b", "a", "hot", "b", "hot"]


async def test_subjects_that_are_served_alike_keep_their_order(jet: pelton.Jet) -> None:
    consumer = await _consumer(jet)
    await jet.publish_batch([(f"s.{name}", b"") for name in "aaabbbcd"])
    assert "".join(await _served(consumer, 8)) == "abcdabab"


async def test_beyond_the_longest_line_the_oldest_subjects_take_turns(
    jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "LONGEST", 4)
    monkeypatch.setattr(deliver, "_READ_AT_LEAST", 1)
    consumer = await _consumer(jet)
    await jet.publish_batch([(f"s.{name}", b"") for name in "aabbccddeeff"])
    assert "".join(await _served(consumer, 12)) == "abcdabcdefef"


async def test_a_pull_reads_only_so_far(jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "READ_AT_MOST", 10)
    consumer = await _consumer(jet)
    await jet.publish_batch([("s.hot", b"")] * 35 + [("s.cold", b"")])
    assert await _served(consumer, 6) == ["hot", "hot", "hot", "hot", "cold", "hot"]


class TestRanks:
    async def test_a_subject_has_the_rank_of_its_next_message(self, jet: pelton.Jet) -> None:
        consumer = await _consumer(jet, **RANKS)
        await jet.publish_batch(
            [("s.r0.a", b""), ("s.r0.b", b""), ("s.r3.b", b""), ("s.r0.c", b""), ("s.r2.d", b""), ("s.r0.d", b"")]
        )
        assert "".join(await _served(consumer, 6)) == "dabbcd"

    async def test_one_of_a_subject_at_a_time_whatever_its_rank(self, jet: pelton.Jet) -> None:
        consumer = await _consumer(jet, **RANKS)
        await jet.publish_batch([("s.r0.a", b"1"), ("s.r3.a", b"2"), ("s.r1.a", b"3")])
        for data in (b"1", b"2", b"3"):
            [message] = await consumer.fetch(10, no_wait=True)
            assert message.data == data
            assert await consumer.fetch(10, no_wait=True) == []
            await message.ack()

    async def test_one_of_eight_is_of_a_lower_rank(self, jet: pelton.Jet) -> None:
        consumer = await _consumer(jet, **RANKS)
        await jet.publish_batch([(f"s.r0.low{n}", b"") for n in range(4)] + [(f"s.r2.{n}", b"") for n in range(30)])
        for batch in (1, 5, 12):
            found = await _served(consumer, 8, batch)
            assert len([name for name in found if name.startswith("low")]) in (1, 2)

    async def test_one_is_found_behind_a_long_line(self, jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deliver, "LONGEST", 4)
        consumer = await _consumer(jet, **RANKS)
        await jet.publish_batch([(f"s.r0.{n}", b"") for n in range(600)] + [("s.r1.first", b"")])
        assert await _served(consumer, 3) == ["first", "0", "1"]

    async def test_ranks_can_be_added_later_and_not_changed(self, jet: pelton.Jet) -> None:
        consumer = await _consumer(jet, filter_subject="s.r0.>")
        await jet.publish_batch([("s.r0.a", b""), ("s.r0.a", b""), ("s.r0.b", b"")])
        [first] = await consumer.fetch(1)
        await jet.publish("s.r1.a")
        stream = await jet.stream("s")
        consumer = await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1, **RANKS)
        await first.ack()
        assert "".join(await _served(consumer, 3)) == "baa"
        fewer = {**RANKS, "max_ack_pending_subject_ranks": ["s.r0", "s.r1"]}
        with pytest.raises(pelton.ApiError, match="can only be added"):
            await stream.create_consumer(durable_name="c", max_ack_pending_per_subject=1, **fewer)

    @pytest.mark.parametrize("ranks", [["s.*"], ["s.a", "s.a.b"], ["s.a", "s.a"], [f"s.{n}" for n in range(9)], [""]])
    async def test_what_no_ranks_are_is_refused(self, jet: pelton.Jet, ranks: list[str]) -> None:
        with pytest.raises(pelton.ConfigError, match="max_ack_pending_subject_ranks"):
            await _consumer(jet, max_ack_pending_subject_ranks=ranks)
        stream = await jet.stream("s")
        with pytest.raises(pelton.ConfigError, match="needs max_ack_pending_per_subject"):
            await stream.create_consumer(durable_name="d", max_ack_pending_subject_ranks=["s.a"])


class _Lines:
    """The lines, modelled plainly: subjects with the messages that were read, and their order."""

    def __init__(self) -> None:
        self.unread: list[tuple[int, str, int]] = []
        self.waiting: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.held: set[str] = set()
        self.line: list[str] = []
        self.bypass = RankBypass()

    def read(self) -> None:
        for seq, name, rank in self.unread:
            self.waiting[name].append((seq, rank))
            if name not in self.held and name not in self.line:
                self.line.append(name)
        self.unread.clear()

    def next(self) -> int:
        ranks = {name: self.waiting[name][0][1] for name in self.line}
        counts = {rank: list(ranks.values()).count(rank) for rank in range(4)}
        rank = self.bypass.next(counts)
        self.bypass = self.bypass.after(rank, counts)
        name = next(name for name in self.line if ranks[name] == rank)
        self.line.remove(name)
        self.held.add(name)
        return self.waiting[name].pop(0)[0]

    def settle(self, name: str) -> None:
        self.held.remove(name)
        if self.waiting[name]:
            self.line.append(name)


@pytest.mark.parametrize("seed", range(4))
async def test_turns_are_those_of_the_model(tmp_path: Path, seed: int) -> None:
    """Two openers of one file take and settle at random."""
    draw, path, lines = random.Random(seed), tmp_path / "a.pelton", _Lines()
    held: list[Delivered] = []
    seq = 0
    async with pelton.open(path, sync="off") as one, pelton.open(path, sync="off") as two:
        await _consumer(one, **RANKS)
        for _ in range(60):
            jet = draw.choice((one, two))
            batch = [(draw.choice("aaabcdef"), draw.choice((0, 0, 0, 1, 2, 3))) for _ in range(draw.randrange(6))]
            if batch:
                await jet.publish_batch([(f"s.r{rank}.{name}", b"") for name, rank in batch])
            for name, rank in batch:
                seq += 1
                lines.unread.append((seq, name, rank))
            wanted = draw.randint(1, 6)
            got = await jet.backend.pull("s", "c", PullRequest(batch=wanted, no_wait=True))
            lines.read()
            assert [delivered.seq for delivered in got] == [lines.next() for _ in range(min(wanted, len(lines.line)))]
            held += got
            settled = draw.sample(held, draw.randint(0, len(held)))
            acks = [AckOp(seq=delivered.seq, consumer_seq=delivered.consumer_seq) for delivered in settled]
            assert not any(await jet.backend.ack("s", "c", acks))
            for delivered in settled:
                held.remove(delivered)
                lines.settle(delivered.subject.rpartition(".")[2])
    assert recount(str(path)) == []
