"""Instants as text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.api import ConfigError, parse_rfc3339, rfc3339
from pelton.api.times import SECOND, ZERO_TIME

FIRST, LAST = -62135596800 * SECOND, 253402300799 * SECOND


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-02T03:04:05.123456789Z", 1767323045123456789),
        ("2026-01-02T03:04:05.1Z", 1767323045100000000),
        ("1969-12-31T23:59:59.999999999Z", -1),
        (ZERO_TIME, FIRST),
        ("9999-12-31T23:59:59Z", LAST),
    ],
)
def test_both_ways(text: str, ns: int) -> None:
    assert rfc3339(ns) == text
    assert parse_rfc3339(text) == ns


@given(st.integers(FIRST, LAST))
def test_any_instant_survives(ns: int) -> None:
    assert parse_rfc3339(rfc3339(ns)) == ns


def test_offsets_and_more_digits_than_nanoseconds() -> None:
    for text in ("1970-01-01T02:30:00+02:30", "1969-12-31t23:00:00-01:00", "1970-01-01 00:00:00.0000000009z"):
        assert parse_rfc3339(text) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-02",
        "2026-01-02T03:04:05",
        "2026-13-02T03:04:05Z",
        "2026-01-02T25:04:05Z",
        "2026-01-02T03:04:05+99:00",
        "2026-01-02T03:04:05.Z",
        "2026-01-02T03:04:05Z\n",
        "٢٠٢٦-01-02T03:04:05Z",
    ],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="no RFC 3339 time"):
        parse_rfc3339(text)


@pytest.mark.parametrize("ns", [FIRST - 1, LAST + SECOND])
def test_years_that_cannot_be_written(ns: int) -> None:
    with pytest.raises(ConfigError, match="outside the years 1 to 9999"):
        rfc3339(ns)
