"""When schedules fire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

import pelton
from pelton.api.build import schedule_headers, schedule_text, ttl_text
from pelton.api.schedule import LATEST, At, Every, due_text, first_due, next_due, parse_schedule, parse_zone

S = 1_000_000_000
NOON = int(datetime(2025, 1, 1, 12, tzinfo=UTC).timestamp()) * S


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("@at 2025-01-01T12:00:00Z", NOON),
        ("@at 2025-01-01T13:00:00+01:00", NOON),
        ("@at 2025-01-01T12:00:00.25Z", NOON + S // 4),
        ("@at 2025-01-01T12:00:00.1234567899Z", NOON + 123_456_789),
        ("@at 1960-01-01T00:00:00Z", 0),
        ("@at 9999-12-31T23:59:59Z", LATEST),
    ],
)
def test_once(text: str, due: int) -> None:
    assert parse_schedule(text) == At(due)
    assert next_due(At(due), due, due + 5) is None


def test_intervals_keep_whole_seconds_and_make_up_for_what_was_missed_once() -> None:
    every = parse_schedule("@every 10s")
    assert every == Every(10 * S)
    assert first_due(every, NOON + S // 4) == NOON + 10 * S
    assert next_due(every, NOON, NOON + 3) == NOON + 10 * S
    assert next_due(every, NOON, NOON + 1000 * S) == NOON + 1010 * S


def test_calendars_go_on_from_now_after_a_pause() -> None:
    hourly = parse_schedule("@hourly")
    assert first_due(hourly, NOON) == NOON + 3600 * S
    assert next_due(hourly, NOON, NOON + S) == NOON + 3600 * S
    assert next_due(hourly, NOON, NOON + 9000 * S) == NOON + 3 * 3600 * S


def test_an_instant_is_told_in_the_schedules_own_zone() -> None:
    assert due_text(parse_schedule("@hourly"), NOON) == "2025-01-01T12:00:00Z"
    assert due_text(parse_schedule("@hourly", parse_zone("Asia/Kolkata")), NOON) == "2025-01-01T17:30:00+05:30"
    assert due_text(parse_schedule("@hourly", parse_zone("Europe/London")), NOON) == "2025-01-01T12:00:00Z"


@pytest.mark.parametrize("name", ["", "Mars/Base", "../etc/passwd", "/etc/passwd", "Europe", "+02:00", "x\0y", "utc"])
def test_what_is_no_zone(name: str) -> None:
    with pytest.raises(ValueError, match="not a time zone"):
        parse_zone(name)


def test_what_people_write() -> None:
    berlin = timezone(timedelta(hours=1))
    assert schedule_text(NOON, at=datetime(2025, 1, 1, 13, tzinfo=berlin)) == "@at 2025-01-01T12:00:00Z"
    assert schedule_text(NOON, delay=timedelta(seconds=90)) == "@at 2025-01-01T12:01:30Z"
    assert schedule_text(NOON, every=90) == "@every 1m30s"
    assert schedule_text(NOON, cron="@daily") == "@daily"
    assert (ttl_text(90), ttl_text(1.9), ttl_text("never")) == ("1m30s", "1s", "never")


def test_what_makes_no_schedule_is_told() -> None:
    for given in ({}, {"delay": 1, "every": 1}, {"every": 0.5}, {"at": datetime(2025, 1, 1)}, {"delay": -1}):
        with pytest.raises(pelton.ConfigError):
            schedule_text(NOON, **given)  # type: ignore[arg-type]  # also what the types forbid
    with pytest.raises(pelton.ConfigError, match="six fields"):
        schedule_headers("", "t", None, None, None, False)
    for ttl in (0, 0.9, "forever"):
        with pytest.raises(pelton.ConfigError, match="ttl"):
            ttl_text(ttl)
