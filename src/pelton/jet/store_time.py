"""The wall clock of a store: this machine's for a file, the servers' for a cluster.

A program gives a server times of day, such as when a delay ends. If the program's clock is wrong, so are they. So it
asks what time it is there, by the information of a stream: once a minute, or each time while its own clock shows
another one, because either may be wrong only for a moment. In between, the time since boot goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pelton.api import Backend, PeltonError, StreamInfoRequest, StreamNames, parse_rfc3339
from pelton.api.times import SECOND
from pelton.runtime import Runtime, steady_now, wall_ahead, within

_KNOWN_FOR_S: Final = 60.0
_LONGEST_S: Final = 2.0
# Clocks that differ by less, and by less than the answer took, are taken for equal.
_CLOSE: Final = SECOND // 10


class StoreTime:
    """The wall clock of the store of one opening."""

    def __init__(self, backend: Backend, runtime: Runtime) -> None:
        self._backend = backend
        self._clock = runtime.clock
        # The clocks of the processes that have a file open are one.
        self._is_here = backend.planning.steady_time
        self._asked = float("-inf")
        # By how much our own clock was ahead of the time since boot when we asked, and the store's, if we did.
        self._mine = 0
        self._theirs: int | None = None

    async def refresh(self, stream: str = "", *, subject: str = "") -> None:
        """Ask for the time if it is not known well: of a stream, or of one that takes ``subject``."""
        if self._is_here or self._is_known:
            return
        mine, before = wall_ahead(self._clock), self._clock.boottime()
        text, differs = "", 0
        # Whoever needs it goes on without, or meets the error next.
        with suppress(PeltonError, TimeoutError):
            text = await within(self._clock, _LONGEST_S, self._ask(stream, subject))
        took = self._clock.boottime() - before
        if text:
            differs = parse_rfc3339(text) - mine - round((before + took / 2) * SECOND)
        if text or self._theirs is None:
            self._theirs = mine + (differs if abs(differs) > _CLOSE + took * SECOND else 0)
        self._asked, self._mine = before, mine

    @property
    def _is_known(self) -> bool:
        is_recent = self._theirs == self._mine and self._clock.boottime() - self._asked < _KNOWN_FOR_S
        return is_recent and abs(wall_ahead(self._clock) - self._mine) < _CLOSE

    async def _ask(self, stream: str, subject: str) -> str:
        names = [stream] if stream else (await self._backend.call(StreamNames(subject=subject))).streams
        return (await self._backend.call(StreamInfoRequest(name=names[0]))).ts if names else ""

    def now(self) -> int:
        """Return the store's wall time in nanoseconds, as far as it is known: call ``refresh`` before."""
        return self._clock.now() if self._theirs is None else self._steady()

    def steady(self) -> Callable[[], int]:
        """Return the store's wall clock as it goes on from now though this machine's is set."""
        return steady_now(self._clock) if self._theirs is None else self._steady

    def _steady(self) -> int:
        return (self._theirs or 0) + round(self._clock.boottime() * SECOND)
