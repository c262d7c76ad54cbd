"""Time axes have round ticks."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.drawing.charts import moments


@pytest.mark.parametrize(
    ("begin", "seconds", "shown"),
    [
        (datetime(2024, 1, 1, 22, 10), 0.1, ["22:10:00.00", "22:10:00.02", "22:10:00.04", "22:10:00.06"]),
        (datetime(2024, 1, 1, 22, 9, 58), 30, ["22:10:00", "22:10:05", "22:10:10", "22:10:15", "22:10:20", "22:10:25"]),
        (datetime(2024, 1, 1, 22, 10, 30), 3600, ["22:20", "22:30", "22:40", "22:50", "23:00", "23:10"]),
        (datetime(2024, 1, 1, 22, 10), 40 * 3600, ["01-02 00:00", "01-02 06:00", "01-02 12:00", "01-02 18:00"]),
        (datetime(2024, 1, 1, 5), 4 * 86_400, ["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05"]),
    ],
)
def test_moments_are_round(begin: datetime, seconds: float, shown: list[str]) -> None:
    found = [words for _, words in moments(begin, seconds)]
    assert found[: len(shown)] == shown
    assert len(found) <= 7


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)), st.floats(0.05, 1e8))
def test_all_are_within_and_each_is_what_it_says(begin: datetime, seconds: float) -> None:
    found = moments(begin, seconds)
    assert len({words for _, words in found}) == len(found) <= 8
    assert all(-1e-6 <= at <= seconds + 1e-6 for at, _ in found)
    for at, words in found:
        assert words[-5:-3] in f"{begin + timedelta(seconds=at + 1e-6):%Y-%m-%d %H:%M:%S.%f}"
