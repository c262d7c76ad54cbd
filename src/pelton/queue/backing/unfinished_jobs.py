"""Jobs that have not ended, in the stream of a queue's jobs: also scheduled ones, which no worker takes from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton.api import MessageNotFoundError, StoredMessage
from pelton.queue.model.places import found_by
from pelton.queue.model.records import job_id_in

if TYPE_CHECKING:
    from pelton.jet import Stream, Streams
    from pelton.queue.model.naming import QueueNames


async def scheduled_jobs(jet: Streams, names: QueueNames) -> int:
    """Return how many jobs wait for their time."""
    stream = await jet.stream(names.jobs)
    return (await stream.info(subjects_filter=names.scheduled)).total


async def not_to_be_taken(jet: Streams, names: QueueNames) -> int:
    """Return how many messages no worker takes: scheduled jobs, schedules and kept places."""
    stream = await jet.stream(names.jobs)
    others = [(await stream.info(subjects_filter=subject)).total for subject in (names.crons, names.kept)]
    return await scheduled_jobs(jet, names) + sum(others)


async def unfinished_job(stream: Stream, names: QueueNames, job_id: str) -> StoredMessage | None:
    """Return the message of a job that has not ended."""
    if job_id.isdigit():
        try:
            return await stream.get_message(int(job_id))
        except MessageNotFoundError:
            return None
    leaf, key = found_by(job_id)
    # A job can fall due between the two, but never goes back.
    for subject in (names.later(key, leaf), *names.places(key, leaf)):
        if (stored := await _one_of(stream, subject, job_id)) is not None:
            return stored
    return None


async def job_at(stream: Stream, names: QueueNames, leaf: str, key: str) -> StoredMessage | None:
    """Return the message of a job that has not ended, by its place: there is one at most."""
    for subject in (names.later(key, leaf), *names.places(key, leaf)):
        try:
            return await stream.get_last_message(subject)
        except MessageNotFoundError:
            continue
    return None


async def _one_of(stream: Stream, subject: str, job_id: str) -> StoredMessage | None:
    """Return the message of a job among those of its subject: of jobs that are unique until started, several run."""
    seq = 1
    while True:
        try:
            stored = await stream.get_next_message(subject, seq)
        except MessageNotFoundError:
            return None
        if job_id_in(stored.data, stored.seq) == job_id:
            return stored
        seq = stored.seq + 1
