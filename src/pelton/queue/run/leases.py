"""Keeping the leases of running jobs, off the jobs' own thread.

A keeper has its own thread, event loop and connection, so a job that blocks the worker's event loop, or a
long computation, keeps its lease. It extends a lease when a third of it has passed, and notifies a job that
its lease is lost when

- the store reports it: the delivery was replaced (this process was stopped for longer than the lease), or
- it could not extend it in time, by the time since boot of this machine, sleep included. A try that would end too
  late is cut short, and a lease is given up when no further round would come in time, so that the job is notified
  before another worker can hold it.

The store refuses what the job then returns, and its decision is final: an ack names its delivery. A NATS server
gives no such guarantee, because it confirms late acks too: there a lease is judged by the clock alone, and one that
was not extended in time is lost for good. It also confirms acks of deliveries that it has forgotten, since it was
killed, and has made to another worker: so a lease that is younger than that by a second is lost as well.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from pelton.api import AckOp, AckRejectedError, Backend, Delivered, PeltonError
from pelton.api.job_errors import describe
from pelton.jet import ack_of
from pelton.jet.registers import MovedError, OwnConnection, Register
from pelton.queue.model.limits import EMPTY, SlotRecord, beaten
from pelton.queue.run.admission import SlotJob
from pelton.runtime import LeaseClock, LeaseShares, LoopThread, within

if TYPE_CHECKING:
    from pelton.queue.registry import Extender
    from pelton.runtime import Clock

_log: Final = logging.getLogger("pelton.queue")
# ``stop`` is when the job must have been notified; after a round that failed there is another ``again``.
_SHARES: Final = LeaseShares(renew=1 / 3, stop=0.8, again=1 / 20, longest_try=1 / 4)
# The time between rounds, as a share of a lease.
_ROUND: Final = 1 / 6
_TOO_LATE: Final = "it was not extended in time"
# A killed server has not stored which messages it delivered last: measured, up to 0.2 s.
_NOT_STORED_S: Final = 1.0
# What came before the connection was lost may be taken so much later; a new server delivers nothing so soon.
_LATE_S: Final = 0.1
_FORGOTTEN: Final = "the server was started anew just after it delivered the job, and may deliver it again"


class Holder(SlotJob, Protocol):
    """A job that shares its lease with others, told on any thread. ``lost``: another worker may have it."""

    lost: bool


H = TypeVar("H", bound=Holder)


class SharedLease(Generic[H]):
    """A lease on messages that were taken together: extended together, each lost independently, at most once.

    ``asked``: since when, in seconds since boot, and ``taken`` when it was received; ``by_clock``: whether only the
    clock can tell that it is lost.
    """

    __slots__ = ("by_clock", "clock", "delivered", "holders", "lost", "taken")

    def __init__(self, holders: Sequence[H], asked: float, duration: float, *, by_clock: bool) -> None:
        # One of them: all are of one consumer.
        self.delivered: Delivered = holders[0].records.delivered
        self.clock: LeaseClock = LeaseClock(asked, duration, _SHARES)
        self.taken: float = asked
        self.by_clock: bool = by_clock
        self.lost: bool = False
        self.holders: dict[H, None] = dict.fromkeys(holders)

    def is_doubtful(self, now: float) -> bool:
        """Whether another worker may hold the message by now (seconds since boot), as far as we can tell."""
        return now >= self.clock.over_at

    def is_over(self, now: float) -> bool:
        """Whether it is lost, noticed or not: if only the clock can tell, doubt is enough."""
        return self.lost or (self.by_clock and self.is_doubtful(now))

    def is_forgotten(self, restarted_at: float) -> bool:
        """Whether a server that was started anew may not know that it has delivered the message."""
        return self.by_clock and -_LATE_S <= restarted_at - self.taken <= _NOT_STORED_S

    def kept_by(self) -> list[H]:
        """Return the jobs that still hold it."""
        return [holder for holder in list(self.holders) if not holder.lost]

    def lose(self, reason: str) -> None:
        """Notify all remaining jobs, once."""
        if not self.lost:
            self.lost = True
            for holder in self.kept_by():
                holder.lose(reason)


AnyLease = SharedLease[Any]


class LeaseKeeper:
    """Extends all leases of one worker. ``duration`` in seconds; ``restarted_at`` is that of the jobs' backend."""

    def __init__(
        self, backend: Extender, clock: Clock, duration: float, restarted_at: Callable[[], float] = lambda: -inf
    ) -> None:
        self._clock = clock
        self._restarted_at = restarted_at
        self._duration = duration
        self._leases: dict[int, AnyLease] = {}
        self._stopping = False
        # Set to be noticed at once: that it stops, or a lease that can't wait for the next round.
        self._woken = threading.Event()
        self._thread = LoopThread(self._keep, "pelton-leases")
        self._connection = OwnConnection(
            backend.clone, clock, duration * _SHARES.longest_try, lambda error: self._lose_all(describe(error))
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; leases that are still held run out."""
        self._stopping = True
        self._woken.set()
        self._thread.join()

    def hold(self, lease: AnyLease) -> None:
        """Keep a lease from now on; one that is old already, because it took long to get, is extended at once."""
        lease.taken = self._clock.boottime()
        self._leases[id(lease)] = lease
        if lease.clock.is_due(self._clock.boottime()):
            self._thread.call_soon(self._watch, lease)
            self._woken.set()

    def release(self, lease: AnyLease) -> None:
        """Stop keeping a lease."""
        self._leases.pop(id(lease), None)

    async def _keep(self) -> None:
        try:
            # Blocking this loop is intended: between two rounds it has nothing to do, and must take no time from jobs.
            pause = self._duration * _ROUND
            while not self._stopping:
                if await self._thread.block(self._woken, pause):
                    self._woken.clear()
                if not self._stopping:
                    pause = await self.round()
        finally:
            await self._connection.leave()

    def _watch(self, lease: AnyLease) -> None:
        """Lose a lease in time even if a round is under way, which does not know it."""

        def look() -> None:
            if id(lease) in self._leases and lease.is_over(self._clock.boottime()):
                lease.lose(_TOO_LATE)

        self._clock.call_later(lease.clock.seconds_left(self._clock.boottime()), look)

    async def round(self) -> float:
        """Extend what is due and lose what is over; return how many seconds later at most the next round is needed."""
        due = self._due()
        if not due:
            return self._duration * _ROUND
        try:
            await self._extend(self._connection.get(), due)
        except Exception as error:  # a keeper that dies silently would lose every lease
            _log.warning(
                "could not extend %d leases: %s", len(due), describe(error), extra={"stream": due[0].delivered.stream}
            )
            self._give_up_late(due, describe(error))
            if not isinstance(error, TimeoutError):
                # A store that is only slow keeps its connection: closing would wait for it as well.
                await self._connection.leave()
            return self._duration * _SHARES.again
        return self._duration * _ROUND

    def _lose_all(self, error: str) -> None:
        # The store the jobs were taken through has failed for good: none of them can be settled any more.
        for lease in list(self._leases.values()):
            lease.lose(f"the store cannot be used any more: {error}")

    def _due(self) -> list[AnyLease]:
        now = self._clock.boottime()
        for lease in list(self._leases.values()):
            if lease.is_over(now):
                lease.lose(_TOO_LATE)
            elif lease.is_forgotten(self._restarted_at()):
                lease.lose(_FORGOTTEN)
        return [lease for lease in list(self._leases.values()) if not lease.lost and lease.clock.is_due(now)]

    async def _extend(self, backend: Extender, due: list[AnyLease]) -> None:
        groups: dict[tuple[str, str], list[AnyLease]] = {}
        for lease in due:
            groups.setdefault((lease.delivered.stream, lease.delivered.consumer), []).append(lease)
        # All at once: one after another, slow answers would add up, and the last be asked for too late.
        extending = (self._extend_group(backend, *place, leases) for place, leases in groups.items())
        for answer in await asyncio.gather(*extending, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def _extend_group(self, backend: Extender, stream: str, consumer: str, leases: list[AnyLease]) -> None:
        asked = self._clock.boottime()
        holders = [(lease, holder) for lease in leases for holder in lease.kept_by()]
        if not holders:
            return
        acks = [ack_of(holder.records.delivered, "progress") for _, holder in holders]
        answers = await within(self._clock, self._time_left(leases, asked), backend.ack(stream, consumer, acks))
        for (lease, holder), refused in zip(holders, answers, strict=True):
            if refused is None:
                # It counts from before it was requested.
                lease.clock.confirm(asked)
            elif id(lease) in self._leases:
                holder.lose(str(refused))

    def _time_left(self, leases: list[AnyLease], now: float) -> float:
        left = min(lease.clock.try_for(now) for lease in leases)
        # What is late already is asked for all the same: nobody may have taken it yet.
        return left or self._duration * _SHARES.longest_try

    def _give_up_late(self, leases: list[AnyLease], reason: str) -> None:
        now = self._clock.boottime()
        for lease in leases:
            if lease.clock.seconds_left(now) <= lease.clock.pause and id(lease) in self._leases:
                lease.lose(f"the lease could not be extended in time: {reason}")


class SlotExtender:
    """Extends leases, and the slots of their jobs. ``slots``: the places of each job that holds any, by sequence.

    ``slots`` is read by the keeper's thread, and changed by the worker's event loop.
    """

    def __init__(
        self,
        inner: Extender,
        backend: Backend,
        register: Register[SlotRecord],
        slots: Mapping[int, Collection[str]],
        worker: str,
        clock: Clock,
    ) -> None:
        self._inner = inner
        self._backend = backend
        self._register = register
        self._slots = slots
        self._worker = worker
        self._clock = clock
        # A copy's own connection for the records, once it needs one.
        self._own: Backend | None = None
        self._is_copy = False

    def clone(self) -> SlotExtender:
        """Return a copy for another thread."""
        copy = SlotExtender(self._inner.clone(), self._backend, self._register, self._slots, self._worker, self._clock)
        copy._is_copy = True
        return copy

    async def close(self) -> None:
        own, self._own = self._own, None
        await self._inner.close()
        if own is not None:
            await own.close()

    def _connect(self) -> Register[SlotRecord]:
        if self._is_copy and self._own is None:
            self._own = self._backend.clone()
            self._register = self._register.over(self._own)
        return self._register

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Extend leases; one entry each: None, or why the lease is lost."""
        places: dict[str, list[int]] = {}
        for ack in acks:
            for place in self._slots.get(ack.seq, ()):
                places.setdefault(place, []).append(ack.seq)
        if not places:
            return await self._inner.ack(stream, consumer, acks)
        found = await asyncio.gather(*(self._extend(place, jobs) for place, jobs in places.items()))
        lost = {job for jobs in found for job in jobs}
        # The lease of a job that has lost its slot runs out, so that it is taken anew.
        kept = [ack for ack in acks if ack.seq not in lost]
        answers = iter(await self._inner.ack(stream, consumer, kept) if kept else [])
        why = "its slot of a limit was given to another job"
        return [AckRejectedError(stream, consumer, ack.seq, why) if ack.seq in lost else next(answers) for ack in acks]

    async def _extend(self, place: str, jobs: Sequence[int]) -> list[int]:
        """Extend the slots of jobs at a place; return those that have none any more."""
        register = self._connect()
        while True:
            seq, record = await register.read(place)
            record = record or EMPTY
            mine = record.workers.get(self._worker)
            held = set(mine.jobs) if mine is not None else set()
            # One that was released meanwhile is not lost.
            lost = [job for job in jobs if job not in held and place in self._slots.get(job, ())]
            if not held.intersection(jobs):
                return lost
            try:
                await register.write(place, beaten(record, self._worker, self._clock.now()), seq)
            except MovedError:
                continue
            return lost
