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
    """Return how many messages no worker takes: scheduled jobs and schedules."""
    stream = await jet.stream(names.jobs)
    return await scheduled_jobs(jet, names) + (await stream.info(subjects_filter=names.crons)).total


async def unfinished_job(stream: Stream, names: QueueNames, job_id: str) -> StoredMessage | None:
    """Return the message of a job that has not ended."""
    if job_id.isdigit():
        try:
            return await stream.get_message(int(job_id))
        except MessageNotFoundError:
            return None
    leaf, key = found_by(job_id)
    # A job can fall due between the two, but never goes back.
    for subject in (names.later(key, leaf), names.place(key, leaf)):
        try:
            stored = await stream.get_last_message(subject)
        except MessageNotFoundError:
            continue
        if job_id_in(stored.data, stored.seq) == job_id:
            return stored
    return None
