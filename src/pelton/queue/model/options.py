"""How a job is enqueued and retried, and how jobs are selected, as a user passes it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import msgspec

from pelton.api import Backoff, ConfigError, Duration
from pelton.api.build import time_text
from pelton.api.schedule import Schedule, first_due, parse_schedule, parse_zone
from pelton.api.times import datetime_ns, format_duration
from pelton.queue.model.naming import HIGHEST_PRIORITY, encode_key, encode_tenant
from pelton.queue.model.states import Timetable

if TYPE_CHECKING:
    from pelton.api.times import Seconds
    from pelton.queue.model.states import DeadLetter, Envelope
    from pelton.runtime import Random

# As ``job_message.py`` makes them.
_PLACED: Final = re.compile(r"[fmrsu][0-9A-Za-z]{20,}(-[0-9A-Za-z]{20,})?(@[^\s.*>@]+)?")
_LONGEST_S: Final = 292 * 365.25 * 86_400


def seconds(what: str, value: object) -> float:
    """Return a duration in seconds: a number of 0 or more, or a timedelta."""
    plain: object = value.to_timedelta() if isinstance(value, Duration) else value
    number: object = plain.total_seconds() if isinstance(plain, timedelta) else plain
    if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
        raise ConfigError(f"{what} is {value!r}: give seconds as a number, or a timedelta")
    if not 0 <= number < _LONGEST_S:
        raise ConfigError(f"{what} is {value!r}: it must be 0 s or more, and less than 292 years")
    return float(number)


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


_UNFINISHED: Final = ("pending", "scheduled", "waiting", "stuck", "held", "running", "retrying")


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs: of a ``state``, a ``key``, a ``job`` (its name), a ``tenant``; empty for any."""

    state: str = ""
    key: str = ""
    job: str = ""
    tenant: str = ""

    def has(self, job: Envelope) -> bool:
        """Whether a job is selected by what is stored of it: its state is not."""
        return (
            (not self.key or job.key == self.key)
            and (not self.job or job.job == self.job)
            and (not self.tenant or job.tenant == self.tenant)
        )

    def has_letter(self, letter: DeadLetter) -> bool:
        outcome = letter.outcome
        return (not self.key or outcome.key == self.key) and (not self.job or outcome.job == self.job)


ALL_JOBS: Final = JobFilter()


def job_filter(
    queue: str, key: object = None, job: object = None, state: object = None, tenant: object = None
) -> JobFilter:
    """Return a checked filter from what a user passes; None for any. Raises ConfigError."""
    if state is not None and state not in _UNFINISHED:
        raise ConfigError(
            f"queue {queue!r}: no unfinished job is {state!r}; they are {', '.join(_UNFINISHED)}, and history() has "
            "those that have ended"
        )
    if key is not None:
        encode_key(key)  # type: ignore[arg-type]  # it checks that, too
    if tenant is not None:
        encode_tenant(tenant)  # type: ignore[arg-type]  # it checks that, too
    return JobFilter(
        state="" if state is None else str(state),
        key="" if key is None else str(key),
        job="" if job is None else checked_text(f"queue {queue!r}: job", job),
        tenant="" if tenant is None else str(tenant),
    )


# --- how a job is retried: its rules, and the checks of what a user passes for them. Pure

BackoffRule = Backoff | Sequence[float | timedelta] | Callable[[int, BaseException], float]
"""How long to wait before the next attempt.

A schedule; seconds after each attempt, of which the last repeats; or a function of the attempt, from 1, and its error.
"""

_LONGEST_WRONG: Final = 1024
DEFAULT_MAX_ATTEMPTS: Final = 5
DEFAULT_BACKOFF: Final = Backoff(base=1.0, factor=2.0, cap=600.0, jitter=0.2)


class JobRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is retried.

    Attempts in all, the wait between them, errors that are not retried, seconds per attempt.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    """How many attempts in all."""
    backoff: BackoffRule = DEFAULT_BACKOFF
    """The wait before each other attempt, in seconds."""
    permanent: tuple[type[BaseException], ...] = ()
    """Errors that are not retried."""
    timeout: float | None = None
    """How long an attempt may take, in seconds; None: any time."""

    def check(self, what: str) -> None:
        """Raise ConfigError for rules that cannot be kept; ``what`` names what the rules are for."""
        whole(f"{what}: max_attempts", self.max_attempts)
        if self.timeout is not None and seconds(f"{what}: timeout", self.timeout) <= 0:
            raise ConfigError(f"{what}: timeout is {self.timeout:g} s; it must be more than 0, or None")
        self._check_backoff(what)
        for kind in self.permanent:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"{what}: permanent holds {kind!r}; it takes exception classes")

    def _check_backoff(self, what: str) -> None:
        backoff = self.backoff
        if isinstance(backoff, Backoff) or callable(backoff):
            return
        if isinstance(backoff, str | bytes) or not isinstance(backoff, Sequence) or not backoff:
            raise ConfigError(
                f"{what}: backoff is {backoff!r}; give a pelton.Backoff(base=seconds), a list of seconds, or a "
                "function of the attempt and its error"
            )
        for each in backoff:
            seconds(f"{what}: backoff", each)

    def delay_after(self, attempt: int, error: BaseException, random: Random) -> tuple[float, str]:
        """Return how many seconds to wait after a failed attempt, and what is wrong with the rule, if anything is."""
        backoff = self.backoff
        if isinstance(backoff, Backoff):
            return backoff.delay(attempt, random), ""
        if not callable(backoff):
            return seconds("backoff", backoff[min(attempt, len(backoff)) - 1]), ""
        try:
            return seconds("it", backoff(attempt, error)), ""
        except Exception as wrong:  # a program's own code may raise anything
            wrong_text = f"its backoff failed, and the default was taken: {type(wrong).__name__}: {wrong}"
            return DEFAULT_BACKOFF.delay(attempt, random), wrong_text[:_LONGEST_WRONG]


def job_rules(
    what: str,
    max_attempts: int,
    backoff: BackoffRule,
    permanent: type[BaseException] | Sequence[type[BaseException]],
    timeout: Seconds | None,
) -> JobRules:
    """Return checked rules from what a user passes. Raises ConfigError, which names ``what`` they are for."""
    if isinstance(permanent, type):
        permanent = (permanent,)
    elif not isinstance(permanent, Sequence | AbstractSet):
        raise ConfigError(f"{what}: permanent is {permanent!r}; it takes exception classes")
    limit = None if timeout is None else seconds(f"{what}: timeout", timeout)
    rules = JobRules(max_attempts=max_attempts, backoff=backoff, permanent=tuple(permanent), timeout=limit)
    rules.check(what)
    return rules


# --- how a job is enqueued, apart from its arguments. Pure


class JobOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The options of one enqueued job; empty or None means not set.

    ``key`` names what the job works on: in an exclusive queue one job per key runs at a time, in order.
    ``delay`` (seconds) or ``at`` (a time with a time zone) is when the job becomes ready; until then it is
    ``scheduled``. ``ttl`` (seconds, from then on) is how long a worker may take to start it: after that it ends as
    ``expired``. ``priority`` is from 0 to 3; jobs with a higher one start first. Jobs of different ``tenant`` start in
    turns, however many each has waiting. ``unique`` allows one unfinished job with the same ``"arguments"`` (and the
    same function and key), one of the same ``"key"``, or one of another text, which you choose: of the same
    ``tenant``, if it has one, and in an exclusive queue of the same ``key``. With ``replace``, one that is still
    scheduled gets the new arguments and the new time instead (debounce). ``unique_until="started"`` allows the next
    one as soon as a worker has begun the job, and ``unique_for`` (seconds, from now on) none for so long, even if the
    job ends before, unless it is cancelled while no worker holds it. ``id`` is your own name for the job: while it is
    unfinished, no other job of the queue, or of its ``tenant`` or exclusive ``key``, gets the same.
    ``idempotency_key`` makes it safe to repeat the call within two minutes. For a duplicate, you get the handle of the
    first job, whose ``duplicate`` is True; with ``on_duplicate="raise"``, one of a unique job raises DuplicateJobError.
    """

    key: str = ""
    delay: float | None = None
    at: datetime | None = None
    ttl: float | None = None
    priority: int = 0
    tenant: str = ""
    unique: str = ""
    replace: bool = False
    unique_until: Literal["ended", "started"] = "ended"
    unique_for: float | None = None
    on_duplicate: Literal["skip", "raise"] = "skip"
    id: str = ""
    idempotency_key: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether the job needs no place of its own."""
        return not (self.is_later or self.unique or self.id)

    @property
    def is_later(self) -> bool:
        """Whether a time is given before which the job is not to start."""
        return self.delay is not None or self.at is not None

    @property
    def is_timed(self) -> bool:
        """Whether anything about the job counts from when it is enqueued."""
        return self.is_later or self.ttl is not None or self.unique_for is not None

    @property
    def is_unique(self) -> bool:
        """Whether no other unfinished job may take its place."""
        return bool(self.unique or self.id)

    def check(self, what: str) -> None:
        """Raise ConfigError for options that contradict each other; ``what`` names the job."""
        if self.key != "":
            encode_key(self.key)
        if self.tenant != "":
            encode_tenant(self.tenant)
        for name in ("unique", "id", "idempotency_key"):
            if getattr(self, name) != "":
                valid_text(f"{what}: {name}", getattr(self, name))
        if self.delay is not None and self.at is not None:
            raise ConfigError(f"{what}: give delay or at, not both")
        if self.unique == "key" and not self.key:
            raise ConfigError(f"{what}: unique is 'key', but the job has no key: give key=... too")
        if (self.unique != "") + (self.id != "") + (self.idempotency_key != "") > 1:
            raise ConfigError(f"{what}: unique, id and idempotency_key each make a job unique: give one of them")
        if self.replace not in (True, False):
            raise ConfigError(f"{what}: replace is {self.replace!r}; it must be True or False")
        if self.replace and not (self.unique and self.is_later):
            raise ConfigError(f"{what}: replace is for scheduled unique jobs: give unique=..., and delay=... or at=...")
        self._check_unique(what)
        if self.priority or type(self.priority) is not int:
            check_priority(what, self.priority)
        if self.ttl is not None and self.ttl <= 0:
            raise ConfigError(f"{what}: ttl is {self.ttl:g} s; it must be more than 0")

    def _check_unique(self, what: str) -> None:
        for name, values in (("unique_until", ("ended", "started")), ("on_duplicate", ("skip", "raise"))):
            if getattr(self, name) not in values:
                raise ConfigError(
                    f"{what}: {name} is {getattr(self, name)!r}; it must be {values[0]!r} or {values[1]!r}"
                )
        if not self.is_unique and (self.unique_until, self.unique_for, self.on_duplicate) != ("ended", None, "skip"):
            raise ConfigError(f"{what}: unique_until, unique_for and on_duplicate are for unique jobs: give unique=...")
        if self.unique_for is None:
            return
        if self.unique_until == "started":
            raise ConfigError(f"{what}: give unique_until or unique_for, not both")
        if not 1 <= self.unique_for <= _LONGEST_UNIQUE_S:
            raise ConfigError(f"{what}: unique_for is {self.unique_for:g} s; it must be from 1 s to 366 days")


def check_priority(what: str, priority: object) -> None:
    """Raise ConfigError for a priority that there is not; ``what`` names the job."""
    if type(priority) is not int or not 0 <= priority <= HIGHEST_PRIORITY:
        raise ConfigError(f"{what}: priority is {priority!r}; it must be a whole number from 0 to {HIGHEST_PRIORITY}")


class OptionFields(TypedDict, total=False):
    """The options of `JobOptions` as keyword arguments; durations in seconds or as `timedelta`."""

    key: str
    delay: float | timedelta | None
    at: datetime | None
    ttl: float | timedelta | None
    priority: int
    tenant: str
    unique: str
    replace: bool
    unique_until: Literal["ended", "started"]
    unique_for: float | timedelta | None
    on_duplicate: Literal["skip", "raise"]
    id: str
    idempotency_key: str


PLAIN: Final = JobOptions()
"""The options of a job that was enqueued with none."""
_LONGEST_UNIQUE_S: Final = 366 * 86_400.0
_NAMES: Final = frozenset(JobOptions.__struct_fields__)


def job_options(what: str, given: Any) -> JobOptions:
    """Return checked options from keyword arguments. Raises ConfigError, which names ``what`` they are for."""
    unknown = sorted(given.keys() - _NAMES)
    if unknown:
        raise ConfigError(f"{what}: there is no option {unknown[0]!r}; the options are {', '.join(sorted(_NAMES))}")
    fields = dict(given)
    for name in ("delay", "ttl", "unique_for"):
        value: Seconds | None = fields.get(name)
        if value is not None:
            fields[name] = seconds(f"{what}: {name}", value)
    if fields.get("at") is not None:
        time_text("at", fields["at"], what)
    options = JobOptions(**fields)
    options.check(what)
    return options


def due_time(options: JobOptions, now: int) -> int:
    """Return when a job is to start, in wall nanoseconds; 0: as soon as possible."""
    due = 0
    if options.at is not None:
        due = datetime_ns(options.at)
    elif options.delay is not None:
        due = now + int(options.delay * 1e9)
    return due if due > now else 0


# --- when the jobs of a schedule are due: what a user passes, checked, and the next time. Pure

_OVERLAPS: Final = ("skip", "allow")
_SHORTEST_S: Final = 1.0


def timetable_of(
    queue: str, name: object, cron: str | None, timezone: str | None, every: Seconds | None, overlap: str
) -> Timetable:
    """Return when the jobs of a schedule are due, from what a user passes. Raises ConfigError."""
    what = f"queue {queue!r}: schedule {checked_text(f'queue {queue!r}: the name of a schedule', name)!r}"
    if (cron is None) == (every is None):
        raise ConfigError(f"{what}: give cron or every, one of them")
    if overlap not in _OVERLAPS:
        raise ConfigError(f"{what}: overlap is {overlap!r}; it must be 'skip' or 'allow'")
    if every is not None:
        if timezone is not None:
            raise ConfigError(f"{what}: an interval (every) has no time zone: leave timezone out, or give cron")
        interval = seconds(f"{what}: every", every)
        if interval < _SHORTEST_S:
            raise ConfigError(f"{what}: every is {interval:g} s; it must be at least 1 s")
        return Timetable(str(name), every=interval, overlap=overlap)
    timetable = Timetable(str(name), cron=_six_fields(what, cron), timezone=timezone or "", overlap=overlap)
    try:
        first_due(_schedule_of(timetable), 0)
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from None
    return timetable


def _six_fields(what: str, cron: object) -> str:
    """Return a cron expression with the field for seconds, which most dialects do not have."""
    fields = checked_text(f"{what}: cron", cron).split()
    return " ".join(["0", *fields] if len(fields) == 5 else fields)


def schedule_text_of(timetable: Timetable) -> str:
    """Return the value of ``Nats-Schedule``."""
    return timetable.cron or f"@every {format_duration(int(timetable.every * 1e9))}"


def next_due(timetable: Timetable, since: int, now: int) -> int:
    """Return when a schedule that was stored at ``since`` is due next, in wall nanoseconds; 0 if that is not known."""
    try:
        if timetable.cron:
            return first_due(_schedule_of(timetable), now)
        # The clock may have been set back since.
        first = first_due(parse_schedule(schedule_text_of(timetable)), min(since, now))
    except ValueError:
        # Another program, or a server, may know more time zones.
        return 0
    interval = int(timetable.every * 1e9)
    return first if first > now else first + ((now - first) // interval + 1) * interval


def _schedule_of(timetable: Timetable) -> Schedule:
    return parse_schedule(timetable.cron, parse_zone(timetable.timezone) if timetable.timezone else None)
