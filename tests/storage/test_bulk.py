"""Reading in bulk: the results of a scan, portion by portion, with every row checked."""

from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pelton
from pelton.storage import Database, MessageTable, subject_condition
from pelton.storage.bulk import BulkRead, Portion, find_stream

# Some payloads are read one by one; "é" is one character, and two bytes.
LENGTHS = st.one_of(st.integers(0, 300), st.integers(32_000, 33_000))
SIZES = st.lists(st.tuples(st.sampled_from(["a", "b", "é"]), LENGTHS, st.booleans()), min_size=1, max_size=60)

randbytes = Random(1).randbytes


def integers(column: bytes, kind: str) -> list[int]:
    return memoryview(column).cast(kind).tolist()  # type: ignore[call-overload]  # "q" or "i"


def split(joined: bytes, lengths: bytes) -> list[bytes]:
    return [joined[start:end] for start, end in pairwise(accumulate(integers(lengths, "i"), initial=0))]


def rows_of(found: Portion) -> list[tuple[Any, ...]]:
    subjects = [subject.decode() for subject in split(found.subjects, found.subject_lengths)]
    payloads = split(found.payloads, found.payload_lengths)
    numbers = integers(found.seqs, "q"), integers(found.times, "q")
    rows = list(zip(*numbers, subjects, found.headers, payloads, strict=True))
    assert len(rows) == found.messages
    return rows


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bulk") / "s.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("s", subjects=["s.>"], compression="s2")
    return path


@given(SIZES, st.integers(1, 20), st.integers(1, 2000), st.booleans())
def test_portions_are_the_rows_of_a_scan(
    store: Path, messages: list[tuple[str, int, bool]], limit: int, budget: int, filtered: bool
) -> None:
    with pelton.sync.open(store) as jet:
        before = jet.stream("s").info().state.last_seq
        jet.publish_batch(
            [
                (f"s.{token}", (bytes([size % 7]) * size if size % 2 else randbytes(size)), {"H": "1"} if has else None)
                for token, size, has in messages
            ]
        )
    database = Database(str(store))
    try:
        condition = subject_condition(["s.a"] if filtered else [])
        read = BulkRead(database, 1, condition, limit=limit, budget=budget)
        position, last, rows = before + 1, before + len(messages), []
        while position <= last:
            found = read.portion(position, last)
            assert found.damaged == []
            assert found.messages <= limit
            rows += rows_of(found)
            assert found.after >= position
            position = found.after + 1
        scanned = MessageTable(database, 1).scan(before + 1, last, 1000, condition)
        assert rows == [row[:5] for row in scanned]
    finally:
        database.close()


def test_a_block_holds_no_more_when_payloads_grow(tmp_path: Path) -> None:
    path = tmp_path / "s.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("s", subjects=["s.>"])
        jet.publish_batch([("s.a", b"small")] * 2000)
        for _ in range(8):
            jet.publish_batch([("s.a", bytes(1 << 20))] * 5)
    database = Database(str(path))
    try:
        read = BulkRead(database, 1, None, limit=5000, budget=4 << 20)
        counts, position = [], 1
        while position <= 2040:
            found = read.portion(position, 2040)
            counts.append(found.messages)
            position = found.after + 1
        assert counts == [2004] + [4] * 9
    finally:
        database.close()


@pytest.mark.parametrize(
    "change",
    [
        "data=x'00'",
        "ts=ts+1",
        "subject='other'",
        "crc=crc+1",
        "hdr=x'00'",
        "subject=CAST(x'ff' AS TEXT)",
        "data='text'",
    ],
)
def test_damaged_rows_are_named_and_their_neighbours_read(tmp_path: Path, change: str) -> None:
    path = tmp_path / "s.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("s", subjects=["s.>"])
        jet.publish_batch([("s.a", b"payload")] * 2000)
    database = Database(str(path))
    try:
        with database.writing():
            database.execute(f"UPDATE m_1 SET {change} WHERE seq=100")
        read = BulkRead(database, 1, None, limit=1500, budget=1 << 20)
        kept, damaged, position = [], [], 1
        while position <= 2000:
            found = read.portion(position, 2000)
            kept += integers(found.seqs, "q")
            damaged += found.damaged
            position = found.after + 1
        assert damaged == [100]
        assert kept == [seq for seq in range(1, 2001) if seq != 100]
    finally:
        database.close()


def test_a_stream_is_found_by_name_and_gone_when_deleted(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_stream("s", subjects=["s.>"])
        database = Database(str(tmp_path / "s.pelton"))
        found = find_stream(database, "s")
        assert found is not None
        read = BulkRead(database, found.id, None, limit=10, budget=1000)
        assert read.portion(1, 5).after == 5
        jet.delete_stream("s")
        assert find_stream(database, "s") is None
        with pytest.raises(LookupError):
            read.portion(1, 5)
        database.close()
