"""Subjects are counted later than their messages are stored; no reader of any process can tell."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.connect import Jet
from pelton.engine.salvage import recount
from pelton.storage import Database, MessageTable
from pelton.streams import subject_rows

SUBJECTS = [f"s.{number}" for number in range(9)]


@pytest.fixture(params=[(7, 2), (40, 1), (40, 100)], ids=str)
def _bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    most, few = request.param
    monkeypatch.setattr(subject_rows, "MOST_UNCOUNTED", most)
    monkeypatch.setattr(subject_rows, "FEW_SUBJECTS", few)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pelton"


@pytest.fixture
async def jets(path: Path) -> AsyncIterator[list[Jet]]:
    async with pelton.open(path, sync="off") as one, pelton.open(path, sync="off") as two:
        await one.create_stream("s", subjects=["s.>"], allow_direct=True, allow_rollup_hdrs=True)
        yield [one, two]


def counts(path: Path) -> tuple[int, dict[str, tuple[int, int, int]]]:
    """Return up to which sequence subjects are counted, and their rows."""
    database = Database(str(path))
    upto = database.value("SELECT subjects_upto FROM stream_state")
    rows = {
        name: tuple(numbers) for name, *numbers in database.execute("SELECT subject, first, last, msgs FROM subjects")
    }
    database.close()
    return upto, rows


class Reference:
    """The subject of each stored message."""

    def __init__(self) -> None:
        self.last = 0
        self.there: dict[int, str] = {}

    def add(self, *subjects: str) -> None:
        for subject in subjects:
            self.last += 1
            self.there[self.last] = subject

    def remove(self, *sequences: int) -> None:
        for seq in sequences:
            del self.there[seq]

    def trim(self, limit: int) -> None:
        for subject in SUBJECTS if limit else ():
            self.remove(*self.of(subject)[:-limit])

    def of(self, subject: str) -> list[int]:
        return [seq for seq, each in self.there.items() if each == subject]


async def act(jet: Jet, draw: random.Random, model: Reference) -> None:
    """Do something that changes the subjects."""
    stream = await jet.stream("s")
    subject, kind = draw.choice(SUBJECTS), draw.randrange(8)
    if kind < 2:
        await jet.publish(subject)
        model.add(subject)
    elif kind < 4:
        number = draw.randrange(1, 30)
        subjects = [subject] * number if draw.randrange(2) else draw.choices(SUBJECTS, k=number)
        await jet.publish_batch([(each, b"") for each in subjects])
        model.add(*subjects)
    elif kind == 4 and model.there:
        seq = draw.choice(list(model.there))
        await stream.delete_message(seq)
        model.remove(seq)
    elif kind == 5:
        keep = draw.randrange(3)
        await stream.purge(filter=subject, keep=keep)
        model.remove(*model.of(subject)[: -keep or None])
    elif kind == 6:
        await jet.publish(subject, headers={"Nats-Rollup": "sub"})
        model.add(subject)
        model.remove(*model.of(subject)[:-1])
    elif not draw.randrange(4):
        await stream.purge()
        model.there.clear()


async def compare(jet: Jet, draw: random.Random, model: Reference, limit: int = 0) -> None:
    """Ask in every way that uses the counts of subjects."""
    stream, subject = await jet.stream("s"), draw.choice(SUBJECTS)
    asked = await stream.info(subjects_filter=">")
    counted = Counter(model.there.values())
    assert (asked.state.subjects or {}) == dict(counted)
    assert asked.state.num_subjects == len(counted)
    found = model.of(subject)
    if found:
        assert (await stream.get_last_message(subject)).seq == found[-1]
        assert (await stream.get_next_message(subject)).seq == found[0]
        await jet.publish(subject, expected_last_subject_seq=found[-1])
        model.add(subject)
        model.trim(limit)
    else:
        with pytest.raises(pelton.MessageNotFoundError):
            await stream.get_last_message(subject)
    consumer = await stream.create_consumer(filter_subject=subject, inactive_threshold=60)
    assert (await consumer.info()).num_pending == len(model.of(subject))
    upto = draw.randrange(1, model.last + 1) if model.last else 0
    lasts = {each: seq for seq, each in model.there.items() if not upto or seq <= upto}
    if lasts:
        heads = await stream.get_last_messages("s.*", up_to_seq=upto)
        assert [head.seq for head in heads] == sorted(lasts.values())


@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("seed", range(6))
async def test_every_reader_counts_what_is_there(seed: int, path: Path, jets: list[Jet]) -> None:
    draw, model = random.Random(seed), Reference()
    for _ in range(60):
        await act(draw.choice(jets), draw, model)
        if not draw.randrange(3):
            await compare(draw.choice(jets), draw, model)
    assert recount(str(path)) == []


@pytest.mark.usefixtures("_bounds")
@pytest.mark.parametrize("seed", range(4))
async def test_a_limit_per_subject_that_comes_and_goes(seed: int, path: Path, jets: list[Jet]) -> None:
    draw, model = random.Random(seed), Reference()
    for limit in (-1, 2, -1, 1, -1):
        await draw.choice(jets).update_stream("s", max_msgs_per_subject=limit)
        for _ in range(8):
            subjects = draw.choices(SUBJECTS, k=draw.randrange(1, 12))
            await draw.choice(jets).publish_batch([(each, b"") for each in subjects])
            model.add(*subjects)
        model.trim(max(limit, 0))
        await compare(draw.choice(jets), draw, model, max(limit, 0))
        assert recount(str(path)) == []
        if limit > 0:
            assert counts(path)[0] == model.last


async def test_messages_of_a_work_queue_that_are_settled_soon_are_never_counted(path: Path) -> None:
    async with pelton.open(path, sync="off") as jet:
        stream = await jet.create_stream("w", subjects=["w.>"], retention="workqueue")
        consumer = await stream.create_consumer(durable_name="c", ack_policy="explicit")
        for number in range(20):
            await jet.publish(f"w.{number}")
            for message in await consumer.fetch(1, timeout=60):
                await message.ack()
        assert counts(path) == (0, {})
    assert recount(str(path)) == []


async def test_a_stream_of_many_subjects_is_counted_before_too_many_messages_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject_rows, "MOST_UNCOUNTED", 100)
    async with pelton.open(path, sync="off") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        for begin in range(0, 250, 50):
            await jet.publish_batch([(f"s.{number}", b"") for number in range(begin, begin + 50)])
        upto, rows = counts(path)
        assert upto == 200
        assert rows["s.199"] == (200, 200, 1)
        assert len(rows) == 200
    assert recount(str(path)) == []


async def test_a_wrong_count_is_found(path: Path, jets: list[Jet]) -> None:
    await jets[0].publish_batch([("s.1", b""), ("s.2", b"")])
    assert recount(str(path)) == []
    database = Database(str(path))
    database.execute("UPDATE stream_state SET subjects_upto=1")
    database.close()
    assert any("'s.1'" in problem for problem in recount(str(path)))
    database = Database(str(path))
    database.execute("UPDATE stream_state SET subjects_upto=3")
    database.close()
    assert any("counted up to 3" in problem for problem in recount(str(path)))


async def test_a_lower_limit_per_subject_reads_no_message_for_each_subject(
    jet: pelton.Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await jet.create_stream("s", subjects=["s.>"], allow_direct=True)
    await jet.publish_batch([(f"s.{n % 20 if n % 3 else 7}", b"") for n in range(200)])
    before = await stream.get_messages(1000)
    passes = 0
    crowded = subject_rows.SubjectRows.in_crowded

    def count_passes(*args: Any) -> Any:
        nonlocal passes
        passes += 1
        return crowded(*args)

    monkeypatch.setattr(subject_rows.SubjectRows, "in_crowded", count_passes)
    monkeypatch.setattr(MessageTable, "remove_oldest_of", None)
    await jet.update_stream("s", max_msgs_per_subject=3)
    newest: dict[str, list[int]] = {}
    for message in before:
        newest[message.subject] = [*newest.get(message.subject, ()), message.seq][-3:]
    left = await stream.get_messages(1000)
    assert [message.seq for message in left] == sorted(seq for kept in newest.values() for seq in kept)
    # 128 messages are removed by one step; the last pass is that of the transaction which changes the limits.
    assert passes == 3
    state = (await stream.info(subjects_filter="s.>")).state
    assert state.messages == len(left)
    assert state.subjects == {subject: len(kept) for subject, kept in newest.items()}
