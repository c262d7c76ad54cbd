"""How a read is partitioned into tasks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pelton.spark.read.ranges import SequenceRange, split_ranges

spans = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 100_000)), max_size=5)


def ranges(found: list[tuple[int, int]]) -> list[SequenceRange]:
    return [
        SequenceRange(f"s{number}", "", first, first + span - 1, fails_on_loss=True)
        for number, (first, span) in enumerate(found)
    ]


@given(spans, st.integers(1, 100_000), st.integers(1, 50))
def test_parts_are_what_was_to_be_read_in_order(found: list[tuple[int, int]], rows: int, at_least: int) -> None:
    whole = ranges(found)
    parts = split_ranges(whole, rows=rows, at_least=at_least)
    for part in whole:
        mine = [piece for piece in parts if piece.stream == part.stream]
        assert mine[0].first == part.first
        assert mine[-1].last == part.last
        assert all(one.last + 1 == two.first for one, two in pairwise(mine))
    total = sum(part.span for part in whole)
    assert len(parts) >= min(at_least, total)
    if total // rows < 10_000:
        assert all(piece.span <= rows for piece in parts)


def test_a_stream_of_gaps_makes_no_tasks_without_end() -> None:
    assert len(split_ranges(ranges([(1, 10**12)]), rows=1000, at_least=1)) == 10_000
