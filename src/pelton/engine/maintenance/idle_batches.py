"""Batches that nobody goes on with: the timer that ends them."""

from __future__ import annotations

from contextlib import suppress

from pelton.api import PeltonError
from pelton.engine.host import Host
from pelton.runtime import Clock, Timer


class IdleBatches:
    """Ends the open batches that have waited too long; hears of the end of every transaction."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._staging = host.session.staging
        self._clock = clock
        self._due: int | None = None
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        """Whether it waits for a batch to be too old."""
        return self._due is not None

    def committed(self) -> None:
        """A transaction has ended."""
        due = self._staging.due
        if due == self._due:
            return
        self.cancel()
        if due is not None:
            self._due = due
            self._timer = self._clock.call_later(max(due - self._clock.now(), 0) / 1e9, self._rings)

    def cancel(self) -> None:
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._due = self._timer = None
        with suppress(PeltonError):
            # Whatever becomes of it, nobody waits: the next message of any batch looks as well.
            swept = self._host.stage(lambda: self._staging.sweep(self._clock.now()), durable=False)
            swept.add_done_callback(lambda done: done.exception())
