"""Columns that SQLite joins and numpy splits equal those of a scan, and corruption is never delivered."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pelton
from pelton.columns.joined_columns import split_columns, sums_of_columns
from pelton.storage import Database, Fault, MessageTable, subject_condition
from pelton.storage.bulk import BulkRead, Joined, Split, SplitColumns
from tests.storage.test_bulk import rows_of

Rows = list[tuple[Any, ...]]
LENGTHS = st.one_of(st.just(128), st.integers(0, 300), st.integers(32_000, 33_000))
SUBJECTS = st.sampled_from(["s.a", "s.b", "s.é"])
MESSAGES = st.lists(st.tuples(SUBJECTS, LENGTHS), min_size=1, max_size=120)
randbytes = Random(1).randbytes


class Splitting:
    """Splits, and counts the rows that could be split."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, joined: Joined) -> Split | None:
        split = split_columns(joined)
        self.rows += joined.rows if split is not None else 0
        return split


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("splitting") / "s.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("s", subjects=["s.>"])
    return path


def read_all(database: Database, first: int, last: int, split: SplitColumns, **limits: Any) -> tuple[Rows, list[int]]:
    """Return the rows that are read, and those that are damaged."""
    limits = {"condition": None, "limit": 500, "budget": 1 << 20, **limits}
    read = BulkRead(database, 1, sums=sums_of_columns, split=split, **limits)
    rows: Rows = []
    damaged: list[int] = []
    while first <= last:
        found = read.portion(first, last)
        rows += rows_of(found)
        damaged += found.damaged
        assert first <= found.after <= last
        first = found.after + 1
    return rows, damaged


@settings(max_examples=40)
@given(MESSAGES, st.data(), st.integers(32, 200), st.integers(1, 2 << 20), st.booleans())
def test_portions_are_the_rows_of_a_scan(
    store: Path, messages: list[tuple[str, int]], data: st.DataObject, limit: int, budget: int, filtered: bool
) -> None:
    indices = st.sets(st.integers(0, len(messages) - 1), max_size=3)
    removed, with_headers = data.draw(indices), data.draw(st.one_of(st.just(set()), indices))
    with pelton.sync.open(store) as jet:
        before = jet.stream("s").info().state.last_seq
        for each in (slice(0, len(messages) // 2), slice(len(messages) // 2, None)):
            found = list(enumerate(messages))[each]
            jet.publish_batch([(s, randbytes(n), {"H": "1"} if i in with_headers else None) for i, (s, n) in found])
    database = Database(str(store))
    try:
        with database.writing():
            MessageTable(database, 1).remove(before + 1 + index for index in removed)
        condition = subject_condition(["s.a"] if filtered else [])
        first, last = before + 1, before + len(messages)
        rows, damaged = read_all(database, first, last, Splitting(), condition=condition, limit=limit, budget=budget)
        scanned = MessageTable(database, 1).scan(first, last, 1000, condition)
        assert (rows, damaged) == ([row[:5] for row in scanned], [])
    finally:
        database.close()


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("filters", [[], ["s.a"]])
def test_plain_rows_are_read_the_fast_way(tmp_path: Path, filters: list[str], gap: bool) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_stream("s", subjects=["s.>"])
        jet.publish_batch([("s.a" if n % 2 else "s.b", b"%d" % n) for n in range(1000)])
    database = Database(str(tmp_path / "s.pelton"))
    with database.writing():
        MessageTable(database, 1).remove([100] if gap else [])
    splitting = Splitting()
    rows, _ = read_all(database, 1, 1000, splitting, condition=subject_condition(filters))
    wanted = [n for n in range(1, 1001) if not (gap and n == 100) and not (filters and n % 2)]
    assert [row[0] for row in rows] == wanted
    assert splitting.rows == len(wanted)
    database.close()


@pytest.mark.parametrize("payload", [b"payload" * 3, b""])
def test_every_flipped_bit_of_a_row_is_noticed(tmp_path: Path, payload: bytes) -> None:
    path = tmp_path / "s.pelton"
    with pelton.sync.open(path) as jet:
        jet.create_stream("s", subjects=["s.>"])
        jet.publish_batch([(f"s.subject{n}", payload) for n in range(100)])
    whole, damaged = _read_file(path)
    assert (len(whole), damaged) == (100, [])
    content = bytearray(path.read_bytes())
    time, subject = whole[50][1].to_bytes(8), b"s.subject50"
    # The length of the record's header and six types, the columns, of which the checksum has four bytes at least.
    start = content.index(time + subject)
    row = slice(start - 7, start + len(time + subject + payload) + 4)
    unnoticed = []
    for place in range(row.start, row.stop):
        for bit in range(8):
            content[place] ^= 1 << bit
            path.write_bytes(content)
            content[place] ^= 1 << bit
            try:
                rows, damaged = _read_file(path)
            except Fault:
                continue
            assert set(rows) <= set(whole)
            if len(rows) == len(whole) or not damaged:
                unnoticed.append((place - row.start, bit))
    # The value in place of the sequence, which is the row's key, is never read: 0 is as good as any.
    assert unnoticed == [(1, 3)]


def _read_file(path: Path) -> tuple[Rows, list[int]]:
    database = Database(str(path))
    try:
        return read_all(database, 1, 100, split_columns)
    finally:
        database.close()


def test_a_damaged_row_is_named_and_the_fast_way_goes_on(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_stream("s", subjects=["s.>"])
        jet.publish_batch([("s.a", b"payload")] * 5000)
        jet.publish_batch([("s.a", b"payload")] * 5000)
    database = Database(str(tmp_path / "s.pelton"))
    with database.writing():
        database.execute("UPDATE m_1 SET data=x'00' WHERE seq=100")
    splitting = Splitting()
    rows, damaged = read_all(database, 1, 10_000, splitting, limit=256)
    assert damaged == [100]
    assert [row[0] for row in rows] == [seq for seq in range(1, 10_001) if seq != 100]
    assert splitting.rows > 5000
    database.close()


def test_more_than_a_text_may_hold_is_read_in_blocks(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "s.pelton") as jet:
        jet.create_stream("s", subjects=["s.>"])
        jet.publish_batch([("s.a", b"small")] * 500)
        for _ in range(4):
            jet.publish_batch([("s.a", bytes(1 << 20))] * 5)
    database = Database(str(tmp_path / "s.pelton"))
    splitting = Splitting()
    read = BulkRead(database, 1, None, limit=400, budget=4 << 20, sums=sums_of_columns, split=splitting)
    counts, position = [], 1
    while position <= 520:
        found = read.portion(position, 520)
        counts.append(found.messages)
        position = found.after + 1
    # The second began with small ones, and ended with what made four MiB of it.
    assert (counts, splitting.rows) == ([400, 104, 4, 4, 4, 4], 400)
    database.close()
