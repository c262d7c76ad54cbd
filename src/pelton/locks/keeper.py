"""Renews leases independently of their holders' code.

Design: A keeper renews every lease when a third of its time to live has passed, retries if no answer comes,
and notifies the holder when a lease is lost: when the store says so, or when time is up by the holder's own clock, even
while an attempt is still in progress. :class:`LockKeeper` runs on the event loop it is used on; :class:`ThreadKeeper`
has its own thread, loop and connection, so that a holder that computes, or blocks its event loop, keeps its lease.
The thread starts with the first lease, the connection with the first renewal: locks held briefly cost neither.

A renewal expects the revision of the last write. If that is refused, the key is read: if it still has this
holder's id, an earlier renewal was stored without an answer; otherwise the lease is lost.

**A lease, as its holder sees it: pure.** A lease is a key with a time to live, written by its holder repeatedly. The
store expires it by its own clock, from when it stored the last write; the holder by its own
(:class:`pelton.runtime.LeaseClock`), from *before* it sent that write, and it stops four fifths into the time to live.

    held --- released             by its holder
      `----- lost                 another holder has it in the store, or it was not renewed in time

Both ends are final. The holder counts on both of its clocks: if a server shares its machine, the wall clock is also the
store's, and setting it forward ends a lease for all at once. A store file counts the time since boot (``steady``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from pelton.api import Backend, PeltonError, WrongLastSequenceError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet import Streams
from pelton.jet.registers import OwnConnection
from pelton.locks.lock_table import Holding, LockTable, encode, holding_of
from pelton.runtime import Clock, LeaseClock, LeaseShares, LoopThread, Runtime, Signal, Tasks, within

LeaseState = Literal["held", "released", "lost"]
_SHARES: Final = LeaseShares(renew=1 / 3, stop=0.8, again=1 / 20, longest_try=1 / 4)
# How long after its holder must have stopped the store expires a lease, as a share of the time to live.
ENDS_AFTER: Final = 1 - _SHARES.stop


class ClockReading(NamedTuple):
    """One reading of both clocks: seconds since boot, wall nanoseconds."""

    boot: float
    wall: int


def moment(clock: Clock) -> ClockReading:
    return ClockReading(clock.boottime(), clock.now())


def counted_from(asked: ClockReading, answered: ClockReading) -> ClockReading:
    """Return from when a write counts that was sent and answered then: never later than the store's own word for it.

    The wall clock may have been set back in between.
    """
    return ClockReading(asked.boot, min(asked.wall, answered.wall))


class HeldLease:
    """A key held with a ``token`` since the write that made it was sent (``asked``), for ``ttl`` seconds at a time.

    ``steady``: setting the wall clock does not end it in the store.
    """

    reason: str
    revision: int

    __slots__ = ("_next_try", "_steady", "clock", "key", "reason", "revision", "state", "token", "ttl")

    def __init__(self, key: str, token: int, ttl: int, asked: ClockReading, *, steady: bool = False) -> None:
        self.key: str = key
        self.token: int = token
        self.ttl: int = ttl
        self.revision = token
        self._steady = steady
        self.clock: LeaseClock = LeaseClock(asked.boot, ttl, _SHARES, self._wall(asked))
        self.state: LeaseState = "held"
        self.reason = ""
        self._next_try = self.clock.due_at

    def _wall(self, reading: ClockReading) -> int:
        return 0 if self._steady else reading.wall

    @property
    def renew_after(self) -> float:
        """The seconds after a confirmation until it is due for renewal."""
        return self.clock.renew_after

    def is_over(self, now: ClockReading) -> bool:
        """Whether the holder must have stopped, notified or not."""
        return self.state != "held" or self.clock.is_over(now.boot, self._wall(now))

    def seconds_left(self, now: ClockReading) -> float:
        """Return for how many seconds the holder may go on if it is never renewed."""
        return self.clock.seconds_left(now.boot, self._wall(now)) if self.state == "held" else 0.0

    def judge(self, now: ClockReading) -> bool:
        """Note that time is up, if it is; return whether this is news."""
        if self.state != "held" or not self.is_over(now):
            return False
        self.lose("it was not renewed in time")
        return True

    def is_due(self, now: ClockReading) -> bool:
        """Whether it must be renewed now."""
        return self.state == "held" and now.boot >= self._next_try

    def wake_at(self) -> float:
        """Return when it needs attention, in seconds since boot."""
        return min(self._next_try, self.clock.over_at)

    def try_until(self, now: ClockReading) -> float:
        """Start a renewal and return its time limit in seconds. It is not due again before :meth:`note_failure`."""
        self._next_try = float("inf")
        return self.clock.try_for(now.boot, self._wall(now)) if self.state == "held" else 0.0

    def note_renewal(self, revision: int, asked: ClockReading) -> None:
        """Note that the store has accepted a renewal sent at ``asked``."""
        self.revision = revision
        self.clock.confirm(asked.boot, self._wall(asked))
        self._next_try = self.clock.due_at

    def note_found(self, revision: int, now: ClockReading) -> None:
        """Note that the store holds a renewal whose answer was lost: it is renewed once more, at once."""
        self.revision = revision
        self._next_try = now.boot

    def note_failure(self, now: ClockReading) -> None:
        """Note that nobody knows whether a renewal was taken: it is tried again soon."""
        self._next_try = now.boot + self.clock.pause

    def lose(self, reason: str) -> None:
        """End it: another holder may have the key."""
        if self.state == "held":
            self.state, self.reason = "lost", reason

    def release(self) -> None:
        """End it, released by its holder."""
        if self.state == "held":
            self.state = "released"


_log: Final = logging.getLogger("pelton.locks")
_FAR_S: Final = 3600.0
_LEAVE_S: Final = 5.0


class Renewal(NamedTuple):
    """A lease that a keeper renews: what to write, and the callback, on any thread, for when it is lost."""

    lease: HeldLease
    holding: Holding
    on_lost: Callable[[], None]


class LockKeeper:
    """Renews leases on the event loop that it is used on."""

    def __init__(self, backend: Backend, runtime: Runtime) -> None:
        self._clone = backend.clone
        self._connection = OwnConnection(self._own_table, runtime.clock, _LEAVE_S, self._store_ended)
        backend.on_end(self._store_ended)
        self._runtime = runtime
        self._clock = runtime.clock
        self._kept: dict[int, Renewal] = {}
        self._signal = Signal()
        self._wakes_at = float("inf")
        # The shortest time after which a lease was due, among those held recently.
        self._soonest = float("inf")
        self._has_held = False
        self._is_running = False
        self._is_stopping = False

    def hold(self, kept: Renewal) -> None:
        """Renew a lease from now on."""
        self._kept[id(kept.lease)] = kept
        self._soonest = min(self._soonest, kept.lease.renew_after)
        self._has_held = True
        if not self._is_running:
            self._is_running = True
            self._start()
        elif kept.lease.wake_at() < self._wakes_at:
            self._nudge()

    def drop(self, lease: HeldLease) -> None:
        """Stop renewing a lease."""
        self._kept.pop(id(lease), None)

    async def close(self) -> None:
        """Stop renewing: all leases still held are lost."""
        self._is_stopping = True
        for kept in list(self._kept.values()):
            self._lose(kept, "the store was closed")
        if self._is_running:
            self._nudge()

    def _own_table(self) -> LockTable:
        """Return the table of locks over a separate connection."""
        backend = self._clone()
        backend.on_end(self._on_disconnect)
        return LockTable(Streams(backend, self._runtime))

    # --- where it runs

    def _start(self) -> None:
        self._spawn(self._keep(), "pelton-keeper")

    def _nudge(self) -> None:
        self._signal.notify()

    def _spawn(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        self._runtime.spawn(coro, name)

    # --- what it does

    async def _keep(self) -> None:
        try:
            while not self._is_stopping:
                seen = self._signal.generation
                self._turn()
                await self._signal.wait_at_most(self._clock, self._wakes_at - self._clock.boottime(), seen)
        finally:
            await self._connection.leave()

    def _turn(self) -> None:
        # Before the leases are checked: one added during that, by another thread, then wakes us.
        self._wakes_at = float("inf")
        now = moment(self._clock)
        for kept in list(self._kept.values()):
            if kept.lease.is_over(now):
                kept.lease.judge(now)
                self._notify(kept)
            elif kept.lease.is_due(now):
                self._spawn(self._renew(kept, kept.lease.try_until(now)), "pelton-renewal")
        self._wakes_at = self._wake(now.boot)

    def _wake(self, now: float) -> float:
        """Return when to check again.

        Locks that are acquired and released frequently must not wake this thread each time: while there are such, it
        checks by itself as often as the next one may need it.
        """
        kept, has_held, self._has_held = list(self._kept.values()), self._has_held, False
        if not kept and not has_held:
            self._soonest = float("inf")
        return min((one.lease.wake_at() for one in kept), default=now + min(self._soonest, _FAR_S))

    async def _renew(self, kept: Renewal, seconds: float) -> None:
        try:
            await within(self._clock, seconds, self._write(kept))
        except WrongLastSequenceError as error:
            self._lose(kept, f"another has it, at revision {error.seq}")
        except Exception as error:  # a keeper that died silently would lose every lease
            _log.warning(
                "could not renew %s: %s", kept.lease.key, error or type(error).__name__, extra={"lock": kept.lease.key}
            )
            kept.lease.note_failure(moment(self._clock))
            if isinstance(error, FINAL_ERRORS):
                # If no other connection can be opened, the holders of leases that are not due yet are notified as well.
                await self._reconnect()
            elif not isinstance(error, TimeoutError):
                # A connection to a slow store is kept: closing it would wait as well.
                await self._connection.leave()
        self._signal.notify()

    async def _write(self, kept: Renewal) -> None:
        lease, table, asked = kept.lease, self._connection.get(), moment(self._clock)
        try:
            revision = await table.write(lease.key, encode(kept.holding), lease.revision, lease.ttl)
        except WrongLastSequenceError:
            row = await table.ask(lease.key)
            holder = None if row is None else holding_of(row.data)
            if row is None or holder is None or holder.owner != kept.holding.owner:
                raise
            lease.note_found(row.revision, moment(self._clock))
        else:
            # It counts from before it was sent, never from its answer.
            lease.note_renewal(revision, counted_from(asked, moment(self._clock)))

    # --- the end of the store

    def _store_ended(self, error: Exception) -> None:
        """Handle the end of the store that the leases were acquired through: none can be renewed any more."""
        for kept in list(self._kept.values()):
            self._lose(kept, f"its store cannot be used any more ({error})")

    def _on_disconnect(self, error: Exception) -> None:
        """Handle the end of the separate connection: open another one, or report that it is impossible."""
        self._spawn(self._reconnect(), "pelton-keeper-reconnects")

    async def _reconnect(self) -> None:
        await self._connection.leave()
        if self._kept:
            # After a transient error the next renewal tries again.
            with suppress(PeltonError):
                self._connection.get()

    def _lose(self, kept: Renewal, reason: str) -> None:
        # A dropped lease is being released, perhaps while a renewal was under way: the release finds out whose it is.
        if kept.lease.state == "held" and id(kept.lease) in self._kept:
            kept.lease.lose(reason)
            self._notify(kept)

    def _notify(self, kept: Renewal) -> None:
        self.drop(kept.lease)
        kept.on_lost()


class ThreadKeeper(LockKeeper):
    """Renews leases on its own thread, over its own connection."""

    def __init__(self, backend: Backend, runtime: Runtime) -> None:
        super().__init__(backend, runtime)
        self._tasks = Tasks()
        self._thread = LoopThread(self._keep, "pelton-keeper")

    async def close(self) -> None:
        """Stop renewing, and end the thread."""
        await super().close()
        if self._is_running:
            await asyncio.to_thread(self._thread.join)

    def _start(self) -> None:
        self._thread.start()

    def _spawn(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.spawn(coro, name)

    def _nudge(self) -> None:
        self._thread.call_soon(self._signal.notify)
