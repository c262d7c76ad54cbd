"""Failed jobs, and how they are put into their queue again.

Design: In a store file, a dead letter is removed and its job stored in one transaction. On a cluster these are two
steps. The redriven job has an id and a place that follow from the failed one's id (``job_message.py``), so whoever
repeats a redrive that was interrupted between the two stores nothing: because the job is there, because its message id
is known, or because the history has its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from pelton.api import (
    ConfigError,
    JobNotFoundError,
    MessageNotFoundError,
    Outgoing,
    WrongLastSequenceError,
    headers,
)
from pelton.api.tracing import Replacement
from pelton.queue.backing.scan import scan
from pelton.queue.enqueue.announcing import announce_again
from pelton.queue.enqueue.job_message import JobMessage
from pelton.queue.model.checks import checked_id
from pelton.queue.model.flow_records import redriven_in_flow
from pelton.queue.model.options import ALL_JOBS, PLAIN, JobFilter
from pelton.queue.model.records import job_id_in
from pelton.queue.model.states import DeadLetter, Envelope

if TYPE_CHECKING:
    from pelton.queue.define.job import JobHandle
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.enqueue.enqueuer import Enqueuer

_dead: Final = msgspec.json.Decoder(DeadLetter).decode
_AT_ONCE: Final = 64


class StoredLetter(NamedTuple):
    """A dead letter and its sequence."""

    seq: int
    letter: DeadLetter


class DeadLetters:
    """The dead letters of one queue."""

    def __init__(self, queue: QueueContext, enqueuer: Enqueuer) -> None:
        self._queue = queue
        self._enqueuer = enqueuer

    async def letters(self, wanted: JobFilter = ALL_JOBS) -> AsyncGenerator[StoredLetter]:
        """Iterate over failed jobs that can be redriven, oldest first."""
        stream = await self._queue.jet.stream(self._queue.names.dead)
        async with aclosing(scan(stream, "")) as found:
            async for seq, data in found:
                letter = _dead(data)
                if wanted.has_letter(letter):
                    yield StoredLetter(seq, letter)

    async def redrive(self, job_id: str, args: Mapping[str, object] | None) -> JobHandle[Any]:
        """Put a failed job into the queue again, as a new job, and remove its dead letter.

        ``args`` replace arguments by name. Raises JobNotFoundError, JobArgumentsError, ConfigError.
        """
        return await self._redrive(await self._stored(job_id), job_id, args)

    async def redrive_all(self, wanted: JobFilter) -> int:
        """Redrive the dead letters that there are now; return how many jobs were stored."""
        last = (await (await self._queue.jet.stream(self._queue.names.dead)).info()).state.last_seq
        done = 0
        batch: list[StoredLetter] = []
        async with aclosing(self.letters(wanted)) as letters:
            async for stored in letters:
                # A job that was redriven may have failed again.
                if stored.seq > last:
                    break
                batch.append(stored)
                if len(batch) == _AT_ONCE:
                    done += await self._redrive_many(batch)
                    batch = []
        return done + await self._redrive_many(batch)

    async def discard(self, job_id: str) -> None:
        """Remove a dead letter. Raises JobNotFoundError, ConfigError."""
        stored = await self._stored(job_id)
        dead = await self._queue.jet.stream(self._queue.names.dead)
        try:
            await dead.delete_message(stored.seq)
        except MessageNotFoundError:
            raise self._missing(job_id) from None

    async def _stored(self, job_id: str) -> StoredLetter:
        dead = await self._queue.jet.stream(self._queue.names.dead)
        subject = self._queue.names.dead_subject(checked_id(self._queue.name, job_id))
        try:
            stored = await dead.get_last_message(subject)
        except MessageNotFoundError:
            raise self._missing(job_id) from None
        return StoredLetter(stored.seq, _dead(stored.data))

    def _missing(self, job_id: str) -> JobNotFoundError:
        return JobNotFoundError(self._queue.name, job_id, "it left no dead letter, or was already redriven")

    async def _redrive_many(self, batch: list[StoredLetter]) -> int:
        return sum(await asyncio.gather(*map(self._is_redriven, batch)))

    async def _is_redriven(self, stored: StoredLetter) -> bool:
        try:
            return not (await self._redrive(stored, stored.letter.outcome.id, None)).duplicate
        except JobNotFoundError:
            # Another call was faster.
            return False

    async def _redrive(self, stored: StoredLetter, job_id: str, args: Mapping[str, object] | None) -> JobHandle[Any]:
        handle = await self._put_back(stored, job_id, args)
        envelope = stored.letter.envelope
        await announce_again(self._queue, handle, envelope.job, envelope.key)
        return handle

    async def _put_back(self, stored: StoredLetter, job_id: str, args: Mapping[str, object] | None) -> JobHandle[Any]:
        letter = stored.letter
        message = self._message(letter, job_id, args)
        place, names = letter.envelope.flow, self._queue.names
        again = () if place is None else (redriven_in_flow(names, place, job_id_in(message.data, 0)),)
        # After the job: a flow waits for it from then on. If that has ended by now, it changes nothing.
        messages = again if await self._has_ended(job_id_in(message.data, 0)) else (message, *again)
        try:
            answer = await self._queue.backend.withdraw(names.dead, {stored.seq: Replacement(messages)})
        except WrongLastSequenceError:
            # It was redriven concurrently: both calls got the same job.
            messages = again
            answer = await self._queue.backend.withdraw(names.dead, {stored.seq: Replacement(messages)})
        if not answer.sequences:
            raise self._missing(job_id)
        seq, is_duplicate = (0, True) if messages is again else (answer.acks[0].seq, answer.acks[0].duplicate)
        return self._enqueuer.handle(job_id_in(message.data, seq), letter.envelope.job, duplicate=is_duplicate)

    async def _has_ended(self, job_id: str) -> bool:
        history = await self._queue.jet.stream(self._queue.names.history)
        try:
            await history.get_last_message(self._queue.names.outcomes_of(job_id))
        except MessageNotFoundError:
            return False
        return True

    def _message(self, letter: DeadLetter, job_id: str, args: Mapping[str, object] | None) -> Outgoing:
        if letter.subject:
            if args is not None:
                raise ConfigError(f"queue {self._queue.name!r}: {job_id!r} was no valid job and has no arguments")
            block = headers.encode({headers.MSG_ID: f"redrive-{job_id}"})
            return Outgoing(letter.subject, letter.data, block)
        envelope = msgspec.structs.replace(letter.envelope, redriven_from=job_id)
        if args is not None:
            envelope = self._edited(envelope, args)
        return JobMessage(self._queue.names, envelope.job, exclusive=self._queue.exclusive).redriven(envelope)

    def _edited(self, envelope: Envelope, args: Mapping[str, object]) -> Envelope:
        if not isinstance(args, Mapping):
            raise ConfigError(f"queue {self._queue.name!r}: args is {args!r:.80}; give arguments by name, in a dict")
        named = {**msgspec.json.decode(envelope.args), **args}
        call = self._enqueuer.call_of(envelope.job, (), named, PLAIN)
        return msgspec.structs.replace(envelope, args=msgspec.Raw(call.args))
