"""The timer that abandons idle atomic batches."""

from __future__ import annotations

from contextlib import suppress

from pelton.api import PeltonError
from pelton.engine.host import Host
from pelton.runtime import Clock, Timer


class IdleBatches:
    """Abandons open batches that have waited too long; every transaction notifies it when it ends."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._staging = host.session.staging
        self._clock = clock
        self._due: int | None = None
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        """Whether the timer is set for a batch."""
        return self._due is not None

    def committed(self) -> None:
        """Set the timer again after a transaction, if the nearest deadline changed."""
        due = self._staging.due
        if due == self._due:
            return
        self.cancel()
        if due is not None:
            self._due = due
            self._timer = self._clock.call_later(max(due - self._host.session.now(), 0) / 1e9, self._rings)

    def cancel(self) -> None:
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._due = self._timer = None
        with suppress(PeltonError):
            # Ignore errors: the next message of any batch sweeps as well.
            swept = self._host.stage(lambda: self._staging.sweep(self._host.session.now()), durable=False)
            swept.add_done_callback(lambda done: done.exception())
