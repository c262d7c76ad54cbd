"""The handle of a held lock."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pelton.api import LockLostError, LockNotHeldError, PeltonError, WrongLastSequenceError
from pelton.locks.acquisition import Got
from pelton.locks.keeper import Renewal
from pelton.locks.lease import ENDS_AFTER, moment
from pelton.locks.manager import LockManager
from pelton.locks.records import LockSpec, holding_of
from pelton.runtime import Signal, owner, within

_TRIES: Final = 3


class LockLease:
    """A held lock, or a slot of a semaphore, renewed in the background until you release it.

    ``token`` is its fencing token: larger than those of all earlier holders. Send it along with your writes to
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
        self._caller = owner()
        self._is_given_back = False
        self._ended = Signal()
        self._loop = asyncio.get_running_loop()
        self._guards: list[Guard] = []
        # The keeper must not keep a lock alive that its program has dropped.
        told = weakref.WeakMethod(self._told)
        manager.keeper.hold(Renewal(got.lease, got.holding, lambda: _call(told)))
        weakref.finalize(self, manager.keeper.drop, got.lease)

    def __repr__(self) -> str:
        state = "lost" if self.lost else "released" if self._is_given_back else "held"
        return f"<LockLease {self._spec} token {self.token}, {state}>"

    @property
    def lost(self) -> bool:
        """Whether another caller may hold it by now, as far as is known at this moment."""
        return self._lease.state != "released" and self._lease.is_over(moment(self._manager.clock))

    @property
    def caller(self) -> object:
        """The caller that acquired it: a task, or a thread of the blocking API."""
        return self._caller

    @property
    def spec(self) -> str:
        """The name of the lock or semaphore, for errors."""
        return str(self._spec)

    @property
    def is_given_back(self) -> bool:
        """Whether it was released."""
        return self._is_given_back

    @property
    def is_held(self) -> bool:
        """Whether it is held at this moment: neither lost nor released."""
        return not self._is_given_back and not self._lease.is_over(moment(self._manager.clock))

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
        if self._is_given_back:
            raise LockNotHeldError(str(self._spec))
        self._is_given_back = True
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

    def _told(self) -> None:
        # On the keeper's thread; the loop may be gone.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._ended.notify()
        for guard in self._guards:
            guard.fire()


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()


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
