"""Jobs that have not ended, in the stream of a queue's jobs: also scheduled ones, which no worker takes from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pelton.api import ConsumerNotFoundError, MessageNotFoundError, StoredMessage, StreamNotFoundError
from pelton.queue.backing.scan import number_of_subjects
from pelton.queue.model.naming import FLOWS_CONSUMER
from pelton.queue.model.places import found_by
from pelton.queue.model.records import job_id_in
from pelton.queue.model.states import JobCounts

if TYPE_CHECKING:
    from pelton.jet import Stream, Streams
    from pelton.queue.model.naming import QueueNames


async def scheduled_jobs(jet: Streams, names: QueueNames) -> int:
    """Return how many jobs wait for their time."""
    return await number_of_subjects(await jet.stream(names.jobs), names.scheduled)


async def not_to_be_taken(jet: Streams, names: QueueNames) -> int:
    """Return how many messages no worker takes: scheduled jobs, schedules and kept places."""
    stream = await jet.stream(names.jobs)
    others = [await number_of_subjects(stream, subject) for subject in (names.crons, names.kept)]
    return await scheduled_jobs(jet, names) + sum(others)


async def with_waiting_flow(jet: Streams, names: QueueNames, counts: JobCounts) -> JobCounts:
    """Return counts that show a flow that is all that waits for a worker: its next job is not enqueued before."""
    if counts.unfinished or not await _flow_waits(jet, names):
        return counts
    return msgspec.structs.replace(counts, pending=1)


async def _flow_waits(jet: Streams, names: QueueNames) -> bool:
    try:
        stream = await jet.stream(names.flows)
    except StreamNotFoundError:
        return False
    try:
        found = await (await stream.consumer(FLOWS_CONSUMER)).info()
    except ConsumerNotFoundError:
        # No worker has looked yet.
        return (await stream.info()).state.messages > 0
    return found.num_pending + found.num_ack_pending > 0


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
