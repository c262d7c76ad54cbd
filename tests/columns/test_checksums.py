"""Checksums computed for many rows at once equal those of each row."""

from array import array
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from pelton import storage
from pelton.columns import joined_columns as checksums
from pelton.storage.messages import row_checksum

INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.tuples(INT64, INT64, st.integers(-1, 2**31 - 1), st.integers(0, 2**32 - 1)), max_size=20)


@given(ROWS)
def test_sums_are_those_of_the_storage(rows: list[tuple[int, int, int, int]]) -> None:
    columns = [array(kind, [row[index] for row in rows]).tobytes() for index, kind in enumerate("qqiI")]
    assert checksums.sums_of_columns(*columns) == storage.sums_of_columns(*columns)


@given(st.integers(1, 2**62), INT64, st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_sums_of_neighbours_are_those_of_the_storage(first: int, ts: int, contents: list[int]) -> None:
    column = memoryview(array("I", contents).tobytes())
    assert checksums.placed_sums(first, ts, column) == storage.placed_sums(first, ts, column)


def test_neighbours_begin_and_end_anywhere() -> None:
    rows = [(f"s.{n}", b"data %d" % n) for n in range(70_000)]
    contents = memoryview(array("I", [crc32(data, crc32(subject.encode())) for subject, data in rows]).tobytes())
    placed = memoryview(checksums.placed_sums(2**32 - 40_000, 7, contents)).cast("I")
    for row in (0, 1, 39_999, 40_000, 69_999):
        subject, data = rows[row]
        assert placed[row] == row_checksum(2**32 - 40_000 + row, 7, subject, None, data)
