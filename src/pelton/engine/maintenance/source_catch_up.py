"""Copies what a transaction left of a source's messages, until nothing is left.

Published messages do not depend on it: they are sourced in the transaction that stores them. But a new source of a
large stream is copied in many transactions, and the process that began may have died: so every process checks when it
opens the store, and does its part while it has it open.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pelton.api import PeltonError
from pelton.api.times import NEVER
from pelton.engine.host import Host
from pelton.runtime import Clock, Timer

_RETRY_S: Final = 0.5
_OTHERS_S: Final = 0.1
# How long a check waits for a consumer that is paused or replays.
_SHORTEST_S: Final = 0.02
_LONGEST_S: Final = 60.0


class SourceCatchUp:
    """The catch-up of one open store."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._source_graph = host.session.registry.source_graph
        self._timer: Timer | None = None
        self._at = 0.0
        self._running = False
        self._closed = False
        self.look_again()

    def committed(self, *, has_backlog: bool) -> None:
        """Continue where a transaction has left messages, now or when a consumer delivers them."""
        if has_backlog:
            self._go_on()
        elif self._source_graph.is_timed:
            self._source_graph.is_timed = False
            self.look_again()

    def woken(self) -> None:
        """Check soon: another process has written, and continues by itself unless it dies."""
        if self._source_graph.has_links:
            self.look_again(_OTHERS_S)

    def look_again(self, delay: float = 0.0) -> None:
        """Schedule a check, because another process may have left messages."""
        at = self._clock.monotonic() + delay
        if self._closed or (self._timer is not None and self._at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = self._clock.call_later(delay, self._look), at

    def _look(self) -> None:
        self._timer = None
        if self._closed or self._running:
            return
        try:
            is_behind, due = self._host.read(self._outlook)
            if is_behind:
                self._go_on()
            elif due != NEVER:
                self.look_again(min(max((due - self._host.session.now()) / 1e9, _SHORTEST_S), _LONGEST_S))
        except PeltonError:
            # Operations on the store raise this error; here, checking again is enough.
            self.look_again(_RETRY_S)

    def _outlook(self) -> tuple[bool, int]:
        return self._source_graph.is_behind(), self._source_graph.next_due()

    def _go_on(self) -> None:
        if self._running or self._closed:
            return
        try:
            done = self._host.stage(self._source_graph.catch_up, durable=True)
        except PeltonError:
            self.look_again(_RETRY_S)
            return
        self._running = True
        done.add_done_callback(self._ended)

    def _ended(self, done: asyncio.Future[None]) -> None:
        self._running = False
        if done.cancelled() or done.exception() is not None:
            self.look_again(_RETRY_S)
        else:
            self.look_again()

    def close(self) -> None:
        """Stop catching up."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
