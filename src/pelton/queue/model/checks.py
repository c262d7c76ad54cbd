"""Checks of values that a program passes to a queue: a ConfigError names the value, before anything is done."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from pelton.api import ConfigError, Duration

# As ``job_message.py`` makes them.
_PLACED: Final = re.compile(r"[fmrsu][0-9A-Za-z]{20,}(-[0-9A-Za-z]{20,})?(@[^\s.*>@]+)?")
_LONGEST_S: Final = 292 * 365.25 * 86_400


def seconds(what: str, value: object) -> float:
    """Return a duration in seconds: a number of 0 or more, or a timedelta."""
    plain: object = value.to_timedelta() if isinstance(value, Duration) else value
    found: object = plain.total_seconds() if isinstance(plain, timedelta) else plain
    if isinstance(found, bool) or not isinstance(found, int | float) or math.isnan(found):
        raise ConfigError(f"{what} is {value!r}: give seconds as a number, or a timedelta")
    if not 0 <= found < _LONGEST_S:
        raise ConfigError(f"{what} is {value!r}: it must be 0 s or more, and less than 292 years")
    return float(found)


def whole(what: str, value: object) -> int:
    """Return a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{what} is {value!r}: give a whole number of 1 or more")
    return value


def checked_job_name(what: str, job: object) -> str:
    """Return the name of a job that was given instead of the job. Raises ConfigError."""
    if hasattr(job, "__await__"):
        raise ConfigError(f"{what}: the job was called, not enqueued: write enqueue(job, ...), not enqueue(job(...))")
    if callable(job):
        name = getattr(job, "__qualname__", type(job).__qualname__)
        raise ConfigError(f"{what}: {name!r} is not a job: declare it with @jobs.job, or give the name of a job")
    return checked_text(f"{what}: a job's name", job)


def checked_text(what: str, value: object) -> str:
    """Return a text if it is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{what} is {value!r}: give a text (str) that is not empty")
    return value


def valid_text(what: str, value: object) -> str:
    """Return a text that can be stored: half a character, a lone surrogate, can't."""
    if not isinstance(value, str):
        raise ConfigError(f"{what} is {value!r}; give a text (str)")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} is {value[:40]!r}, which is not valid text ({error.reason})") from None
    return value


def checked_id(queue: str, value: object) -> str:
    """Return a job's id: the text of a sequence, or the id of a scheduled job."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and value[0] != "0" and int(value) < 1 << 64:
        return value
    if isinstance(value, str) and _PLACED.fullmatch(value):
        return value
    raise ConfigError(
        f"queue {queue!r}: {value!r} is not a job id: an id is text such as '7', the 'id' of the handle from enqueue"
    )
