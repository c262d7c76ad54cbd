"""The handle of a job that was enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton.queue.model.checks import seconds

if TYPE_CHECKING:
    from pelton.api.times import Seconds
    from pelton.queue.model.states import JobInfo, Outcome
    from pelton.queue.ports import JobLookup


class JobHandle:
    """A job that was enqueued.

    ``duplicate``: the idempotency key was known, and this is the job that the first call created.
    """

    __slots__ = ("_lookup", "_queue", "duplicate", "id")

    def __init__(self, lookup: JobLookup, queue: str, seq: int, duplicate: bool) -> None:
        self._lookup = lookup
        self._queue = queue
        self.id = str(seq)
        self.duplicate = duplicate

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} of queue {self._queue!r}>"

    async def info(self) -> JobInfo:
        """Return the job's present state. Raises JobNotFoundError when its history was cleaned."""
        return await self._lookup.get(self.id)

    async def outcome(self, *, timeout: Seconds | None = None) -> Outcome:
        """Wait until the job has ended, and return its outcome; ``timeout`` in seconds.

        Raises TimeoutError, ConfigError.
        """
        limit = None if timeout is None else seconds(f"job {self.id} of queue {self._queue!r}: timeout", timeout)
        found = await self._lookup.outcome(self.id, limit)
        if found is None:
            raise TimeoutError(f"job {self.id} of queue {self._queue!r} has not ended in time; it was not cancelled")
        return found
