"""The last and the next message of a filter are found without a scan, whatever was stored, removed and undone."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

import pelton
from pelton import Jet, MessageNotFoundError, PeltonError, StoredMessage
from pelton.jet import Stream
from pelton.storage import MessageTable
from pelton.streams import reader, subject_rows
from pelton.subjects import matches

FILTERS = ["rank.1.>", "rank.2.>", "rank.>", "free.>", "*.*.a", "rank.*.b", ">", "none.>"]
SUBJECTS = ["rank.1.a", "rank.1.b", "rank.2.a", "free.1.a", "free.1.b", "free.2", *(f"free.9.{n}" for n in range(9))]


class UndoneError(Exception):
    """A transaction is given up."""


async def stored(stream: Stream) -> list[StoredMessage]:
    found = list[StoredMessage]()
    for seq in range(1, (await stream.info()).state.last_seq + 1):
        with suppress(MessageNotFoundError):
            found.append(await stream.get_message(seq))
    return found


async def change(jet: Jet, stream: Stream, rng: random.Random) -> None:
    messages = [(rng.choice(SUBJECTS), b"") for _ in range(rng.choice([1, 3, 12]))]
    kind = rng.randrange(5)
    if kind == 0:
        with suppress(UndoneError):
            async with jet.transaction() as tx:
                await tx.publish_batch(messages)
                await last_of(stream, "rank.>")
                raise UndoneError
    elif kind == 1:
        await stream.purge(filter=rng.choice(["rank.1.>", "free.>", "rank.2.a"]), keep=rng.choice([0, 1]))
    elif kind == 2:
        with suppress(PeltonError):
            await stream.delete_message(rng.randint(1, max((await stream.info()).state.last_seq, 1)))
    else:
        await jet.publish_batch(messages)


async def last_of(stream: Stream, subject_filter: str) -> int:
    try:
        return (await stream.get_last_message(subject_filter)).seq
    except MessageNotFoundError:
        return 0


async def next_of(stream: Stream, subject_filter: str, seq: int) -> int:
    try:
        return (await stream.get_next_message(subject_filter, seq)).seq
    except MessageNotFoundError:
        return 0


@pytest.mark.parametrize("limits", [{}, {"max_msgs_per_subject": 2}, {"max_msgs": 20}], ids=str)
@pytest.mark.parametrize("seed", range(4))
async def test_it_is_the_last_one_that_is_stored(
    seed: int, limits: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(subject_rows, "MOST_UNCOUNTED", rng.choice([5, 16_384]))
    monkeypatch.setattr(reader, "_FEW_ROWS", rng.choice([3, 1_000]))
    monkeypatch.setattr(reader, "_NEAR", rng.choice([0, 3, 4096]))
    path = tmp_path / "store.pelton"
    async with pelton.open(path, sync="off") as jet, pelton.open(path, sync="off") as other:
        stream = await jet.create_stream("s", subjects=["rank.>", "free.>"], **limits)
        twin = await other.stream("s")
        for _ in range(40):
            await change(*rng.choice([(jet, stream), (other, twin)]), rng)
            there = await stored(stream)
            asked = rng.sample(FILTERS, 4)
            expected = [max((m.seq for m in there if matches(one, m.subject)), default=0) for one in asked]
            for each in (stream, twin):
                assert [await last_of(each, one) for one in asked] == expected
            begin = rng.randint(1, max((one.seq for one in there), default=1))
            following = [one for one in there if one.seq >= begin]
            expected = [min((m.seq for m in following if matches(one, m.subject)), default=0) for one in asked]
            for each in (stream, twin):
                assert [await next_of(each, one, begin) for one in asked] == expected


async def test_what_was_searched_is_not_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[tuple[int, int]]()
    last_where = MessageTable.last_where

    def counted(self: MessageTable, upto: int, condition: object, *, after: int = 0) -> object:
        searched.append((after, upto))
        return last_where(self, upto, condition, after=after)  # type: ignore[arg-type]

    monkeypatch.setattr(MessageTable, "last_where", counted)
    monkeypatch.setattr(subject_rows, "MOST_UNCOUNTED", 50)
    async with pelton.open(tmp_path / "store.pelton", sync="off") as jet:
        stream = await jet.create_stream("s", subjects=["rank.>", "free.>"])
        await jet.publish_batch([("free.1", b"")] * 1_000)
        for _ in range(3):
            assert not await last_of(stream, "rank.>")
        await jet.publish("rank.1", b"")
        await jet.publish_batch([("free.1", b"")] * 10)
        assert await last_of(stream, "rank.>") == 1_001
        assert await last_of(stream, "rank.>") == 1_001
    assert searched == [(1_000, 1_000)] * 3 + [(1_000, 1_011), (1_011, 1_011), (0, 1_001)]
