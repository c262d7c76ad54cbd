"""Draining a queue: its workers take nothing more, and the caller learns when nobody holds a job.

Design: A drained queue is a paused one. What workers hold is read from a store file, which lists it. Servers do not
tell a job that is held from one that waits for another attempt; there each worker tells how many it holds, at once when
it hears of the pause and again when it holds none, so what counts is what it has told after the pause.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import MsgWithdraw
from pelton.queue.backing.scan import deliveries
from pelton.queue.model.states import WorkerInfo
from pelton.runtime import Deadline

if TYPE_CHECKING:
    from pelton.queue.control.steering import Steering
    from pelton.queue.define.queue_context import QueueContext

_worker: Final = msgspec.json.Decoder(WorkerInfo).decode
_LOOK_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2)


class Drain:
    """Drains one queue."""

    def __init__(self, queue: QueueContext, steering: Steering) -> None:
        self._queue = queue
        self._steering = steering

    async def drain(self, limit: float | None) -> None:
        """Pause the queue, and return when no job is held. Raises TimeoutError after ``limit`` seconds."""
        clock = self._queue.clock
        deadline = Deadline(clock, limit)
        since = await self._steering.pause_all()
        looks = 0
        while held := await self._held(since):
            if deadline.is_over:
                raise TimeoutError(
                    f"queue {self._queue.name!r}: after {limit:g} s, {held} are still held; it stays paused"
                )
            pause, left = _LOOK_S[min(looks, len(_LOOK_S) - 1)], deadline.left
            await clock.sleep(pause if left is None else min(pause, left))
            looks += 1

    async def _held(self, since: int) -> str:
        """Return what is held, in words; empty if nothing is. ``since``: when the pause was stored."""
        if MsgWithdraw in self._queue.backend.planning.own_verbs:
            now, underway = self._queue.clock.now(), await self._queue.stats.underway()
            # Neither those that wait for another attempt, nor those whose worker has died.
            held = sum(not entry.waits and (not entry.due or entry.due > now) for entry in underway.values())
            return f"{held} jobs" if held else ""
        names = self._queue.names
        holding = 0
        async with aclosing(deliveries(await self._queue.jet.stream(names.running), names.worker_subject("*"))) as told:
            async for record in told:
                worker = _worker(record.data)
                # One that has died is forgotten after some time.
                holding += record.time_ns <= since or bool(worker.held or worker.running)
        return f"jobs of {holding} workers" if holding else ""
