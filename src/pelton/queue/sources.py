"""Where the jobs of a queue come from: consumers, or, for exclusive keys on a cluster, the records of the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pelton.queue.keys import KeyedSupply, KeyedViews
from pelton.queue.looking import ConsumerViews, Looking
from pelton.queue.setup import KEYS, RECORDS, QueueSettings, free_consumer, keys_stream, worker_consumers
from pelton.queue.supply import ConsumerSupply, Supply

if TYPE_CHECKING:
    from pelton.jet import Stream, Streams
    from pelton.queue.naming import QueueNames
    from pelton.queue.queue import Queue


async def sources_of_jobs(
    jet: Streams, names: QueueNames, stream: Stream, exclusive: bool, lease: float, settings: QueueSettings
) -> tuple[Looking, Callable[[Queue, str], Supply]]:
    """Make what is missing, and return what the views look at and what makes the supply of a worker."""
    # As it was made, wherever it is opened from: the two ways know nothing of each other.
    if stream.config.metadata.get(KEYS) == RECORDS:
        await keys_stream(jet, names, settings)
        free = await free_consumer(stream, names, lease)

        def keyed(queue: Queue, worker: str) -> Supply:
            return KeyedSupply(jet, names, stream, free, queue.attempt_of, worker, lease)

        return KeyedViews(jet, names, free), keyed
    consumers = await worker_consumers(stream, names, exclusive, lease)

    def delivered(queue: Queue, worker: str) -> Supply:
        return ConsumerSupply(jet.backend, consumers, queue.attempt_of)

    return ConsumerViews(jet.backend, consumers), delivered
