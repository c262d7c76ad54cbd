"""A consumer whose messages are few among many others' skips those, and none of its own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import pelton
from pelton.consumers import deliver
from pelton.streams import reader, subject_rows
from pelton.subjects import matches

FILTERS: list[tuple[str, ...]] = [("mine.>",), ("mine.a", "mine.b.>"), ("rare", "mine.>"), ("*.a",), ("rare",)]
SUBJECTS = ["mine.a", "mine.b.1", "rare", *["other.1", "other.2"] * 10]


@pytest.mark.parametrize("seed", range(4))
async def test_all_of_its_messages_are_delivered_in_order(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(deliver, "_FAR", rng.choice([0, 3]))
    monkeypatch.setattr(subject_rows, "MOST_UNCOUNTED", rng.choice([4, 30, 16_384]))
    monkeypatch.setattr(reader, "_FEW_ROWS", rng.choice([2, 1_000]))
    async with pelton.open(tmp_path / "store.pelton", sync="off") as jet:
        stream = await jet.create_stream("s", subjects=["mine.>", "rare", "other.*"])
        consumers = [
            await stream.create_consumer(durable_name=f"c{number}", filter_subjects=list(filters))
            for number, filters in enumerate(FILTERS)
        ]
        published, got = list[str](), [list[int]() for _ in FILTERS]
        for _ in range(30):
            subjects = [rng.choice(SUBJECTS[rng.choice([0, 3]) :]) for _ in range(rng.choice([1, 4, 40]))]
            await jet.publish_batch([(subject, b"") for subject in subjects])
            published += subjects
            number = rng.randrange(len(FILTERS))
            messages = await consumers[number].fetch(rng.choice([1, 5, 50]), timeout=0)
            got[number] += [message.delivered.seq for message in messages]
        for number, filters in enumerate(FILTERS):
            while messages := await consumers[number].fetch(100, timeout=0):
                got[number] += [message.delivered.seq for message in messages]
            wanted = [seq for seq, subject in enumerate(published, 1) if any(matches(one, subject) for one in filters)]
            assert got[number] == wanted
            assert (await consumers[number].info()).num_pending == 0
