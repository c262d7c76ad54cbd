"""Locks and semaphores: their handles, the handle of one that is held, and what those of one store share."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from pelton.api import (
    Backend,
    LockLostError,
    LockNotHeldError,
    LockReentryError,
    LockTimeoutError,
    PeltonError,
    WrongLastSequenceError,
)
from pelton.api.build import seconds_to_ns
from pelton.api.times import Seconds
from pelton.jet import Streams
from pelton.locks.acquisition import Acquisition, Got, WaitQueue
from pelton.locks.keeper import ENDS_AFTER, LockKeeper, Renewal, ThreadKeeper, moment
from pelton.locks.lock_table import LockSpec, LockTable, holding_of
from pelton.runtime import Clock, Runtime, Signal, owner, within


class LockManager:
    """Manages the locks and semaphores of one open store."""

    def __init__(self, jet: Streams, keeper: Callable[[Backend, Runtime], LockKeeper] = ThreadKeeper) -> None:
        self.runtime: Runtime = jet.runtime
        self.clock: Clock = jet.runtime.clock
        self.check_loop: Callable[[], None] = jet.backend.check_loop
        self.table: LockTable = LockTable(jet)
        self.keeper: LockKeeper = keeper(jet.backend, jet.runtime)
        self._who = f"{platform.node()} {os.getpid()}"
        self._waiting: set[str] = set()
        self._held: defaultdict[str, WeakSet[LockLease]] = defaultdict(WeakSet)

    def acquisition(self, spec: LockSpec) -> Acquisition:
        """Return a new acquisition. Raises LockReentryError if a caller would wait for itself."""
        if spec.kind == "lock":
            caller = owner()
            for held in list(self._held.get(str(spec), ())):
                if caller is not None and held.caller == caller and held.is_held:
                    raise LockReentryError(str(spec), held.token)
        return Acquisition(self.table, self.runtime, spec, self._who, self._waiting)

    def remember(self, held: LockLease) -> None:
        self._held[held.spec].add(held)

    def forget(self, held: LockLease) -> None:
        """Note that a lock is no longer held."""
        spec = held.spec
        leases = self._held.get(spec)
        if leases is not None:
            leases.discard(held)
            if not leases:
                del self._held[spec]

    async def close(self) -> None:
        """Stop renewing; held locks are lost."""
        await self.keeper.close()


# --- the handle of a held lock

_TRIES: Final = 3


class LockLease:
    """A held lock, or a slot of a semaphore, renewed in the background until you release it.

    ``token`` is its fencing token: larger than the tokens of all earlier holders. Send it along with your writes to
    other systems, and let them refuse a smaller one than they have seen: this protects them from a holder that
    was suspended in the middle of a write.
    """

    def __init__(self, manager: LockManager, spec: LockSpec, got: Got) -> None:
        self.name: str = spec.name
        self.token: int = got.lease.token
        self.ttl: int = spec.ttl
        self._manager = manager
        self._spec = spec
        self._lease = got.lease
        self._id = got.holding.owner
        # A task, or a thread of the blocking API.
        self.caller: object = owner()
        self.is_given_back: bool = False
        self._ended = Signal()
        self._loop = asyncio.get_running_loop()
        self._guards: list[Guard] = []
        # The keeper must not keep a lock alive that its program has dropped.
        told = weakref.WeakMethod(self._on_lost)
        manager.keeper.hold(Renewal(got.lease, got.holding, lambda: _call(told)))
        weakref.finalize(self, manager.keeper.drop, got.lease)

    def __repr__(self) -> str:
        state = "lost" if self.lost else "released" if self.is_given_back else "held"
        return f"<LockLease {self._spec} token {self.token}, {state}>"

    @property
    def lost(self) -> bool:
        """Whether another caller may hold it by now, as far as is known at this moment."""
        return self._lease.state != "released" and self._lease.is_over(moment(self._manager.clock))

    @property
    def spec(self) -> str:
        """The name of the lock or semaphore, for errors."""
        return str(self._spec)

    @property
    def is_held(self) -> bool:
        """Whether it is held at this moment: neither lost nor released."""
        return not self.is_given_back and not self._lease.is_over(moment(self._manager.clock))

    def check(self) -> None:
        """Raise LockLostError if it is lost, LockNotHeldError if it was released."""
        if self.lost:
            raise self._error()
        if not self.is_held:
            raise LockNotHeldError(str(self._spec))

    async def until_lost(self) -> bool:
        """Wait until it is lost, and return True, or released, and return False."""
        self._manager.check_loop()
        while self.is_held:
            seen = self._ended.generation
            if self.is_held:
                await self._ended.wait(seen)
        return self.lost

    async def release(self) -> None:
        """Release it: the next waiter acquires it at once.

        Raises LockNotHeldError, LockLostError; StoreError if that cannot be stored: then its lease expires.
        """
        self._manager.check_loop()
        if self.is_given_back:
            raise LockNotHeldError(str(self._spec))
        self.is_given_back = True
        self._manager.forget(self)
        self._manager.keeper.drop(self._lease)
        self._ended.notify()
        was_lost, failure = self.lost, await self._leave()
        if was_lost or self._lease.state == "lost" or (failure is not None and self.lost):
            # Whatever else went wrong, the caller must learn that another may hold it.
            raise self._error() from failure
        if failure is not None:
            raise failure
        self._lease.release()

    async def _leave(self) -> PeltonError | TimeoutError | None:
        """Remove the key; return the error if that failed."""
        try:
            # The lease expires by itself in this time: do not wait longer for a store that does not answer.
            seconds = self.ttl * ENDS_AFTER if self.lost else None
            # Even if the caller is cancelled: waiters in line must not wait for the lease to expire.
            removal = self._manager.runtime.finish(self._remove(), "pelton-lock-release")
            if not await (removal if seconds is None else within(self._manager.clock, seconds, removal)):
                self._lease.lose("another has it")
        except (PeltonError, TimeoutError) as error:
            return error
        return None

    async def _remove(self) -> bool:
        """Remove the key, if it is still ours; a renewal may be in progress."""
        table, revision = self._manager.table, self._lease.revision
        for _ in range(_TRIES):
            try:
                await table.remove(self._lease.key, revision)
                return True
            except WrongLastSequenceError:
                row = await table.ask(self._lease.key)
            holder = None if row is None else holding_of(row.data)
            if row is None or holder is None or holder.owner != self._id:
                return False
            revision = row.revision
        return False

    def guard(self) -> Guard:
        """Return a guard that cancels the running task if the lock is lost before the guard is left."""
        guard = Guard()
        self._guards.append(guard)
        return guard

    def _error(self) -> LockLostError:
        self._lease.judge(moment(self._manager.clock))
        return LockLostError(str(self._spec), self.token, self._lease.reason)

    def _on_lost(self) -> None:
        # On the keeper's thread; the loop may be gone.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._ended.notify()
        for guard in self._guards:
            guard.fire()


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    callback = method()
    if callback is not None:
        callback()


class Guard:
    """Cancels the task that created it, when fired, as :func:`asyncio.timeout` does."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[object] | None = task
        self._before = task.cancelling()
        self._has_fired = False

    def fire(self) -> None:
        """Cancel the task, if it is still in its block."""
        # A task of the blocking API has ended long before its block does.
        if self._task is not None and not self._task.done():
            self._has_fired = True
            self._task.cancel()

    async def leave(self, kind: type[BaseException] | None) -> bool:
        """Leave the block, which ended with an error of this kind; return whether it is only our cancellation."""
        task, self._task = self._task, None
        if task is None or not self._has_fired:
            return False
        is_ours = task.uncancel() <= self._before
        if kind is None or not issubclass(kind, asyncio.CancelledError):
            # The block ended before its cancellation arrived, which would hit the next await.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            return False
        return is_ours


# --- the handles of locks and semaphores

_log: Final = logging.getLogger("pelton.locks")


class Exclusion:
    """The common base of locks and semaphores. Any number of tasks may share one."""

    def __init__(self, manager: LockManager, spec: LockSpec) -> None:
        self.name: str = spec.name
        self.ttl: int = spec.ttl
        self._manager = manager
        self._spec = spec
        self._held: list[LockLease] = []
        self._blocks: list[tuple[LockLease, Guard]] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    async def acquire(self, *, timeout: Seconds | None = None) -> LockLease:
        """Acquire it, waiting at most ``timeout`` seconds (None: for ever); first come, first served.

        Raises LockTimeoutError, LockReentryError, ConfigError.
        """
        limit = None if timeout is None else seconds_to_ns("timeout", timeout, str(self._spec)) / 1e9
        acquisition = self._manager.acquisition(self._spec)
        got = await acquisition.at_once()
        if got is None:
            try:
                waiting = acquisition.in_line()
                got = await (waiting if limit is None else within(self._manager.clock, limit, waiting))
            except TimeoutError:
                assert limit is not None
                raise LockTimeoutError(str(self._spec), limit) from None
        return self._begin(got)

    async def try_acquire(self) -> LockLease | None:
        """Acquire it at once, or return None if others hold it, or wait for it.

        Raises LockReentryError, ConfigError.
        """
        got = await self._manager.acquisition(self._spec).at_once()
        return None if got is None else self._begin(got)

    def _begin(self, got: Got) -> LockLease:
        held = LockLease(self._manager, self._spec, got)
        self._manager.remember(held)
        self._held = [one for one in self._held if not one.is_given_back]
        self._held.append(held)
        return held

    async def release(self) -> None:
        """Release the lease that this caller acquired last, or the only one. Raises LockNotHeldError, LockLostError."""
        self._held = [one for one in self._held if not one.is_given_back]
        mine = [one for one in self._held if one.caller == owner()] or (self._held if len(self._held) == 1 else [])
        if not mine:
            raise LockNotHeldError(str(self._spec))
        await mine[-1].release()

    async def __aenter__(self) -> LockLease:
        held = await self.acquire()
        self._blocks.append((held, held.guard()))
        return held

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        caller = owner()
        index = max(i for i, (held, _) in enumerate(self._blocks) if held.caller == caller)
        held, guard = self._blocks.pop(index)
        is_ours = await guard.leave(kind)
        if held.is_given_back:
            return
        try:
            await held.release()
        except PeltonError as failure:
            # The block's own error says more, unless it is the cancellation caused by the loss.
            if kind is None or is_ours:
                raise
            if not isinstance(failure, LockLostError):
                _log.warning(
                    "%s could not be released, it is free when its lease expires: %s",
                    self._spec,
                    failure,
                    extra={"lock": str(self._spec)},
                )

    async def holders(self) -> list[str]:
        """Return the current holders: host and process id of each."""
        queue = WaitQueue(self._spec.keys, 0, 0)
        for row in await self._manager.table.read(self._spec.filters[:1]):
            queue.note(row, 0)
        return [slot.holder.who for slot in queue.slots.values() if slot.holder is not None]


class Lock(Exclusion):
    """A lock shared by all processes of a store or cluster, held for ``ttl`` seconds at a time.

    ``async with`` acquires it, and cancels its block with LockLostError if the lease is lost. Not re-entrant.
    """


class Semaphore(Exclusion):
    """A semaphore that at most ``slots`` callers hold at once; each gets its own fencing token.

    ``async with`` works as with a :class:`Lock`. A caller may hold several slots.
    """

    def __init__(self, manager: LockManager, spec: LockSpec) -> None:
        super().__init__(manager, spec)
        self.slots: int = spec.slots
