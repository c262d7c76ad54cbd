"""One timer for the messages that time makes: markers and scheduled messages.

Correctness does not depend on it: every read or write of a stream applies what is due first. The timer makes due
messages appear while no operation touches their stream, and wakes what waits for them in every process. Each process
with the store open keeps one timer, for the nearest deadline it knows; the process that comes second finds nothing due.

A recorded deadline may be too early: then the timer fires for nothing and is set again. When it may be too late
(another process has written, a transaction was rolled back) deadlines are read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pelton.api import PeltonError
from pelton.api.times import NEVER
from pelton.engine.host import Host
from pelton.runtime import Clock, Timer

# No wait is longer, because the wall clock may be set during it; and no wait is shorter, so that many deadlines close
# together share a transaction.
_LONGEST_S: Final = 60.0
_SHORTEST_S: Final = 0.02
_RETRY_S: Final = 1.0


class Timekeeper:
    """The timer of one open store."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._now = host.session.now
        self._registry = host.session.registry
        self._dues: dict[str, int] = {}
        self._timer: Timer | None = None
        self._set_for = NEVER
        self._looking: Timer | None = None
        self._closed = False
        # Deadlines may have passed while no process had the store open.
        self.look_again()

    # --- inside a transaction

    def _note_all(self) -> None:
        self._dues = {log.name: log.state.next_deadline() for log in self._registry.ticking()}

    def _advance_all(self) -> None:
        self._dues.clear()
        now = self._now()
        for log in self._registry.ticking():
            log.advance(now)

    # --- between transactions

    def committed(self, deadlines: Mapping[str, int]) -> None:
        """Record the deadlines of the streams that a transaction has used."""
        self._dues.update(deadlines)
        if self._dues:
            self._set(min(self._dues.values()))

    def next_due(self) -> int:
        """Return when time next makes a message, or an earlier time; ``NEVER`` if it makes none."""
        self._host.read(self._note_all)
        return min(self._dues.values(), default=NEVER)

    def look_again(self) -> None:
        """Schedule reading all deadlines, because recorded ones may no longer hold."""
        if self._looking is None and not self._closed:
            self._looking = self._clock.call_later(_SHORTEST_S, self._look_now)

    def _look_now(self) -> None:
        self._looking = None
        if self._closed:
            return
        try:
            due = self.next_due()
        except PeltonError:
            # Operations on the store raise this error; here, checking again is enough.
            self._retry()
            return
        self._set(due)

    def _act(self) -> None:
        """Apply what is due."""
        try:
            done = self._host.stage(self._advance_all, durable=True)
        except PeltonError:
            self._retry()
        else:
            done.add_done_callback(lambda done: self._retry() if done.exception() else None)

    def _retry(self) -> None:
        if not self._closed:
            self._cancel()
            self._set_for = self._now()
            self._timer = self._clock.call_later(_RETRY_S, self._fire)

    def _set(self, due: int) -> None:
        if self._closed or (due == self._set_for and self._timer is not None):
            return
        self._cancel()
        self._set_for = due
        if due != NEVER:
            delay = (due - self._now()) / 1e9
            self._timer = self._clock.call_later(min(max(delay, _SHORTEST_S), _LONGEST_S), self._fire)

    def _fire(self) -> None:
        self._timer = None
        due, self._set_for = self._set_for, NEVER
        if self._closed:
            return
        if due <= self._now():
            self._act()
        else:
            self._set(due)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop the timer."""
        self._closed = True
        self._cancel()
        if self._looking is not None:
            self._looking.cancel()
