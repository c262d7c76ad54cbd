"""Rows packed for a store's bulk append."""

from array import array
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.spark import columns
from pelton.spark.columns import pack, rebatch

SUBJECT = st.text("abé.😀", min_size=1, max_size=5)
ROWS = st.lists(st.tuples(SUBJECT, st.binary(max_size=4)), min_size=1, max_size=30)


def columns_of(rows: list[tuple[str, bytes]]) -> tuple[pa.StringArray, pa.BinaryArray]:
    return pa.array([subject for subject, _ in rows], pa.string()), pa.array([data for _, data in rows], pa.binary())


@given(ROWS, st.integers(0, 5), st.booleans())
def test_what_is_packed_is_its_rows(rows: list[tuple[str, bytes]], skipped: int, even: bool) -> None:
    if even:
        rows = [(subject, b"%04d" % number) for number, (subject, _) in enumerate(rows)]
    # A slice of longer columns, as Arrow's may be.
    subjects, payloads = (column.slice(skipped) for column in columns_of([("x", b"before")] * skipped + rows))
    packed = pack(subjects, payloads)
    assert packed is not None
    assert list(packed.columns.rows()) == rows
    contents = [crc32(data, crc32(subject.encode())) for subject, data in rows]
    assert array("I", bytes(packed.columns.contents)).tolist() == contents
    assert packed.size == sum(len(subject.encode()) + len(data) for subject, data in rows)
    order = [subject for subject, _ in rows]
    known = zip(packed.subjects, packed.firsts, packed.lasts, packed.counts, strict=True)
    assert {subject: told for subject, *told in known} == {
        subject: [order.index(subject), len(order) - 1 - order[::-1].index(subject), order.count(subject)]
        for subject in order
    }


def test_a_subject_that_is_too_long_is_not_packed() -> None:
    assert pack(*columns_of([("a" * 255, b"")])) is not None
    assert pack(*columns_of([("a" * 256, b"")])) is None
    assert pack(*columns_of([("é" * 128, b"")])) is None


def batch(first: int, rows: int, size: int = 1) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + rows), pa.int64())
    return pa.record_batch({"n": numbers, "data": pa.array([bytes(size)] * rows, pa.binary())})


def test_small_batches_are_joined_and_empty_ones_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_FEW_ROWS", 10)
    given = [batch(0, 0), batch(0, 4), batch(4, 7), batch(11, 20), batch(31, 1), batch(32, 0)]
    found = list(rebatch(given))
    assert [part.num_rows for part in found] == [11, 20, 1]
    assert [n for part in found for n in part.column("n").to_pylist()] == list(range(32))
    assert list(rebatch([batch(0, 0)])) == []


def test_large_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BYTES", 1000)
    found = list(rebatch([batch(0, 9, 300), batch(9, 1, 3000)]))
    assert [n for part in found for n in part.column("n").to_pylist()] == list(range(10))
    assert all(part.nbytes <= 1000 or part.num_rows == 1 for part in found)
