"""Checksums of many rows at a time are those of each."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from pelton import storage
from pelton.spark import sums

INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.tuples(INT64, INT64, st.integers(-1, 2**31 - 1), st.integers(0, 2**32 - 1)), max_size=20)


@given(ROWS)
def test_sums_are_those_of_the_storage(rows: list[tuple[int, int, int, int]]) -> None:
    columns = [array(kind, [row[index] for row in rows]).tobytes() for index, kind in enumerate("qqiI")]
    assert sums.sums_of_columns(*columns) == storage.sums_of_columns(*columns)
