"""Builds the headers about time from a user's values: seconds, `timedelta`, `datetime`.

``Nats-TTL`` (ADR-43) and ``Nats-Schedule`` with its companions (ADR-51). What only a stream can check, such as a
cron expression or whether it takes the target, is checked there.
"""

from datetime import datetime, timedelta

from pelton.api import headers
from pelton.api.build import seconds_to_ns, time_text
from pelton.api.durations import format_duration
from pelton.api.errors import ConfigError
from pelton.api.times import SECOND, rfc3339

Seconds = float | timedelta
NEVER = "never"


def ttl_text(ttl: Seconds | str) -> str:
    """Return the value of ``Nats-TTL``: whole seconds, at least one, or ``"never"``. Raises `ConfigError`."""
    if isinstance(ttl, str):
        if ttl != NEVER:
            raise ConfigError(f"ttl is {ttl!r}: give seconds as a number, a timedelta, or 'never'")
        return NEVER
    return format_duration(_at_least_a_second("ttl", ttl) // SECOND * SECOND)


def schedule_text(
    now: int,
    *,
    at: datetime | None = None,
    delay: Seconds | None = None,
    every: Seconds | None = None,
    cron: str | None = None,
) -> str:
    """Return the value of ``Nats-Schedule``; give exactly one of the four; ``delay`` counts from ``now`` (nanoseconds).

    Raises `ConfigError`.
    """
    given = {"at": at, "delay": delay, "every": every, "cron": cron}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        raise ConfigError(
            f"a schedule takes one of at, delay, every and cron, not {', '.join(named) or 'none of them'}"
        )
    if at is not None:
        return f"@at {time_text('at', at, 'schedule')}"
    if delay is not None:
        return f"@at {rfc3339(now + seconds_to_ns('delay', delay, 'schedule'))}"
    if every is not None:
        return f"@every {format_duration(_at_least_a_second('every', every))}"
    if not isinstance(cron, str):
        raise ConfigError(
            f"schedule: cron is {cron!r}: give text, six fields, seconds first, like '0 30 5 * * mon-fri'"
        )
    return cron


def schedule_headers(
    schedule: str,
    target: str,
    time_zone: str | None,
    ttl: Seconds | str | None,
    source: str | None,
    replace: bool,
    delay: Seconds | None = None,
) -> dict[str, str | None]:
    """Return the headers of a schedule; None for those not given. ``delay``: its time was given as one."""
    if not schedule:
        raise ConfigError("cron is empty: write six fields, seconds first, like '0 30 5 * * mon-fri'")
    return {
        headers.SCHEDULE: schedule,
        headers.SCHEDULE_TARGET: target,
        headers.DELAY: None if delay is None else format_duration(seconds_to_ns("delay", delay, "schedule")),
        headers.SCHEDULE_TIME_ZONE: time_zone,
        headers.SCHEDULE_TTL: None if ttl is None else ttl_text(ttl),
        headers.SCHEDULE_SOURCE: source,
        headers.SCHEDULE_ROLLUP: "sub" if replace else None,
    }


def _at_least_a_second(name: str, value: Seconds) -> int:
    ns = seconds_to_ns(name, value)
    if ns < SECOND:
        raise ConfigError(f"argument: {name} is {value!r}: at least one second")
    return ns
