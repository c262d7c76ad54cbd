"""How many jobs may run at a time, and how many may start in a period: what a user passes, checked. Pure.

A limit belongs to a queue and holds in all its workers. It is for all jobs of the queue or for those of one name, and
counts them together or, ``per_key``, for each key by itself. A job starts when all limits that it is under let it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from math import ceil
from typing import Final
from zlib import crc32

import msgspec

from pelton.api import ConfigError
from pelton.queue.model.checks import checked_text, seconds, whole
from pelton.queue.model.naming import encode_key

_LONGEST_INTERVAL_S: Final = 366 * 86_400.0
WHOLE_QUEUE: Final = "all"
"""The place of the limit of a whole queue."""


class Rate(msgspec.Struct, frozen=True, omit_defaults=True):
    """At most ``starts`` jobs start in ``per`` seconds, spread evenly over them; up to ``burst`` of them at once.

    So in any stretch of time at most ``starts * stretch / per + burst`` start. ``per`` may be a `timedelta`.
    """

    starts: int
    per: float | timedelta = 1.0
    burst: int = 1

    @property
    def interval_ns(self) -> int:
        """The time between two starts, in nanoseconds."""
        assert isinstance(self.per, int | float), "a checked rate has seconds"
        return max(ceil(self.per * 1e9 / self.starts), 1)


class JobLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit of a queue: for jobs named ``job``, or for all if that is empty; ``per_key``: for each key by itself.

    At most ``concurrency`` of them run at a time (None: any number), and they start at a ``rate`` (None: at any).
    """

    job: str = ""
    per_key: bool = False
    concurrency: int | None = None
    rate: Rate | None = None

    @property
    def scope(self) -> str:
        """What the limit is for, as part of a subject: a queue has at most one limit of each scope."""
        return scope_of(self.job, self.per_key)

    @property
    def name(self) -> str:
        """For what the limit is, for people: such as ``send, each key``."""
        return (self.job or "all") + (", each key" if self.per_key else "")

    @property
    def text(self) -> str:
        """The limit in a form that only an equal one has."""
        return msgspec.json.encode(self).decode()

    def place(self, job: str, key: str) -> str:
        """Return where the slots of a job are recorded; empty if the job is not under this limit."""
        if (self.job and self.job != job) or (self.per_key and not key):
            return ""
        return f"{self.scope}.{_token(key)}" if self.per_key else self.scope


def number_of(limit: str) -> int:
    """Return the number by which a store tells for which limit a job is held; 0 for none."""
    return crc32(limit.encode()) or 1 if limit else 0


def scope_of(job: str, per_key: bool) -> str:
    """Return what a limit is for, as part of a subject."""
    if not job:
        return "key" if per_key else WHOLE_QUEUE
    return f"job.{_token(job)}.key" if per_key else f"job.{_token(job)}"


def places_of(limits: Iterable[JobLimit], job: str, key: str) -> dict[str, JobLimit]:
    """Return the limits that a job is under, each by the place where its slots are recorded."""
    return {place: limit for limit in limits if (place := limit.place(job, key))}


def job_limit(queue: str, job: str | None, per_key: bool, concurrency: int | None, rate: Rate | None) -> JobLimit:
    """Return a checked limit from what a user passes. Raises ConfigError."""
    what = f"queue {queue!r}: limit"
    if per_key not in (True, False):
        raise ConfigError(f"{what}: per_key is {per_key!r}; it must be True or False")
    if concurrency is None and rate is None:
        raise ConfigError(f"{what}: give concurrency, rate, or both; unlimit() takes a limit away")
    return JobLimit(
        job="" if job is None else checked_text(f"{what}: job", job),
        per_key=per_key,
        concurrency=None if concurrency is None else whole(f"{what}: concurrency", concurrency),
        rate=None if rate is None else _checked(what, rate),
    )


def _checked(what: str, rate: Rate) -> Rate:
    if not isinstance(rate, Rate):
        raise ConfigError(f"{what}: rate is {rate!r}; give a pelton.Rate(100, per=60)")
    starts, burst = whole(f"{what}: starts of the rate", rate.starts), whole(f"{what}: burst of the rate", rate.burst)
    per = seconds(f"{what}: per of the rate", rate.per)
    if not 0 < per / starts <= _LONGEST_INTERVAL_S:
        raise ConfigError(f"{what}: per of the rate is {per:g} s; it must be more than 0, and a start a year at least")
    return Rate(starts, per, burst)


def _token(text: str) -> str:
    return encode_key(text).replace(".", "%2E")
