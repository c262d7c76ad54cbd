"""The record of a worker that others can see: who it is, and whether it gets on."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import PeltonError, headers
from pelton.queue.model.states import WorkerReport
from pelton.runtime import Signal

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext
    from pelton.runtime import Timer

_log: Final = logging.getLogger("pelton.queue")
_encode: Final = msgspec.json.Encoder().encode
_EVERY_S: Final = 10.0
_BETWEEN_S: Final = 0.5
# So it is seen for three rounds.
_TTL: Final = headers.encode({headers.TTL: "30s"})


class RollCall:
    """Tells of one worker. ``running`` returns how many jobs run, how many are held, and how old the oldest is (s).

    ``parked`` returns those that wait for a limit.
    """

    def __init__(
        self,
        queue: QueueContext,
        worker: str,
        concurrency: int,
        running: Callable[[], tuple[int, int, float]],
        parked: Callable[[], list[tuple[int, int, str]]],
    ) -> None:
        self._parked = parked
        self._soon: Timer | None = None
        self._is_due = False
        self._queue = queue
        self._subject = queue.names.worker_subject(worker)
        self._running = running
        now = queue.clock.now()
        self._info = WorkerReport(
            name=worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=now,
            seen_at=now,
            concurrency=concurrency,
        )
        self._task: asyncio.Task[None] | None = None
        self._now = Signal()
        self.taken = 0
        self.finished = 0
        self.stopping = False

    def start(self) -> None:
        """Tell from now on."""
        self._task = self._queue.runtime.spawn(self._tell_on(), f"pelton {self._queue.name} roll call")

    def tell(self) -> None:
        """Tell now, not only at the next round."""
        self._now.notify()

    def tell_soon(self) -> None:
        """Tell now, or as soon as half a second has passed since the last time that this was asked for."""
        self._is_due = self._soon is not None
        if self._soon is None:
            self.tell()
            self._soon = self._queue.clock.call_later(_BETWEEN_S, self._told_soon)

    def _told_soon(self) -> None:
        self._soon = None
        if self._is_due:
            self.tell_soon()

    async def stop(self) -> None:
        """Leave: others see the worker no more."""
        if self._soon is not None:
            self._soon.cancel()
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(PeltonError):
            await (await self._queue.jet.stream(self._queue.names.running)).purge(filter=self._subject)

    async def _tell_on(self) -> None:
        while True:
            seen = self._now.generation
            try:
                await self._queue.backend.publish(self._subject, _encode(self._present()), _TTL)
            except PeltonError as error:
                _log.debug(
                    "a worker of queue %r is not seen: %s", self._queue.name, error, extra={"queue": self._queue.name}
                )
            await self._now.wait_at_most(self._queue.clock, _EVERY_S, seen)

    def _present(self) -> WorkerReport:
        running, held, oldest = self._running()
        return msgspec.structs.replace(
            self._info,
            seen_at=self._queue.clock.now(),
            taken=self.taken,
            finished=self.finished,
            running=running,
            held=held,
            oldest_running=oldest,
            stopping=self.stopping,
            parked=self._parked(),
        )
