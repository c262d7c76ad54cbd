"""Ending jobs that nobody holds, before anybody takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import ApiError, MessageNotFoundError, MsgWithdraw, Outgoing, StoredMessage, WrongLastSequenceError
from pelton.api.json_values import UNREADABLE
from pelton.queue.backing.first_outcome import as_first
from pelton.queue.model.flow_records import told_to_flow
from pelton.queue.model.orders import to_cancel
from pelton.queue.model.states import Outcome, decode_envelope

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.inspect.views import FoundJob
    from pelton.queue.model.states import JobInfo

# In a store file they share a transaction, on servers they are written side by side.
_IN_FILE, _ON_SERVERS = 1000, 64
_DELETE_FAILED: Final = 10057
_encode: Final = msgspec.json.Encoder().encode


class Withdrawal:
    """Ends jobs of one queue that nobody holds."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._is_file = MsgWithdraw in queue.backend.planning.own_verbs
        # How many jobs to cancel at once.
        self.at_once = _IN_FILE if self._is_file else _ON_SERVERS

    async def cancel(self, stored: StoredMessage, info: JobInfo, reason: str) -> bool:
        """End a job that nobody holds as cancelled; return False if somebody does, or if it is not there any more."""
        return await self.replace(stored, info, f"it was cancelled: {reason}" if reason else "it was cancelled")

    async def cancel_all(self, jobs: Sequence[FoundJob], reason: str) -> int:
        """Do the same for many jobs, in a store file in one transaction; return how many were cancelled."""
        if not self._is_file:
            return sum(await asyncio.gather(*(self.cancel(job.stored, job.info, reason) for job in jobs)))
        error = f"it was cancelled: {reason}"
        return await self._withdraw({job.stored.seq: self._ending(job.stored, job.info, error) for job in jobs})

    async def _withdraw(self, messages: dict[int, tuple[Outgoing, ...]]) -> int:
        request = MsgWithdraw(stream=self._queue.names.jobs, messages=messages)
        return len((await self._queue.backend.call(request)).withdrawn)

    async def replace(self, stored: StoredMessage, info: JobInfo, error: str, others: Sequence[Outgoing] = ()) -> bool:
        """The same with the error that its outcome names; ``others`` are stored in the same transaction.

        That is only possible in a store file: on servers they are not stored.
        """
        *told, record = self._ending(stored, info, error)
        if self._is_file:
            return await self._withdraw({stored.seq: (*others, *told, record)}) > 0
        try:
            if told:
                # First, so that the flow learns of it even if this is interrupted: it looks for the outcome itself.
                await self._queue.backend.publish_batch(told)
            first = as_first(self._queue.names, record)
            await self._queue.backend.publish(first.subject, first.data, first.headers)
        except WrongLastSequenceError:
            return False
        stream = await self._queue.jet.stream(self._queue.names.jobs)
        try:
            await stream.delete_message(stored.seq)
        except ApiError as refused:
            # A worker that had taken it has found the outcome, and removed it.
            if not isinstance(refused, MessageNotFoundError) and refused.err_code != _DELETE_FAILED:
                raise
        # A worker may have taken it meanwhile: its outcome is refused, so it need not go on.
        await self._order(to_cancel(self._queue.names, info.id, error, ended=True))
        return True

    async def tell(self, job_id: str, reason: str) -> None:
        """Have the worker that holds a job cancel it."""
        await self._order(to_cancel(self._queue.names, job_id, reason, ended=False))

    async def _order(self, order: Outgoing) -> None:
        await self._queue.backend.publish(order.subject, order.data, order.headers)

    def _told(self, stored: StoredMessage, outcome: Outcome) -> tuple[Outgoing, ...]:
        """Return what tells the flow of a job that it has ended."""
        with suppress(*UNREADABLE):
            if (place := decode_envelope(stored.data).flow) is not None:
                return (told_to_flow(self._queue.names, place, outcome),)
        return ()

    def _ending(self, stored: StoredMessage, info: JobInfo, error: str) -> tuple[Outgoing, ...]:
        """Return what the end of a job stores, its outcome last."""
        outcome = self._outcome(info, stored, error)
        record = Outgoing(self._queue.names.ending_subject("cancelled", info.id), _encode(outcome))
        return (*self._told(stored, outcome), record)

    def _outcome(self, info: JobInfo, stored: StoredMessage, error: str) -> Outcome:
        return Outcome(
            id=info.id,
            job=info.job,
            state="cancelled",
            key=info.key,
            attempt=info.attempt,
            worker="",
            enqueued_at=stored.time_ns,
            started_at=0,
            finished_at=self._queue.clock.now(),
            error=error,
        )
