"""What the stream of a queue's jobs has that no worker takes: jobs that wait for their time, and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pelton.jet import Streams
    from pelton.queue.model.naming import QueueNames


async def scheduled_jobs(jet: Streams, names: QueueNames) -> int:
    """Return how many jobs wait for their time."""
    stream = await jet.stream(names.jobs)
    return (await stream.info(subjects_filter=names.scheduled)).total


async def not_to_be_taken(jet: Streams, names: QueueNames) -> int:
    """Return how many messages no worker takes: scheduled jobs and schedules."""
    stream = await jet.stream(names.jobs)
    return await scheduled_jobs(jet, names) + (await stream.info(subjects_filter=names.crons)).total
