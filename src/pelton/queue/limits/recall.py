"""Jobs that were put off for a limit or a pause: they are recalled when it changes, and start if they may now.

Design: What a worker puts off, it records with the delivery that it gave back. Whoever changes a limit, or ends a
pause, reads these records, and has each job delivered at once that was put off for another limit of that scope, or for
the pause, the oldest first, whether its worker still lives or not. A worker that did not know of the change yet recalls
what it has put off since.

The record is claimed as the job is delivered, so that nobody recalls what somebody else has recalled or taken. Those
are left alone that are due in a moment: on servers, a job that is delivered anyway may be before its record is claimed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pelton.api import ConsumerNotFoundError, MessageNotFoundError, Outgoing, Settled, headers
from pelton.api.json_values import UNREADABLE
from pelton.jet.registers import MovedError
from pelton.queue.backing.scan import stored_messages
from pelton.queue.keys.claimer import CHANNEL, Ledger
from pelton.queue.model.states import Attempt, PutOffDelivery

if TYPE_CHECKING:
    from pelton.api import StoredMessage
    from pelton.jet import Stream
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.model.limits import Order
    from pelton.queue.model.records import Ended

_AT_ONCE: Final = 64
_SOON_NS: Final = 10**9
_REMEMBERED_S: Final = 30.0
_attempt: Final = msgspec.json.Decoder(Attempt).decode
_encode: Final = msgspec.json.Encoder().encode


class PutOffJob(NamedTuple):
    """A job that was put off: its record, with the sequence of that, and the delivery given back."""

    seq: int
    record: Attempt
    delivery: PutOffDelivery


class Recall:
    """Has jobs of one queue delivered at once that were put off."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._ledger = Ledger(queue.backend, queue.names)

    async def all_of(self, scope: str, limit: str | None) -> None:
        """Recall what was put off for another limit of a scope than the present one, by its text.

        None: there is none any more, or the pause is over.
        """
        stream = await self._queue.jet.stream(self._queue.names.attempts)
        async with aclosing(stored_messages(stream, self._queue.names.attempt_subject("*"))) as stored:
            found = [job async for one in stored if (job := _put_off(one)) and is_outdated(job.delivery, scope, limit)]
        await self._recall(found)

    async def these(self, deliveries: Iterable[tuple[str, PutOffDelivery]]) -> None:
        """Recall jobs by their ids, unless they were taken since."""
        stream = await self._queue.jet.stream(self._queue.names.attempts)
        found = await asyncio.gather(*(self._found(stream, *one) for one in deliveries))
        await self._recall([job for job in found if job is not None])

    async def _found(self, stream: Stream, job_id: str, delivery: PutOffDelivery) -> PutOffJob | None:
        with suppress(MessageNotFoundError):
            job = _put_off(await stream.get_last_message(self._queue.names.attempt_subject(job_id)))
            return job if job is not None and job.delivery == delivery else None
        return None

    async def _recall(self, jobs: Sequence[PutOffJob]) -> None:
        jobs = sorted(jobs, key=lambda job: job.delivery.seq)
        for start in range(0, len(jobs), _AT_ONCE):
            await self._recall_some(jobs[start : start + _AT_ONCE])

    async def _recall_some(self, jobs: Sequence[PutOffJob]) -> None:
        now = self._queue.clock.now()
        jobs = [job for job in jobs if job.record.retry_at > now + _SOON_NS]
        await asyncio.gather(*(self._recall_key(job) for job in jobs if job.delivery.consumer == CHANNEL))
        given_back: dict[str, list[Settled]] = {}
        for job in jobs:
            if job.delivery.consumer != CHANNEL:
                settled = Settled((self._claim_of(job),), job.delivery.nak())
                given_back.setdefault(job.delivery.consumer, []).append(settled)
        for consumer, endings in given_back.items():
            with suppress(ConsumerNotFoundError):
                await self._queue.backend.settle_many(endings, self._queue.names.jobs, consumer)

    def _claim_of(self, job: PutOffJob) -> Outgoing:
        record = msgspec.structs.replace(job.record, put_off=None, retry_at=0)
        block = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(job.seq)})
        return Outgoing(self._queue.names.attempt_subject(record.id), _encode(record), block)

    async def _recall_key(self, job: PutOffJob) -> None:
        key = self._queue.names.key_of_job(job.delivery.subject)
        seq, hold = await self._ledger.read(key)
        known = hold.known if hold is not None and hold.state == "waiting" else None
        if hold is not None and known is not None and known.put_off == job.delivery:
            with suppress(MovedError):
                await self._ledger.write(key, msgspec.structs.replace(hold, delay_ns=0), seq)


class LatePutOffs:
    """What one worker puts off, for when it learns later that the limit has changed."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._recall = Recall(queue)
        # What holds: limits by their texts, and pauses, by scope.
        self._limits: dict[str, str] = {}
        self.is_on: bool = False
        self._recent: deque[tuple[float, str, PutOffDelivery]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def heed(self, order: Order) -> None:
        """Note a limit or a pause; recall what was put off for another one of its scope."""
        scopes = order.pause_scopes if order.limit is None else (order.limit.scope,)
        for scope in scopes:
            if order.over:
                self._limits.pop(scope, None)
            else:
                self._limits[scope] = "" if order.limit is None else order.limit.text
        if not scopes:
            return
        self.is_on = True
        self._forget()
        self._recall_outdated([(job_id, delivery) for _, job_id, delivery in self._recent])

    def note(self, endings: Iterable[Ended]) -> None:
        """Note what became of deliveries: which were put off."""
        found = [
            (ended.known.id, ended.known.put_off)
            for ended in endings
            if ended.known is not None and ended.known.put_off is not None
        ]
        if found:
            self._forget()
            now = self._queue.clock.boottime()
            self._recent.extend((now, *one) for one in found)
            self._recall_outdated(found)

    def _forget(self) -> None:
        since = self._queue.clock.boottime() - _REMEMBERED_S
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()

    def _recall_outdated(self, deliveries: Iterable[tuple[str, PutOffDelivery]]) -> None:
        outdated = [one for one in deliveries if is_outdated(one[1], one[1].scope, self._limits.get(one[1].scope))]
        if outdated:
            task = self._queue.runtime.spawn(self._recall.these(outdated), f"pelton {self._queue.name} recalls jobs")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Leave what is not recalled yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def is_outdated(delivery: PutOffDelivery, scope: str, limit: str | None) -> bool:
    """Whether a job was put off for another limit of a scope than the present one."""
    return delivery.scope == scope and delivery.limit != limit


def _put_off(stored: StoredMessage) -> PutOffJob | None:
    with suppress(*UNREADABLE):
        record = _attempt(stored.data)
        if record.put_off is not None:
            return PutOffJob(stored.seq, record, record.put_off)
    return None
