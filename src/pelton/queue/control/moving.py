"""Moving jobs to another queue.

Design: In a store file, the job is withdrawn here and stored there in one transaction. On a cluster it is stored there
first, at a place that follows from its id, so that a move that was interrupted can be repeated; then it is ended here,
under the condition that it has not ended otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pelton.api import ConfigError, JobNotMovedError, MsgWithdraw, WrongLastSequenceError, headers
from pelton.api.json_values import UNREADABLE
from pelton.queue.control.withdrawal import Withdrawal
from pelton.queue.enqueue.announcing import announce_again
from pelton.queue.enqueue.job_message import JobMessage
from pelton.queue.model.records import job_id_in
from pelton.queue.model.states import ENDINGS, decode_envelope

if TYPE_CHECKING:
    from pelton.api import Outgoing, StoredMessage
    from pelton.queue.control.steering import Steering
    from pelton.queue.define.handle import JobHandle
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.enqueue.enqueuer import Enqueuer
    from pelton.queue.inspect.views import JobViews
    from pelton.queue.model.states import JobInfo


class Mover:
    """Moves jobs of one queue to another one, whose jobs ``there`` enqueues."""

    def __init__(
        self, queue: QueueContext, views: JobViews, other: QueueContext, there: Enqueuer, steering: Steering
    ) -> None:
        if other.backend is not queue.backend or other.name == queue.name:
            raise ConfigError(
                f"queue {queue.name!r}: jobs can be moved to another queue of the same opening, not to {other.name!r}"
            )
        self._queue = queue
        self._views = views
        self._other = other
        self._there = there
        # Of the other queue.
        self._steering = steering
        self._withdrawal = Withdrawal(queue)

    async def move(self, job_id: str) -> JobHandle[Any]:
        """Move a job; return its new handle. Raises JobNotFoundError, JobNotMovedError, ConfigError."""
        info = await self._views.get(job_id)
        stored = await self._views.stored(job_id)
        if info.state in ENDINGS or stored is None or await self._may_run(stored, info):
            raise JobNotMovedError(self._queue.name, job_id, "running" if info.state == "pending" else info.state)
        message = self._message(stored, info)
        handle = self._there.handle(job_id_in(message.data, 0), info.job)
        error = f"it was moved to queue {self._other.name!r} as job {handle.id}"
        if MsgWithdraw in self._queue.backend.planning.own_verbs:
            moved = await self._replace(stored, info, error, message)
        else:
            await self._publish(message, info)
            moved = await self._withdrawal.replace(stored, info, error)
            if not moved:
                await self._steering.cancel(handle.id, reason="it was not moved after all")
        if not moved:
            raise JobNotMovedError(self._queue.name, job_id, (await self._views.get(job_id)).state)
        await announce_again(self._other, handle, info.job, info.key, info.due if info.state == "scheduled" else 0)
        return handle

    async def _may_run(self, stored: StoredMessage, info: JobInfo) -> bool:
        entry = (await self._queue.stats.underway()).get(stored.seq)
        if entry is not None or not self._queue.names.is_free(stored.subject):
            return entry is not None and not entry.waits
        return (await self._queue.stats.unlisted()).may_have(self._queue.names.lane(stored.subject), stored.seq)

    async def _replace(self, stored: StoredMessage, info: JobInfo, error: str, message: Outgoing) -> bool:
        try:
            return await self._withdrawal.replace(stored, info, error, (message,))
        except WrongLastSequenceError:
            raise self._is_duplicate(info.id) from None

    async def _publish(self, message: Outgoing, info: JobInfo) -> None:
        try:
            await self._queue.backend.publish(message.subject, message.data, message.headers)
        except WrongLastSequenceError as refused:
            found = await (await self._queue.jet.stream(self._other.names.jobs)).get_message(refused.seq or 0)
            if job_id_in(found.data, 0) != job_id_in(message.data, 0):
                raise self._is_duplicate(info.id) from None
            # An earlier call was interrupted.

    def _is_duplicate(self, job_id: str) -> JobNotMovedError:
        return JobNotMovedError(self._queue.name, job_id, f"a duplicate of a job of queue {self._other.name!r}")

    def _message(self, stored: StoredMessage, info: JobInfo) -> Outgoing:
        try:
            envelope = decode_envelope(stored.data)
        except UNREADABLE as error:
            raise ConfigError(f"queue {self._queue.name!r}: {info.id!r} is no valid job: {error}") from None
        if envelope.flow is not None:
            raise ConfigError(f"queue {self._queue.name!r}: {info.id!r} is a job of a flow, which stays in its queue")
        form = JobMessage(self._other.names, envelope.job, exclusive=self._other.exclusive)
        plain = msgspec.structs.replace(envelope, due=info.due, timetable=None)
        is_delayed = headers.first(stored.hdrs, headers.DELAY) is not None
        left = max((info.due - self._queue.time.now()) / 1e9, 0.0) if is_delayed else None
        return form.moved(plain, self._queue.name, info.id, self._queue.names.leaf_of(stored.subject), left)
