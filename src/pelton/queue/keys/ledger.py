"""The stored records of the keys, and carrying out those that are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pelton.api import (
    ApiError,
    Backend,
    MessageNotFoundError,
    MsgDelete,
    Outgoing,
    WrongLastSequenceError,
    headers,
)
from pelton.jet.readable import at_leader
from pelton.jet.register import Register, StoredRecord
from pelton.queue.backing.first_outcome import as_first
from pelton.queue.keys.record import FREE_FOR_S, KeyRecord, Posted, carried_out, decode, encode
from pelton.queue.model.naming import QueueNames

_DELETE_FAILED: Final = 10057


class Ledger(Register[KeyRecord]):
    """The records of a queue's keys. A key is the part of its jobs' subjects after the prefix."""

    def __init__(self, backend: Backend, names: QueueNames) -> None:
        super().__init__(backend, names.keys, names.hold_subject(""), encode, decode, _kept_for)
        self._names = names

    async def carry_out(self, key: str, seq: int, hold: KeyRecord) -> StoredRecord[KeyRecord]:
        """Publish what a settled record holds, remove its job if it has ended, and return the record that follows.

        Safe to repeat, or to run twice at once. Raises ApiError if a message is refused for good; then the
        records of the queue itself are not written yet. Raises MovedError if another worker has done it.
        """
        ours, numbered = f"{self._names.root}.", [(f"{hold.name}.{n}", posted) for n, posted in enumerate(hold.outbox)]
        # What a job adds to its flow has to be there when the flow is told that the job has ended.
        emitted = [
            (name, posted)
            for name, posted in numbered
            if not posted.subject.startswith(ours) or self._names.is_flow_log(posted.subject)
        ]
        if emitted:
            await self._backend.publish_batch([identified(name, posted) for name, posted in emitted])
        await asyncio.gather(*(self._note(*one) for one in numbered if one not in emitted))
        if hold.ended:
            # Last, so that a job is always stored somewhere.
            await self.remove_job(hold.job)
        after = carried_out(hold)
        return StoredRecord(await self.write(key, after, seq), after)

    async def remove_job(self, job: int) -> None:
        """Remove a job's message, unless it is already gone."""
        try:
            await self._backend.call(MsgDelete(stream=self._names.jobs, seq=job, no_erase=True))
        except ApiError as error:
            is_gone = isinstance(error, MessageNotFoundError)
            has_failed = error.err_code == _DELETE_FAILED
            if not (is_gone or (has_failed and await at_leader(self._backend, self._names.jobs, seq=job) is None)):
                raise

    async def _note(self, name: str, posted: Posted) -> None:
        """Publish a record of the queue: one per job forever for outcomes, else the latest of its subject."""
        note = identified(name, posted)
        if note.subject.startswith((self._names.attempt_subject(""), self._names.order_subject(""))):
            await self._backend.publish(note.subject, note.data, note.headers)
            return
        if note.subject.startswith(self._names.ending_prefix):
            note = as_first(self._names, note)
        else:
            block = headers.with_value(note.headers, headers.EXPECTED_LAST_SUBJECT_SEQUENCE, "0")
            note = Outgoing(note.subject, note.data, block)
        try:
            await self._backend.publish(note.subject, note.data, note.headers)
        except WrongLastSequenceError:
            # Already stored: another worker is carrying this out as well, or has done so; or the job was cancelled.
            return


def _kept_for(hold: KeyRecord) -> int:
    return FREE_FOR_S if hold.state == "free" else 0


def identified(name: str, posted: Posted) -> Outgoing:
    """Return a message with an id that is the same for every publisher, unless it already has one."""
    block = posted.headers
    if block is None:
        block = headers.encode({headers.MSG_ID: name})
    elif headers.first(block, headers.MSG_ID) is None:
        block = headers.with_value(block, headers.MSG_ID, name)
    return Outgoing(posted.subject, posted.data, block)


def outbox_of(messages: Sequence[Outgoing]) -> tuple[Posted, ...]:
    """Return messages in the form in which a record stores them."""
    return tuple(Posted(message.subject, message.data, message.headers) for message in messages)
