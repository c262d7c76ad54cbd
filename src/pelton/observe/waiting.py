"""What one job waits for: its time, a limit, what is paused, a job that has its key, a worker, or its own end."""

from __future__ import annotations

from contextlib import suppress

from pelton.api import MessageNotFoundError, StreamNotFoundError
from pelton.api.wording import moment_text
from pelton.connect import Jet
from pelton.observe.finding import jobs_of_key
from pelton.observe.queues import queue_summary, workers_present
from pelton.queue import JobInfo
from pelton.queue.model.naming import QueueNames


async def wait_reason(jet: Jet, queue: str, job: JobInfo) -> str:
    """Return what a job waits for; empty if for nothing. Raises QueueNotFoundError, ConfigError."""
    if job.state in ("scheduled", "retrying"):
        return f"its time: {moment_text(job.due)}" if job.due else ""
    if job.state == "held":
        return f"a limit of {job.limit}" if job.limit else "a limit"
    if job.state == "running":
        names = QueueNames(queue)
        with suppress(StreamNotFoundError, MessageNotFoundError):
            await (await jet.stream(names.control)).get_last_message(names.cancel_subject(job.id))
            return "its function, which was asked to end: it was cancelled"
    if job.state != "pending":
        return ""
    found = await queue_summary(jet, queue)
    if found.paused:
        return "the queue is paused"
    if job.key in found.paused_keys or job.job in found.paused_jobs:
        return f"jobs of its {'key' if job.key in found.paused_keys else 'name'} are paused"
    if found.exclusive and job.key:
        before = next(iter((await jobs_of_key(jet, queue, job.key, limit=1)).jobs), job)
        if before.id != job.id:
            return f"its key: job {before.id} comes first, which is {before.state}"
    return "a worker that is free" if await workers_present(jet, queue) else "a worker: none is there"
