"""Failed jobs, and how they are put into their queue again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import JobNotFoundError, MessageNotFoundError, headers
from pelton.queue.backing.scan import scan
from pelton.queue.model.checks import checked_id
from pelton.queue.model.states import DeadLetter

if TYPE_CHECKING:
    from pelton.queue.define.handle import JobHandle
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.enqueue.enqueuer import Enqueuer

_dead: Final = msgspec.json.Decoder(DeadLetter).decode
_encode: Final = msgspec.json.Encoder().encode


class DeadLetters:
    """The dead letters of one queue."""

    def __init__(self, queue: QueueContext, enqueuer: Enqueuer) -> None:
        self._queue = queue
        self._enqueuer = enqueuer

    async def letters(self) -> AsyncGenerator[DeadLetter]:
        """Iterate over failed jobs that can be redriven, oldest first."""
        stream = await self._queue.jet.stream(self._queue.names.dead)
        async for _, data in scan(stream, ""):
            yield _dead(data)

    async def redrive(self, job_id: str) -> JobHandle[Any]:
        """Put a failed job into the queue again, as a new job, and remove its dead letter.

        Raises JobNotFoundError when there is no such dead letter, ConfigError.
        """
        dead = await self._queue.jet.stream(self._queue.names.dead)
        subject = self._queue.names.dead_subject(checked_id(self._queue.name, job_id))
        try:
            stored = await dead.get_last_message(subject)
        except MessageNotFoundError:
            raise JobNotFoundError(
                self._queue.name, job_id, "it left no dead letter, or was already redriven"
            ) from None
        letter = _dead(stored.data)
        envelope = msgspec.structs.replace(letter.envelope, redriven_from=job_id)
        subject = letter.subject or self._queue.names.job_subject(envelope.key if self._queue.exclusive else "")
        # The id makes it harmless to repeat a redrive that was interrupted between the two steps.
        block = headers.encode({headers.MSG_ID: f"redrive-{job_id}"})
        ack = await self._queue.backend.publish(subject, letter.data or _encode(envelope), block)
        with suppress(MessageNotFoundError):
            # It was redriven concurrently: both calls got the same job.
            await dead.delete_message(stored.seq)
        return self._enqueuer.handle(str(ack.seq), letter.envelope.job, duplicate=ack.duplicate)
