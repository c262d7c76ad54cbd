"""Opening a queue: its streams and consumers, made if they are missing, and the context that the rooms pass down."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pelton.api import QueueNotFoundError, StreamNotFoundError
from pelton.jet.streams import StoreTime
from pelton.queue.backing.job_source import BegunJobs, ConsumerJobSource
from pelton.queue.backing.scan import ConsumerStats, FailedAttempts
from pelton.queue.backing.setup import (
    EXCLUSIVE,
    KEYS,
    LEASE,
    RECORDS,
    QueueSettings,
    check_is_queue,
    existing_consumers,
    free_consumer,
    jobs_stream,
    keys_stream,
    ranked_consumers,
    side_streams,
    with_places,
    worker_consumers,
)
from pelton.queue.define.queue_context import QueueContext
from pelton.queue.define.registry import JobRegistry
from pelton.queue.keys import KeyedJobSource, KeyedStats

if TYPE_CHECKING:
    from pelton.jet import Consumer, Stream, Streams
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.ports import JobSource, QueueStats


async def open_queue(jet: Streams, names: QueueNames, settings: QueueSettings, jobs: JobRegistry) -> QueueContext:
    """Open a queue. Raises ConfigError."""
    stream = await jobs_stream(jet, names, settings)
    if jet.backend.planning.read_only:
        # The views of a queue that lacks a stream, because an older version made it, find nothing there.
        return await _context(jet, names, stream, jobs, None)
    stream = await with_places(jet, names, stream)
    await side_streams(jet, names, settings)
    return await _context(jet, names, stream, jobs, settings)


async def look_at_queue(jet: Streams, names: QueueNames) -> QueueContext:
    """Return a queue to be looked at: nothing of it is made. Raises QueueNotFoundError, ConfigError."""
    try:
        stream = await jet.stream(names.jobs)
    except StreamNotFoundError:
        raise QueueNotFoundError(names.queue) from None
    check_is_queue(names, stream)
    return await _context(jet, names, stream, JobRegistry(names.queue, ()), None)


async def _context(
    jet: Streams, names: QueueNames, stream: Stream, jobs: JobRegistry, settings: QueueSettings | None
) -> QueueContext:
    exclusive = stream.config.metadata[EXCLUSIVE] == "true"
    lease = float(stream.config.metadata[LEASE])
    begun = BegunJobs(jet, names, lease, await jet.backend.begun_deliveries(names.jobs))
    stats, source_for = await _source(jet, names, stream, exclusive, lease, begun, settings)
    return QueueContext(
        jet=jet,
        names=names,
        exclusive=exclusive,
        lease=lease,
        stats=stats,
        begun=begun,
        source_for=source_for,
        jobs=jobs,
        time=StoreTime(jet.backend, jet.runtime),
    )


async def _source(
    jet: Streams,
    names: QueueNames,
    stream: Stream,
    exclusive: bool,
    lease: float,
    begun: BegunJobs,
    settings: QueueSettings | None,
) -> tuple[QueueStats, Callable[[str], JobSource]]:
    """Return the stats for the views, and the factory of a worker's job source."""
    known = FailedAttempts(jet, names).last
    # As the queue was made, whichever backend opens it: the two ways cannot be mixed.
    has_records = stream.config.metadata.get(KEYS) == RECORDS
    ranked: list[Consumer] = []
    if settings is None:
        consumers = await existing_consumers(stream, names)
    else:
        if has_records:
            await keys_stream(jet, names, settings)
            consumers = [await free_consumer(stream, names, lease)]
        else:
            consumers = await worker_consumers(stream, names, exclusive, lease)
        # Last: in a queue that an older version made, a worker's consumer took every job until now.
        ranked = await ranked_consumers(stream, names, lease)

    def keyed(worker: str) -> JobSource:
        return KeyedJobSource(jet, names, stream, consumers[0], ranked, known, begun, worker, lease)

    def delivered(worker: str) -> JobSource:
        return ConsumerJobSource(jet, names, stream, lease, consumers, ranked, known, begun, worker)

    if has_records:
        return KeyedStats(jet, names, stream, (*ranked, *consumers)), keyed
    return ConsumerStats(jet.backend, names, stream, (*ranked, *consumers)), delivered
