"""The scheduled jobs of a queue: they are in the stream of its jobs, where no worker takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pelton.jet import Streams
    from pelton.queue.model.naming import QueueNames


async def scheduled_jobs(jet: Streams, names: QueueNames) -> int:
    """Return how many jobs wait for their time."""
    stream = await jet.stream(names.jobs)
    return (await stream.info(subjects_filter=names.scheduled)).total
