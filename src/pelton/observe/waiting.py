"""One job with all that is known of it, and what it waits for: its time, a limit, a pause, its key, a worker."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from pelton.api import JobNotFoundError, MessageNotFoundError, StreamNotFoundError
from pelton.api.json_values import UNREADABLE
from pelton.api.requests import FindMessages
from pelton.api.wording import moment_text
from pelton.connect import Jet
from pelton.observe.queues import dead_letter, job_details, pauses_of, workers_present
from pelton.observe.summaries import JobDetails
from pelton.queue import JobInfo
from pelton.queue.backing.scan import last_attempt, unfinished_job
from pelton.queue.model.naming import ALL_PRIORITIES, QueueNames, encode_key
from pelton.queue.model.records import job_id_in
from pelton.queue.model.states import Attempt, decode_envelope
from pelton.queue.queue import look_at_queue


async def job_with_details(jet: Jet, queue: str, job_id: str) -> JobDetails:
    """Return a job with its arguments, the errors of its attempts, and what it waits for.

    Raises JobNotFoundError, QueueNotFoundError.
    """
    info, names = await job_details(jet, queue, job_id), QueueNames(queue)
    letter = await dead_letter(jet, queue, job_id)
    known = None
    if info.outcome is None:
        with suppress(StreamNotFoundError):
            known = await last_attempt(await jet.stream(names.attempts), names, job_id)
    errors = known.errors if known is not None else () if info.outcome is None else info.outcome.errors
    arguments = bytes(letter.envelope.args) if letter is not None else await _arguments(jet, names, job_id)
    waits_for, blocked_by = await _wait_of(jet, names, info, known)
    return JobDetails(
        job=info, arguments=arguments, errors=errors, is_dead=letter is not None, waits_for=waits_for,
        blocked_by=blocked_by,
    )  # fmt: skip


async def _arguments(jet: Jet, names: QueueNames, job_id: str) -> bytes | None:
    stored = await unfinished_job(await jet.stream(names.jobs), names, job_id)
    if stored is not None:
        with suppress(*UNREADABLE):
            return bytes(decode_envelope(stored.data).args)
    return None


class _Wait(NamedTuple):
    """What a job waits for, and the id of the job that has to end first; empty if there is none."""

    reason: str
    blocked_by: str = ""


async def _wait_of(jet: Jet, names: QueueNames, job: JobInfo, known: Attempt | None) -> _Wait:
    if job.state in ("scheduled", "retrying"):
        return _Wait(f"its time: {moment_text(job.due)}" if job.due else "its time")
    if job.state == "held":
        return _Wait(f"a limit of {job.limit}" if job.limit else "a limit")
    if job.state == "running":
        with suppress(StreamNotFoundError, MessageNotFoundError):
            await (await jet.stream(names.control)).get_last_message(names.cancel_subject(job.id))
            return _Wait("its function, which was asked to end: it was cancelled")
    return await _wait_of_pending(jet, names, job, known) if job.state == "pending" else _Wait("")


async def _wait_of_pending(jet: Jet, names: QueueNames, job: JobInfo, known: Attempt | None) -> _Wait:
    pauses = await pauses_of(jet, names)
    if pauses.is_all_paused:
        return _Wait("the queue is paused")
    if job.key in pauses.paused_keys or job.job in pauses.paused_jobs:
        return _Wait(f"jobs of its {'key' if job.key in pauses.paused_keys else 'name'} are paused")
    if (first := await _first_of_key(jet, names, job)) != job.id:
        # It may have ended meanwhile.
        with suppress(JobNotFoundError):
            state = (await job_details(jet, names.queue, first)).state
            return _Wait(f"its key: job {first} comes first, which is {state}", first)
    if known is not None and known.waits:
        # Such as that no worker so far knows its name.
        return _Wait(known.waits)
    return _Wait("a worker that is free" if await workers_present(jet, names.queue) else "a worker: none is there")


async def _first_of_key(jet: Jet, names: QueueNames, job: JobInfo) -> str:
    """Return which of the jobs of a key is the oldest, in an exclusive queue; elsewhere, the job itself."""
    if not job.key or not (await look_at_queue(jet, names)).exclusive:
        return job.id
    key = encode_key(job.key)
    filters = tuple(subject for rank in ALL_PRIORITIES for subject in names.subjects_of_key(key, rank))
    found = (await jet.backend.call(FindMessages(stream=names.jobs, filters=filters, limit=1))).messages
    return job_id_in(found[0].data, found[0].seq) if found else job.id
