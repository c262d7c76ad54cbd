"""Durations as Go writes and reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.api.times import format_duration, parse_duration

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("0s", 0),
        ("1s", SECOND),
        ("-1s", -SECOND),
        ("+1s", SECOND),
        ("1.5s", 3 * SECOND // 2),
        (".5s", SECOND // 2),
        ("1.s", SECOND),
        ("1h2m3s4ms5us6ns", 3723 * SECOND + 4_005_006),
        ("1µs", 1000),
        ("1μs", 1000),
        ("2562047h47m16.854775807s", (1 << 63) - 1),
    ],
)
def test_what_is_a_duration(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    "text", ["", "-", "1", "s", ".s", "1d", "1s ", " 1s", "1 s", "1e3s", "--1s", "1h-1m", "2562048h", "१s"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (7, "7ns"),
        (1500, "1.5µs"),
        (250_000_000, "250ms"),
        (100 * SECOND, "1m40s"),
        (SECOND + 1, "1.000000001s"),
        (3600 * SECOND, "1h0m0s"),
        (90_000 * SECOND + 500_000_000, "25h0m0.5s"),
        (-90 * SECOND, "-1m30s"),
    ],
)
def test_how_it_is_written(ns: int, text: str) -> None:
    assert format_duration(ns) == text


@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1))
def test_what_is_written_is_read(ns: int) -> None:
    assert parse_duration(format_duration(ns)) == ns
