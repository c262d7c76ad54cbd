"""Reading in bulk: what a scan finds, portion by portion, with every row checked."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pelton
from pelton.storage import BulkRead, Database, MessageTable, find_stream, subject_condition

SIZES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300), st.booleans()), min_size=1, max_size=60)


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
            [(f"s.{token}", bytes([size % 7]) * size, {"H": "1"} if has else None) for token, size, has in messages]
        )
    database = Database(str(store))
    try:
        condition = subject_condition(["s.a"] if filtered else [])
        read = BulkRead(database, 1, condition, limit=limit, budget=budget)
        position, last, rows = before + 1, before + len(messages), []
        while position <= last:
            found = read.portion(position, last)
            assert found.damaged == []
            assert len(found.seqs) <= limit
            rows += zip(found.seqs, found.times, found.subjects, found.headers, found.payloads, strict=True)
            assert found.after >= position
            position = found.after + 1
        scanned = MessageTable(database, 1).scan(before + 1, last, 1000, condition)
        assert rows == [row[:5] for row in scanned]
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
        jet.publish_batch([("s.a", b"payload")] * 200)
    database = Database(str(path))
    try:
        with database.writing():
            database.execute(f"UPDATE m_1 SET {change} WHERE seq=100")
        read = BulkRead(database, 1, None, limit=1000, budget=1 << 20)
        kept, damaged, position = [], [], 1
        while position <= 200:
            found = read.portion(position, 200)
            kept += found.seqs
            damaged += found.damaged
            position = found.after + 1
        assert damaged == [100]
        assert kept == [seq for seq in range(1, 201) if seq != 100]
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
