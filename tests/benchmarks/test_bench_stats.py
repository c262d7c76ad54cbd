"""Medians, percentiles and paired ratios."""

import pytest

from benchmarks.stats import middle, paired_ratios, percentile, spread


def test_percentile_meets_the_ends_and_interpolates() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert percentile(values, 0) == 10
    assert percentile(values, 1) == 40
    assert percentile(values, 0.5) == 25
    assert percentile([7.0], 0.99) == 7


def test_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_ratio_is_paired_within_the_round() -> None:
    """The machine halves its speed in the second round: the ratio does not move."""
    assert paired_ratios([100, 50], [[50, 25]]) == [2, 2]


def test_ratio_is_to_the_best_peer_of_each_round() -> None:
    assert paired_ratios([60, 60, 60], [[10, 30, 20], [20, 10, 20]]) == [3, 2, 3]


def test_ratio_leaves_out_rounds_without_a_figure() -> None:
    assert paired_ratios([10, None, 30], [[5, 1, None]]) == [2]
    assert paired_ratios([10, 20], [[None, 5], [2, None]]) == [5, 4]


def test_ratio_of_nothing_measured_is_none() -> None:
    assert paired_ratios([None], [[5]]) == []
    assert paired_ratios([5], [[None]]) == []
    assert paired_ratios([5], []) == []


def test_middle_and_spread_skip_what_is_missing() -> None:
    assert middle([None, 3, 1, 2]) == 2
    assert spread([None, 3, 1, 2]) == (1, 3)
    assert middle([None]) is None
    assert spread([]) is None
