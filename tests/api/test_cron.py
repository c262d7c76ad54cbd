"""The meaning of cron expressions, compared with checking every second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.api.schedule import Cron, next_second, parse_cron

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = (
    None,
    ZoneInfo("Europe/Berlin"),
    ZoneInfo("America/New_York"),
    ZoneInfo("Asia/Kolkata"),
    ZoneInfo("Australia/Lord_Howe"),
)


def second_of(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def means(cron: Cron, second: int, zone: tzinfo | None) -> bool:
    local = (EPOCH + timedelta(seconds=second)).astimezone(zone or UTC)
    in_month, in_week = local.day in cron.days.values, local.isoweekday() % 7 in cron.weekdays.values
    starred = cron.days.starred or cron.weekdays.starred
    return (
        local.second in cron.seconds
        and local.minute in cron.minutes
        and local.hour in cron.hours
        and local.month in cron.months
        and ((in_month and in_week) if starred else (in_month or in_week))
    )


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> str:
    if draw(st.booleans()):
        return draw(st.sampled_from(["*", "?", "*/2", "*/7"]))
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    one = draw(st.sampled_from([f"{first}", f"{first}-{last}", f"{first}-{last}/3", f"{first}/5", f"{first},{last}"]))
    return f"{one},{draw(st.integers(low, high))}" if draw(st.booleans()) else one


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """Expressions that match some second of nearly every few hours, so that checking every second ends."""
    seconds, minutes = draw(fields(0, 59)), draw(fields(0, 59))
    hours = draw(st.sampled_from(["*", "*/2", "1-5", "0,2,12,23", "2"]))
    days = draw(st.sampled_from(["*", "*/2", "1-31", "?", "28-31,1-14"]))
    return f"{seconds} {minutes} {hours} {days} * {draw(st.sampled_from(['*', '0,6', 'mon-fri', '*/2']))}"


# Around the changes of the clocks, a leap day, and the end of a year.
STARTS = [
    second_of(text)
    for text in (
        "2025-03-30T00:59:00+00:00",
        "2025-10-26T00:30:00+00:00",
        "2025-03-09T06:30:00+00:00",
        "2025-11-02T05:30:00+00:00",
        "2025-04-05T14:30:00+00:00",
        "2025-10-04T15:00:00+00:00",
        "2024-02-28T23:00:00+00:00",
        "2025-12-31T23:59:58+00:00",
    )
]


@settings(max_examples=150, deadline=None)
@given(expressions(), st.sampled_from(STARTS), st.integers(-7200, 7200), st.sampled_from(ZONES))
def test_the_next_second_is_the_first_that_matches(text: str, start: int, shift: int, zone: tzinfo | None) -> None:
    cron, after = parse_cron(text), start + shift
    found = next_second(cron, after, zone)
    reach = after + 4 * 3600
    first = next((second for second in range(after + 1, reach) if means(cron, second, zone)), None)
    if first is None:
        assert found is None or (found >= reach and means(cron, found, zone))
    else:
        assert found == first


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * * *", "2025-01-01T00:00:00+00:00", "2025-01-01T00:00:01+00:00"),
        ("0 0 0 1 1 *", "2025-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00"),
        ("0 0 0 29 2 *", "2025-01-01T00:00:00+00:00", "2028-02-29T00:00:00+00:00"),
        ("0 30 4 1,15 * fri", "2025-01-01T04:30:00+00:00", "2025-01-03T04:30:00+00:00"),
        ("0 30 4 */2 * fri", "2025-01-01T04:30:00+00:00", "2025-01-03T04:30:00+00:00"),
        ("0 0 0 ? * 0", "2025-01-01T00:00:00+00:00", "2025-01-05T00:00:00+00:00"),
        ("59 59 23 31 dec *", "2025-12-31T23:59:59+00:00", "2026-12-31T23:59:59+00:00"),
    ],
)
def test_what_comes_next(text: str, after: str, expected: str) -> None:
    assert next_second(parse_cron(text), second_of(after)) == second_of(expected)


def test_a_time_that_is_skipped_does_not_come_and_one_that_is_twice_comes_twice() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    half_past_two = parse_cron("0 30 2 * * *")
    spring = second_of("2025-03-29T12:00:00+00:00")
    assert next_second(half_past_two, spring, berlin) == second_of("2025-03-31T02:30:00+02:00")
    first = next_second(half_past_two, second_of("2025-10-25T12:00:00+00:00"), berlin)
    assert first == second_of("2025-10-26T02:30:00+02:00")
    assert next_second(half_past_two, first, berlin) == second_of("2025-10-26T02:30:00+01:00")


@pytest.mark.parametrize("zone", ZONES)
def test_what_never_comes_is_told(zone: tzinfo | None) -> None:
    assert next_second(parse_cron("0 0 0 31 2 *"), second_of("2025-01-01T00:00:00+00:00"), zone) is None


@pytest.mark.parametrize(
    "text",
    ["", "* * * * *", "* * * * * * *", "60 * * * * *", "* * 24 * * *", "* * * 0 * *", "* * * * 13 *", "* * * * * 7",
     "1-0 * * * * *", "*/0 * * * * *", "a * * * * *", "mon * * * * *", ", * * * * *", "-1 * * * * *", "1- * * * * *",
     "1/2/3 * * * * *", "1-2-3 * * * * *", "1/ * * * * *", "9999999999 * * * * *", "² * * * * *"],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ValueError, match="cron"):
        parse_cron(text)
