"""The handle of a job that was enqueued."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import msgspec

from pelton.queue.model.checks import seconds

if TYPE_CHECKING:
    from pelton.api.times import Seconds
    from pelton.queue.model.states import JobInfo, Outcome
    from pelton.queue.ports import JobLookup

R_co = TypeVar("R_co", covariant=True)


class JobHandle(Generic[R_co]):
    """A job that was enqueued; ``R_co`` is what its function returns.

    ``duplicate``: the idempotency key was known, and this is the job that the first call created.
    """

    __slots__ = ("_lookup", "_queue", "_read", "duplicate", "id")

    def __init__(
        self,
        lookup: JobLookup,
        queue: str,
        job_id: str,
        duplicate: bool = False,
        read: Callable[[msgspec.Raw], object] | None = None,
    ) -> None:
        self._lookup = lookup
        self._queue = queue
        # Decodes a result to the declared type; None: as plain JSON.
        self._read = read
        self.id: str = job_id
        self.duplicate: bool = duplicate

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} of queue {self._queue!r}>"

    async def info(self) -> JobInfo:
        """Return the job's present state. Raises JobNotFoundError when its history was cleaned."""
        return await self._lookup.get(self.id)

    async def cancel(self, *, reason: str = "") -> bool:
        """Cancel the job, waiting or running, from any process, for a ``reason``; see :meth:`Queue.cancel`.

        Raises JobNotFoundError.
        """
        return await self._lookup.cancel(self.id, reason=reason)

    async def outcome(self, *, timeout: Seconds | None = None) -> Outcome:
        """Wait until the job has ended, and return its outcome; ``timeout`` in seconds.

        Raises TimeoutError, ConfigError.
        """
        limit = None if timeout is None else seconds(f"job {self.id} of queue {self._queue!r}: timeout", timeout)
        found = await self._lookup.outcome(self.id, limit)
        if found is None:
            raise TimeoutError(
                f"job {self.id} of queue {self._queue!r} has not ended within {limit:g} s; it was not cancelled"
            )
        return found

    async def value(self, *, timeout: Seconds | None = None) -> R_co:
        """Wait until the job has ended, and return what its function returned; ``timeout`` in seconds.

        The result is decoded to the type that the function declares. Raises JobFailedError if the job has not
        completed, JobResultError if its result is of another type, TimeoutError, ConfigError.
        """
        outcome = await self.outcome(timeout=timeout)
        if outcome.state != "completed" or self._read is None:
            return cast(R_co, outcome.value())
        return cast(R_co, self._read(outcome.result))
