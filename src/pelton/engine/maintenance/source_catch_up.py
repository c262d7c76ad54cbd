"""Going on with what a transaction left of a source's messages, until nothing is left.

Nothing depends on it for what is published: that is carried on in the transaction that stores it. But a new source of
a large stream is filled in many transactions, and the process that began may have died: so whoever opens the store
looks, and every process that has it open does its part.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pelton.api import PeltonError
from pelton.engine.host import Host
from pelton.runtime import Clock, Timer

_RETRY_S: Final = 0.5
_OTHERS_S: Final = 0.1


class SourceCatchUp:
    """What one open store does about its backlog."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._source_graph = host.session.registry.source_graph
        self._timer: Timer | None = None
        self._running = False
        self._closed = False
        self.look_again()

    def committed(self) -> None:
        """A transaction has left something: go on there."""
        self._go_on()

    def woken(self) -> None:
        """Another process has written; it goes on itself, if it lives."""
        if self._source_graph.has_links:
            self.look_again(_OTHERS_S)

    def look_again(self, delay: float = 0.0) -> None:
        """Somebody else may have left something."""
        if self._timer is None and not self._closed:
            self._timer = self._clock.call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._closed or self._running:
            return
        try:
            if self._host.read(self._source_graph.is_behind):
                self._go_on()
        except PeltonError:
            # Whoever uses the store is told; here it is enough to look again.
            self.look_again(_RETRY_S)

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
        """Stop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
