"""Limits, with the record of who holds their slots and when the next job may start, and the orders to workers. Pure.

A limit belongs to a queue and holds in all its workers. It is for all jobs of the queue or for those of one name, and
counts them together or, ``per_key``, for each key by itself. A job starts when all limits that it is under let it. Its
record is one message of one subject, replaced under the condition that it is still the one its writer has seen, so two
workers that decide on the same record cannot both succeed.

Concurrency: a worker's part of the record lists the jobs that it runs, and changes (``beat``) each time the worker
extends their leases. A worker that dies leaves a part that changes no more: others drop it when they have seen it
unchanged for a lease on their own clocks. Its jobs were told by then that they are lost, because a holder gives up
earlier. Workers of the same machine see that its ``process`` has ended, and drop it at once. A job that was taken anew,
by whomever, has one slot: the earlier holder of its lease has none any more.

Rate: one time says all (the generic cell rate algorithm). Each start moves it by the interval of the rate; a start is
allowed while it is no further ahead than a burst.

**What the workers of a queue are to heed, whichever process they run in.** An order is the last message of its
subject in the queue's control stream, so a worker that starts reads all that hold first, and every worker hears of a
new one within moments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from math import ceil, inf
from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgspec

from pelton.api import ConfigError, JobCancelledError, Outgoing, headers
from pelton.queue.model.naming import token_of
from pelton.queue.model.options import checked_text, seconds, whole
from pelton.runtime import ProcessIdentity, WallOffset

if TYPE_CHECKING:
    from pelton.queue.model.naming import QueueNames

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
        return f"{self.scope}.{token_of(key)}" if self.per_key else self.scope


def number_of(limit: str) -> int:
    """Return the number by which a store tells for which limit a job is held; 0 for none."""
    return crc32(limit.encode()) or 1 if limit else 0


def scope_of(job: str, per_key: bool) -> str:
    """Return what a limit is for, as part of a subject."""
    if not job:
        return "key" if per_key else WHOLE_QUEUE
    return f"job.{token_of(job)}.key" if per_key else f"job.{token_of(job)}"


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
        rate=None if rate is None else _check_rate(what, rate),
    )


def _check_rate(what: str, rate: Rate) -> Rate:
    if not isinstance(rate, Rate):
        raise ConfigError(f"{what}: rate is {rate!r}; give a pelton.Rate(100, per=60)")
    starts, burst = whole(f"{what}: starts of the rate", rate.starts), whole(f"{what}: burst of the rate", rate.burst)
    per = seconds(f"{what}: per of the rate", rate.per)
    if not 0 < per / starts <= _LONGEST_INTERVAL_S:
        raise ConfigError(f"{what}: per of the rate is {per:g} s; it must be more than 0, and a start a year at least")
    return Rate(starts, per, burst)


# A record that is further ahead is one of a clock, of another machine, that was set back since.
_CLOCKS_DIFFER_NS: Final = 60 * 10**9
_KEEP_FOR_S: Final = 60


class WorkerSlots(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The slots of one worker: its jobs, by sequence. ``beat`` differs each time it is written.

    ``process`` is the worker's; None if its system, or an older version, does not tell.
    """

    beat: int
    jobs: tuple[int, ...]
    process: ProcessIdentity | None = None


class SlotRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a limit. ``ahead`` is the time of its rate, in wall nanoseconds, for starts ``interval`` apart.

    ``clock`` is that of the worker which wrote this time; None if an older version did.
    """

    workers: dict[str, WorkerSlots] = {}
    ahead: int = 0
    interval: int = 0
    clock: WallOffset | None = None

    def ahead_on(self, clock: WallOffset) -> int:
        """Return the time of the rate on a machine's ``clock``, which may have been set since it was written."""
        was = self.clock
        return self.ahead if was is None or was.boot != clock.boot else self.ahead + clock.ahead - was.ahead

    def ttl(self, now: int) -> int:
        """Return after how many seconds the record says nothing any more; 0 while it has holders."""
        return 0 if self.workers else max((self.ahead - now) // 10**9, 0) + _KEEP_FOR_S


EMPTY: Final = SlotRecord()
UNKNOWN_OFFSET: Final = WallOffset("", 0)
"""Of a machine that does not name its runs: times of earlier ones can't be compared with it."""
encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(SlotRecord).decode


def beaten(record: SlotRecord, worker: str, now: int) -> SlotRecord:
    """Return the record after a worker has extended the leases of its jobs, at ``now`` (wall nanoseconds)."""
    mine = record.workers[worker]
    written = msgspec.structs.replace(mine, beat=max(mine.beat + 1, now))
    return msgspec.structs.replace(record, workers={**record.workers, worker: written})


class SlotDraft:
    """What one worker makes of a record: takes slots and returns them.

    ``limit`` is None for one that was taken away; ``mine`` are the jobs that the worker holds slots for, whatever the
    record says; ``dead`` are workers whose leases, or processes, have ended; ``now`` in wall nanoseconds, of this
    ``clock``; ``process`` is the worker's.
    """

    def __init__(
        self,
        limit: JobLimit | None,
        before: SlotRecord,
        worker: str,
        mine: Iterable[int],
        dead: Collection[str],
        now: int,
        process: ProcessIdentity | None = None,
        clock: WallOffset = UNKNOWN_OFFSET,
    ) -> None:
        self._limit = limit
        self._before = before
        self._worker = worker
        self._now = now
        self._process = process
        self._clock = clock
        self._mine = dict.fromkeys(mine)
        self._others = {
            name: list(slots.jobs) for name, slots in before.workers.items() if name != worker and name not in dead
        }
        self._ahead, self._interval = self._rate_of(before)

    def _rate_of(self, before: SlotRecord) -> tuple[int, int]:
        rate = self._limit.rate if self._limit is not None else None
        ahead = before.ahead_on(self._clock)
        if rate is None:
            return ahead, before.interval
        interval = rate.interval_ns
        slack = (rate.burst - 1) * interval
        is_lost = ahead > self._now + slack + interval + _CLOCKS_DIFFER_NS
        if before.interval != interval or is_lost:
            # Of another rate, or of another time: one may start, the others after it.
            return (min(ahead, self._now + slack), interval)
        return ahead, interval

    def _count_held(self) -> int:
        return len(self._mine) + sum(map(len, self._others.values()))

    def wait(self, job: int) -> float:
        """Return in how many seconds a job may start: 0 for now, infinity for when a slot is returned."""
        limit = self._limit
        if limit is None:
            return 0.0
        if limit.concurrency is not None and job not in self._mine:
            # It takes the place of the worker that held it before.
            replaced = any(job in jobs for jobs in self._others.values())
            if self._count_held() - replaced >= limit.concurrency:
                return inf
        if limit.rate is None:
            return 0.0
        return max(self._ahead - (limit.rate.burst - 1) * self._interval - self._now, 0) / 1e9

    def start(self, job: int) -> None:
        """Let a job start, which need not wait."""
        limit = self._limit
        if limit is None:
            return
        if limit.concurrency is not None:
            for jobs in self._others.values():
                if job in jobs:
                    jobs.remove(job)
            self._mine[job] = None
        if limit.rate is not None:
            self._ahead = max(self._ahead, self._now) + self._interval

    def leave(self, job: int) -> None:
        self._mine.pop(job, None)

    @property
    def room(self) -> int | None:
        """How many more jobs may start now; None: any number."""
        limit, rooms = self._limit, list[int]()
        if limit is not None and limit.concurrency is not None:
            rooms.append(max(limit.concurrency - self._count_held(), 0))
        if limit is not None and limit.rate is not None:
            ahead = max(self._ahead, self._now) - self._now
            rooms.append(max(limit.rate.burst - -(-ahead // self._interval), 0))
        return min(rooms, default=None)

    def record(self) -> SlotRecord:
        workers = {
            name: msgspec.structs.replace(self._before.workers[name], jobs=tuple(jobs))
            for name, jobs in self._others.items()
            if jobs
        }
        if self._mine:
            before = self._before.workers.get(self._worker)
            # A part that was gone in between must not look like the same one.
            beat = max(before.beat + 1 if before is not None else 0, self._now)
            workers[self._worker] = WorkerSlots(beat, tuple(self._mine), self._process)
        return SlotRecord(
            workers, self._ahead, self._interval, self._clock if self._ahead and self._clock.boot else None
        )


_HEARD: Final = "10m"
_MOST_ENDED: Final = 10_000
encode_order: Final = msgspec.json.Encoder().encode


class TenantWeight(msgspec.Struct, frozen=True):
    """How many turns a tenant has while one of weight 1 has one."""

    tenant: str
    weight: int


class Order(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One order: ``cancel`` names a job, ``pause_key`` and ``pause_job`` what is paused, if not all is.

    ``limit`` is one of the queue's limits, ``weight`` that of a tenant, ``flows`` says that the queue has flows, and
    ``signals`` that jobs wait for some; ``waits`` is a job that was given back for a worker of a ``version``.
    ``over`` takes an order back. ``stop`` names a worker that is to stop. ``ended``: the job that ``cancel`` names has
    ended, and only who runs it is to hear.
    """

    cancel: str = ""
    pause_all: bool = False
    pause_key: str = ""
    pause_job: str = ""
    limit: JobLimit | None = None
    weight: TenantWeight | None = None
    reason: str = ""
    over: bool = False
    flows: bool = False
    signals: bool = False
    waits: str = ""
    version: str = ""
    ended: bool = False
    stop: str = ""

    @property
    def pause_scopes(self) -> tuple[str, ...]:
        """What is paused of the queue, as parts of subjects."""
        return tuple(filter(None, (_of_key(self.pause_key), _of_job(self.pause_job))))


decode_order: Final = msgspec.json.Decoder(Order).decode
_ORDER_TTL: Final = headers.encode({headers.TTL: "72h"})


def version_order(names: QueueNames, job_id: str, version: str) -> Outgoing:
    """Return what tells the workers of a version that a job was given back for them."""
    order = Order(waits=job_id, version=version)
    return Outgoing(names.order_subject(f"version.{job_id}"), encode_order(order), _ORDER_TTL)


class Orders:
    """The orders that hold, as one worker knows them."""

    is_all_paused: bool

    def __init__(self) -> None:
        self._cancelled: dict[str, str] = {}
        # Those of jobs that have ended: nobody says when they can be forgotten.
        self._ended: dict[str, None] = {}
        self.is_all_paused = False
        # Whether any job, key or name is cancelled or paused.
        self.has_any: bool = False
        self._paused_keys: set[str] = set()
        self._paused_jobs: set[str] = set()

    def heed(self, order: Order) -> None:
        """Note an order, which replaces an earlier one of its subject."""
        if order.cancel and order.over:
            self._cancelled.pop(order.cancel, None)
        elif order.cancel:
            self._cancelled[order.cancel] = order.reason
            if order.ended:
                self._ended[order.cancel] = None
            if len(self._ended) > _MOST_ENDED:
                oldest = next(iter(self._ended))
                del self._ended[oldest]
                self._cancelled.pop(oldest, None)
        if order.pause_all:
            self.is_all_paused = not order.over
        for named, paused in ((order.pause_key, self._paused_keys), (order.pause_job, self._paused_jobs)):
            if named and order.over:
                paused.discard(named)
            elif named:
                paused.add(named)
        self.has_any = bool(self._cancelled or self._paused_keys or self._paused_jobs)

    @property
    def paused_keys(self) -> tuple[str, ...]:
        """The keys whose jobs are not to start."""
        return tuple(sorted(self._paused_keys))

    @property
    def paused_jobs(self) -> tuple[str, ...]:
        """The names of the jobs that are not to start."""
        return tuple(sorted(self._paused_jobs))

    def cancellation(self, job_id: str, key: str) -> JobCancelledError | None:
        reason = self._cancelled.get(job_id)
        return None if reason is None else JobCancelledError(job_id, key, reason)

    def pause_of(self, key: str, job: str) -> str:
        """Return the scope for which jobs of this key, or of this name, are not to start now; empty if they are."""
        if key in self._paused_keys:
            return _of_key(key)
        return _of_job(job) if job in self._paused_jobs else ""


def _of_key(key: str) -> str:
    return key and f"pause.key.{token_of(key)}"


def _of_job(job: str) -> str:
    return job and f"pause.job.{token_of(job)}"


def to_cancel(names: QueueNames, job_id: str, reason: str, *, ended: bool) -> Outgoing:
    """Return the order to cancel a job; ``ended``: it has, which whoever runs it is to hear."""
    order = Order(cancel=job_id, reason=reason, ended=ended)
    block = headers.encode({headers.TTL: _HEARD}) if ended else None
    return Outgoing(names.cancel_subject(job_id), encode_order(order), block)


def carried_out(names: QueueNames, job_id: str) -> Outgoing:
    """Return the message that takes back the order to cancel a job, which has ended: every worker forgets it.

    It goes by itself, so that neither the stream nor the workers keep what is over.
    """
    block = headers.encode({headers.TTL: _HEARD})
    return Outgoing(names.cancel_subject(job_id), encode_order(Order(cancel=job_id, over=True)), block)
