"""Putting jobs into a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pelton.queue.define.handle import JobHandle
from pelton.queue.enqueue.job_message import JobMessage

if TYPE_CHECKING:
    from pelton.api import Outgoing, PubAck
    from pelton.queue.define.job import JobCall
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.ports import JobLookup


class Enqueuer:
    """Puts jobs into one queue. ``lookup`` is for their handles."""

    def __init__(self, queue: QueueContext, lookup: JobLookup) -> None:
        self._queue = queue
        self._lookup = lookup

    async def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle]:
        """Put many jobs into the queue, durable together and in order."""
        acks = await self._queue.backend.publish_batch([self.message_of(call) for call in calls])
        return [self.handle(ack) for ack in acks]

    def message_of(self, call: JobCall) -> Outgoing:
        """Return the message that puts a job into the queue. Raises ConfigError."""
        form = JobMessage(self._queue.names, call.job.name, exclusive=self._queue.exclusive)
        return form.message(call.args, call.key, call.idempotency_key)

    def handle(self, ack: PubAck) -> JobHandle:
        """Return the handle of a job that was stored."""
        return JobHandle(self._lookup, self._queue.name, ack.seq, ack.duplicate)
