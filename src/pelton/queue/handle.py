"""The handle of a job that was enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pelton.queue.checks import seconds
from pelton.queue.first_message import first_of
from pelton.queue.model import ENDINGS, Outcome

if TYPE_CHECKING:
    from pelton.api.times import Seconds
    from pelton.queue.model import JobInfo
    from pelton.queue.queue import Queue

_outcome: Final = msgspec.json.Decoder(Outcome).decode


class JobHandle:
    """A job that was enqueued.

    ``duplicate``: the idempotency key was known, and this is the job that the first call created.
    """

    __slots__ = ("_queue", "duplicate", "id")

    def __init__(self, queue: Queue, seq: int, duplicate: bool) -> None:
        self._queue = queue
        self.id = str(seq)
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} of queue {self._queue.name!r}>"

    async def info(self) -> JobInfo:
        """Return the job's present state. Raises JobNotFoundError when its history was cleaned."""
        return await self._queue.get(self.id)

    async def outcome(self, *, timeout: Seconds | None = None) -> Outcome:
        """Wait until the job has ended, and return its outcome; ``timeout`` in seconds.

        Raises TimeoutError, ConfigError.
        """
        queue = self._queue
        limit = None if timeout is None else seconds(f"job {self.id} of queue {queue.name!r}: timeout", timeout)
        stream = await queue.jet.stream(queue.names.history)
        subjects = [queue.names.ending_subject(ending, self.id) for ending in ENDINGS]
        found = await first_of(stream, subjects, queue.jet.runtime.clock, limit)
        if found is None:
            raise TimeoutError(f"job {self.id} of queue {queue.name!r} has not ended in time; it was not cancelled")
        return _outcome(found.data)
