"""The handles of locks and semaphores."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final

from pelton.api import LockLostError, LockNotHeldError, LockTimeoutError, PeltonError
from pelton.api.build import seconds_to_ns
from pelton.api.times import Seconds
from pelton.locks.acquisition import Got
from pelton.locks.held import Guard, LockLease
from pelton.locks.manager import LockManager
from pelton.locks.records import LockSpec
from pelton.locks.wait_queue import WaitQueue
from pelton.runtime import owner, within

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
