"""A job store for APScheduler 3: ``scheduler.add_jobstore(PeltonJobStore("shop.pelton"))``."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from apscheduler.job import Job as ScheduledJob
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError

from pelton.api import BucketKeyExistsError, BucketKeyNotFoundError
from pelton.contrib.process_store import ProcessStore, process_store, token

__all__ = ["PeltonJobStore"]

_LAST: Final = datetime(9999, 12, 31, tzinfo=UTC)

if TYPE_CHECKING:

    class BaseJobStore:
        """What type checkers take for APScheduler's class, which has no type information."""

        def __getattr__(self, name: str) -> Any: ...

else:
    from apscheduler.jobstores.base import BaseJobStore


class PeltonJobStore(BaseJobStore):
    """Keeps the jobs of a scheduler, pickled, in ``bucket`` of a ``store``: a file, or ``nats://host:4222``.

    The bucket is created if it is missing. Like every job store of APScheduler 3 it is for one scheduler at a time: two
    that share it would both run each job. A change is on disk when the call returns. Plugin alias: ``pelton``.
    """

    def __init__(self, store: str, bucket: str = "apscheduler") -> None:
        super().__init__()
        self._address = store
        self._name = bucket

    def lookup_job(self, job_id: str) -> Any:
        """Return a job, or None."""
        store, bucket = self._bucket()
        try:
            return self._restore(store.run(bucket.get, token(job_id)).value)
        except BucketKeyNotFoundError:
            return None

    def get_due_jobs(self, now: datetime) -> list[Any]:
        """Return the jobs that are due, the earliest first."""
        return [job for job in self._jobs_with_a_time() if job.next_run_time <= now]

    def get_next_run_time(self) -> datetime | None:
        """Return when the next job is due, None if none will be."""
        return next((job.next_run_time for job in self._jobs_with_a_time()), None)

    def get_all_jobs(self) -> list[Any]:
        """Return all jobs, the earliest first and those that are paused last."""
        return sorted(self._jobs(), key=lambda job: job.next_run_time or _LAST)

    def add_job(self, job: Any) -> None:
        """Store a job. Raises ConflictingIdError."""
        store, bucket = self._bucket()
        try:
            store.run(bucket.create, token(job.id), _pickle(job))
        except BucketKeyExistsError:
            raise ConflictingIdError(job.id) from None

    def update_job(self, job: Any) -> None:
        """Replace a job. Raises JobLookupError."""
        store, bucket = self._bucket()
        self._check(job.id)
        store.run(bucket.put, token(job.id), _pickle(job))

    def remove_job(self, job_id: str) -> None:
        """Remove a job. Raises JobLookupError."""
        store, bucket = self._bucket()
        self._check(job_id)
        store.run(bucket.purge, token(job_id), ttl=1)

    def remove_all_jobs(self) -> None:
        """Remove all jobs."""
        store, _ = self._bucket()
        store.blocking.stream(f"KV_{self._name}").purge()

    def _check(self, job_id: str) -> None:
        store, bucket = self._bucket()
        try:
            store.run(bucket.get, token(job_id))
        except BucketKeyNotFoundError:
            raise JobLookupError(job_id) from None

    def _jobs_with_a_time(self) -> list[Any]:
        return [job for job in self.get_all_jobs() if job.next_run_time is not None]

    def _jobs(self) -> list[Any]:
        store, bucket = self._bucket()

        async def entries() -> list[Any]:
            keys = [key async for key in bucket.keys()]  # noqa: SIM118  # not a dict's
            return list(await asyncio.gather(*map(bucket.get, keys), return_exceptions=True))

        jobs = []
        for entry in store.run(entries):
            if isinstance(entry, BucketKeyNotFoundError):
                continue  # removed just now
            if isinstance(entry, BaseException):
                raise entry
            try:
                jobs.append(self._restore(entry.value))
            except Exception:  # whatever the functions of a program that has changed raise
                self._logger.exception("Unable to restore the job %r: it is left as it is", entry.key)
        return jobs

    def _restore(self, data: bytes) -> Any:
        job = ScheduledJob.__new__(ScheduledJob)
        job.__setstate__(pickle.loads(data))
        job._scheduler = self._scheduler
        job._jobstore_alias = self._alias
        return job

    def _bucket(self) -> tuple[ProcessStore, Any]:
        store = process_store(self._address)
        return store, store.bucket(self._name, limit_marker_ttl=1)


def _pickle(job: Any) -> bytes:
    return pickle.dumps(job.__getstate__(), pickle.HIGHEST_PROTOCOL)
