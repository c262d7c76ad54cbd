"""From the read model to samples."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar, get_args

from pelton.api import ConfigError
from pelton.api.times import SECOND, parse_rfc3339
from pelton.connect import Jet
from pelton.observe.flows import flow_summaries
from pelton.observe.limits import limit_summaries
from pelton.observe.locks import election_summaries
from pelton.observe.queue_history import workers_present
from pelton.observe.queues import queue_summary, schedule_counts
from pelton.observe.streams import consumer_summaries, stream_summaries
from pelton.observe.summaries import ConsumerSummary, ElectionSummary, LimitSummary, QueueSummary, StreamSummary
from pelton.queue.model.flow_records import FlowState
from pelton.queue.model.limits import JobLimit

LIMIT: Final = 1000
"""How many streams, consumers, queues and elections are told of, each by itself, unless the caller says."""
_FLOWS: Final = 100
_FLOWS_FOR_S: Final = 0.1
_T = TypeVar("_T")


class Sample(NamedTuple):
    """The value of one metric with its labels' values."""

    metric: str
    labels: tuple[str, ...]
    value: float


async def samples(jet: Jet, path: str = "", limit: int = LIMIT) -> list[Sample]:
    """Return all samples of now; ``path`` is the file of the store, if its size and disk are to be told."""
    streams = await stream_summaries(jet)
    consumers = await consumer_summaries(jet)
    names = await jet.queue_names()
    queues = [await queue_summary(jet, name) for name in names[:limit]]
    # Each leader is a read of its own.
    elections = [one.name for one in streams if one.kind == "election"]
    leaders = [(await election_summaries(jet, name.removeprefix("KV_")))[0] for name in elections[:limit]]
    counts = {"stream": len(streams), "consumer": len(consumers), "queue": len(names), "election": len(elections)}
    return [
        *_totals(streams, len(consumers)),
        *_each(_stream, streams, limit),
        *_each(_consumer, consumers, limit),
        *_queues(queues, streams, jet.runtime.clock.now()),
        *[sample for name in names[:limit] for sample in await _workers(jet, name)],
        *[sample for one in queues for sample in await _parts(jet, one, limit)],
        *_each(_election, leaders, limit),
        *(_store(path) if path else ()),
        *await _troubles(jet),
        *(Sample("pelton_omitted", (kind,), max(count - limit, 0)) for kind, count in counts.items()),
    ]


def _each(of: Callable[[_T], Iterator[Sample]], found: Iterable[_T], limit: int) -> Iterator[Sample]:
    for one in islice(found, limit):
        yield from of(one)


def _totals(streams: Sequence[StreamSummary], consumers: int) -> Iterator[Sample]:
    yield Sample("jetstream_server_total_streams", (), len(streams))
    yield Sample("jetstream_server_total_consumers", (), consumers)
    yield Sample("jetstream_server_total_messages", (), sum(one.messages for one in streams))
    yield Sample("jetstream_server_total_message_bytes", (), sum(one.bytes for one in streams))


def _stream(stream: StreamSummary) -> Iterator[Sample]:
    values = {
        "total_messages": stream.messages,
        "total_bytes": stream.bytes,
        "first_seq": stream.first_seq,
        "last_seq": stream.last_seq,
        "subject_count": stream.num_subjects,
        "consumer_count": stream.consumers,
    }
    limits = {"limit_messages": stream.max_messages, "limit_bytes": stream.max_bytes}
    values |= {name: value for name, value in limits.items() if value > 0}
    for name, value in values.items():
        yield Sample(f"jetstream_stream_{name}", (stream.name,), value)


def _consumer(consumer: ConsumerSummary) -> Iterator[Sample]:
    values = {
        "jetstream_consumer_delivered_stream_seq": consumer.delivered_seq,
        "jetstream_consumer_delivered_consumer_seq": consumer.deliveries,
        "jetstream_consumer_ack_floor_stream_seq": consumer.ack_floor,
        "jetstream_consumer_ack_floor_consumer_seq": consumer.ack_floor_delivery,
        "jetstream_consumer_num_pending": consumer.pending,
        "jetstream_consumer_num_ack_pending": consumer.ack_pending,
        "jetstream_consumer_num_redelivered": consumer.redelivered,
        "jetstream_consumer_num_waiting": consumer.waiting_pulls,
        "pelton_consumer_lag": consumer.lag,
        "pelton_consumer_paused": consumer.paused,
    }
    for name, value in values.items():
        yield Sample(name, (consumer.stream, consumer.name), value)


def _queues(queues: Sequence[QueueSummary], streams: Sequence[StreamSummary], now: int) -> Iterator[Sample]:
    # What was ever stored, also if it was removed since: a history is cleaned, a counter never falls.
    stored = {one.name: one.last_seq for one in streams}
    for queue in queues:
        yield from _queue(queue, now)
        yield Sample("pelton_queue_jobs_ended", (queue.name,), stored.get(f"JOBS_{queue.name}_history", 0))
        yield Sample("pelton_queue_jobs_dead", (queue.name,), stored.get(f"JOBS_{queue.name}_dead", 0))


def _queue(queue: QueueSummary, now: int) -> Iterator[Sample]:
    name = queue.name
    for state in ("pending", "scheduled", "held", "running", "retrying"):
        yield Sample("pelton_queue_jobs", (name, state), getattr(queue, state))
    for state in ("completed", "failed", "cancelled", "expired"):
        yield Sample("pelton_queue_history_jobs", (name, state), getattr(queue, state))
    yield Sample("pelton_queue_dead_letters", (name,), queue.dead_letters)
    age = max(now - parse_rfc3339(queue.oldest_at), 0) / SECOND if queue.oldest_at else 0
    yield Sample("pelton_queue_oldest_job_age_seconds", (name,), age)
    if queue.last_ended_at:
        ended = parse_rfc3339(queue.last_ended_at) / SECOND
        yield Sample("pelton_queue_last_ended_timestamp_seconds", (name,), ended)
        for metric, spread in (("wait", queue.wait), ("run", queue.run)):
            for quantile, value in (("0.5", spread.median), ("0.95", spread.p95), ("1", spread.longest)):
                yield Sample(f"pelton_queue_job_{metric}_seconds", (name, quantile), value)


async def _workers(jet: Jet, queue: str) -> list[Sample]:
    workers, now = await workers_present(jet, queue), jet.runtime.clock.now()
    ages = [one.oldest_running + max(now - one.seen_at, 0) / SECOND for one in workers if one.running]
    return [
        Sample("pelton_queue_workers", (queue,), len(workers)),
        Sample("pelton_queue_longest_running_seconds", (queue,), max(ages, default=0.0)),
    ]


async def _parts(jet: Jet, one: QueueSummary, limit: int) -> list[Sample]:
    """Return how the flows, the schedules and the limits of a queue are."""
    queue = one.name
    flows = Counter(one.state for one in await flow_summaries(jet, queue, limit=_FLOWS, within=_FLOWS_FOR_S))
    schedules = await schedule_counts(jet, queue)
    return [
        *(Sample("pelton_queue_recent_flows", (queue, state), flows[state]) for state in (get_args(FlowState))),
        *(Sample("pelton_queue_schedules", (queue, state), count) for state, count in schedules.items()),
        *_each(lambda each: _limit(each, one.held_for), await limit_summaries(jet, queue), limit),
    ]


def _limit(limit: LimitSummary, held_for: Mapping[str, int]) -> Iterator[Sample]:
    labels = (limit.queue, JobLimit(job=limit.job, per_key=limit.per_key).name)
    yield Sample("pelton_limit_held", labels, held_for.get(labels[1], 0))
    if limit.concurrency is not None:
        yield Sample("pelton_limit_concurrency", labels, limit.concurrency)
        yield Sample("pelton_limit_running", labels, limit.running)
        yield Sample("pelton_limit_fullest", labels, limit.fullest)
    if limit.starts is not None:
        yield Sample("pelton_limit_next_start_seconds", labels, limit.next_start)


def _election(election: ElectionSummary) -> Iterator[Sample]:
    yield Sample("pelton_election_has_leader", (election.election,), bool(election.leader))
    yield Sample("pelton_election_token", (election.election,), election.token)


async def _troubles(jet: Jet) -> list[Sample]:
    try:
        store = jet.backend.embedded("metrics")
    except ConfigError:
        return []
    found = await store.troubles()
    return [
        Sample("pelton_store_quarantined_messages", (), found.quarantined),
        Sample("pelton_store_slow_syncs", (), found.slow_syncs),
        Sample("pelton_store_writer_waits", (), found.writer_waits),
        Sample("pelton_store_checkpoints_blocked", (), found.blocked_checkpoints),
    ]


def _store(path: str) -> Iterator[Sample]:
    for name, file in (("file", path), ("log", f"{path}-wal")):
        yield Sample(f"pelton_store_{name}_bytes", (), os.path.getsize(file) if os.path.exists(file) else 0)
    disk = os.statvfs(os.path.dirname(os.path.abspath(path)))
    yield Sample("pelton_store_disk_free_bytes", (), disk.f_bavail * disk.f_frsize)
