"""The source of a queue's jobs: consumers or, for exclusive keys on a cluster, the records of the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pelton.queue.job_source import ConsumerJobSource, JobSource
from pelton.queue.keys import KeyedJobSource, KeyedStats
from pelton.queue.queue_stats import ConsumerStats, QueueStats
from pelton.queue.setup import KEYS, RECORDS, QueueSettings, free_consumer, keys_stream, worker_consumers

if TYPE_CHECKING:
    from pelton.jet import Stream, Streams
    from pelton.queue.naming import QueueNames
    from pelton.queue.queue import Queue


async def open_source(
    jet: Streams, names: QueueNames, stream: Stream, exclusive: bool, lease: float, settings: QueueSettings
) -> tuple[QueueStats, Callable[[Queue, str], JobSource]]:
    """Make what is missing; return the stats for the views, and the factory of a worker's job source."""
    # As the queue was made, whichever backend opens it: the two ways cannot be mixed.
    if stream.config.metadata.get(KEYS) == RECORDS:
        await keys_stream(jet, names, settings)
        free = await free_consumer(stream, names, lease)

        def keyed(queue: Queue, worker: str) -> JobSource:
            return KeyedJobSource(jet, names, stream, free, queue.attempt_of, worker, lease)

        return KeyedStats(jet, names, free), keyed
    consumers = await worker_consumers(stream, names, exclusive, lease)

    def delivered(queue: Queue, worker: str) -> JobSource:
        return ConsumerJobSource(jet.backend, consumers, queue.attempt_of)

    return ConsumerStats(jet.backend, consumers), delivered
