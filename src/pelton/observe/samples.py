"""Every metric there is, and its samples from the read model.

**Every metric there is: its name, its kind, its labels, what it says.** Streams and consumers have the names of NATS's
Prometheus exporter, so that dashboards made for it fit. Labels are names of streams, consumers, queues, elections and
states: never keys, subjects or ids, of which there may be millions.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeVar, get_args

from pelton.api import ConfigError
from pelton.api.times import SECOND, parse_rfc3339
from pelton.connect import Jet
from pelton.observe.alarms import KINDS, HealthFacts, alarms_of, health_facts, hub_silence
from pelton.observe.holdings import INTERNAL, consumer_summaries, election_summaries, stream_summaries
from pelton.observe.queues import flow_summaries, limit_summaries, queue_summaries, schedule_counts
from pelton.observe.summaries import ConsumerSummary, ElectionSummary, LimitSummary, QueueSummary, StreamSummary
from pelton.queue import WorkerInfo
from pelton.queue.builder import FlowState
from pelton.queue.model.limits import JobLimit
from pelton.storage import StandbyLag, backups_noted, leafs_noted, writer_hold

LIMIT: Final = 1000
"""How many streams, consumers, queues and elections are exported one by one, unless the caller says."""
_FLOWS: Final = 100
_FLOWS_FOR_S: Final = 0.1
_T = TypeVar("_T")


class Sample(NamedTuple):
    """The value of one metric with its labels' values."""

    metric: str
    labels: tuple[str, ...]
    value: float


async def samples(jet: Jet, path: str = "", limit: int = LIMIT, *, internals: bool = False) -> list[Sample]:
    """Return all samples of now; ``path`` is the file of the store, if its size and disk are wanted.

    ``internals``: also those of the consumers by which Pelton's own queues, locks and elections work.
    """
    streams = await stream_summaries(jet)
    own = {one.name for one in streams if one.kind in INTERNAL}
    consumers = [one for one in await consumer_summaries(jet) if internals or one.stream not in own]
    every_queue = await queue_summaries(jet, limit=limit)
    health = await health_facts(jet, path, every_queue, streams)
    # Of one that cannot be looked at there is nothing else to tell; it must not take the others away.
    queues = [queue for queue in every_queue if not queue.error]
    # Each leader is a read of its own.
    elections = [one.name for one in streams if one.kind == "election"]
    leaders = [(await election_summaries(jet, name.removeprefix("KV_")))[0] for name in elections[:limit]]
    counts = {
        "stream": len(streams),
        "consumer": len(consumers),
        "queue": len(await jet.queue_names()),
        "election": len(elections),
    }
    return [
        *_totals(streams, sum(one.consumers for one in streams)),
        *_each(_stream, streams, limit),
        *_each(_consumer, consumers, limit),
        *_queues(queues, streams, jet.runtime.clock.now()),
        *[
            sample
            for queue in queues
            for sample in _workers(queue.name, health.workers.get(queue.name, ()), health.now)
        ],
        *[sample for one in queues for sample in await _parts(jet, one, limit)],
        *_each(_election, leaders, limit),
        *(_store(path, jet.runtime.clock.boottime(), jet.runtime.clock.now()) if path else ()),
        *await _troubles(jet),
        *(sample for one in health.standbys for sample in _standby(one)),
        *_alarms(health),
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
    for state in ("pending", "scheduled", "waiting", "stuck", "held", "running", "retrying"):
        yield Sample("pelton_queue_jobs", (name, state), getattr(queue, state))
    for state in ("completed", "failed", "cancelled", "expired"):
        yield Sample("pelton_queue_history_jobs", (name, state), getattr(queue, state))
    yield Sample("pelton_queue_dead_letters", (name,), queue.dead_letters)
    yield Sample("pelton_queue_paused", (name,), queue.paused)
    age = max(now - parse_rfc3339(queue.oldest_at), 0) / SECOND if queue.oldest_at else 0
    yield Sample("pelton_queue_oldest_job_age_seconds", (name,), age)
    if queue.last_ended_at:
        ended = parse_rfc3339(queue.last_ended_at) / SECOND
        yield Sample("pelton_queue_last_ended_timestamp_seconds", (name,), ended)
        for metric, spread in (("wait", queue.wait), ("run", queue.run)):
            for quantile, value in (("0.5", spread.median), ("0.95", spread.p95), ("1", spread.longest)):
                yield Sample(f"pelton_queue_job_{metric}_seconds", (name, quantile), value)


def _workers(queue: str, workers: Sequence[WorkerInfo], now: int) -> list[Sample]:
    ages = [one.oldest_running + max(now - one.seen_at, 0) / SECOND for one in workers if one.running]
    return [
        Sample("pelton_queue_workers", (queue,), len(workers)),
        Sample("pelton_queue_longest_running_seconds", (queue,), max(ages, default=0.0)),
        Sample("pelton_queue_worker_memory_bytes", (queue,), max((one.memory for one in workers), default=0)),
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


def _alarms(health: HealthFacts) -> list[Sample]:
    found = Counter(alarm.kind for alarm in alarms_of(health))
    return [Sample("pelton_alarm", (kind,), found[kind]) for kind in KINDS]


async def _troubles(jet: Jet) -> list[Sample]:
    try:
        store = jet.backend.to_embedded("metrics")
    except ConfigError:
        return []
    found = await store.troubles()
    return [
        Sample("pelton_store_quarantined_messages", (), found.quarantined),
        Sample("pelton_store_slow_syncs", (), found.slow_syncs),
        Sample("pelton_store_writer_waits", (), found.writer_waits),
        Sample("pelton_store_checkpoints_blocked", (), found.blocked_checkpoints),
    ]


def _store(path: str, now: float, wall_ns: int) -> Iterator[Sample]:
    # Who writes just now, and had written when it was last asked for, is well.
    if (hold := writer_hold(path, now)) is not None and hold.seconds:
        yield Sample("pelton_store_writer_held_seconds", (str(hold.pid),), hold.seconds)
    for name, file in (("file", path), ("log", f"{path}-wal")):
        yield Sample(f"pelton_store_{name}_bytes", (), os.path.getsize(file) if os.path.exists(file) else 0)
    for hub in leafs_noted(path):
        is_connected = hub.connected_ns and not hub_silence(hub, wall_ns)
        yield Sample("pelton_leaf_connected", (hub.url,), int(bool(is_connected)))
        yield Sample("pelton_leaf_rtt_seconds", (hub.url,), hub.rtt)
        for name in ("in_msgs", "out_msgs", "in_bytes", "out_bytes"):
            yield Sample(f"pelton_leaf_{name}", (hub.url,), getattr(hub, name))
    for target, time in backups_noted(path).items():
        yield Sample("pelton_backup_age_seconds", (target,), (wall_ns - time) / SECOND)
    disk = os.statvfs(os.path.dirname(os.path.abspath(path)))
    yield Sample("pelton_store_disk_free_bytes", (), disk.f_bavail * disk.f_frsize)


def _standby(lag: StandbyLag) -> Iterator[Sample]:
    labels = (lag.source, lag.standby)
    yield Sample("pelton_standby_lag_seconds", labels, lag.seconds)
    if lag.messages is not None:
        yield Sample("pelton_standby_lag_messages", labels, lag.messages)


class Metric(NamedTuple):
    """One metric; a counter's name is without the ``_total`` that Prometheus gives it."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    text: str


_STREAM: Final = ("stream_name",)
_STANDBY: Final = ("source", "standby")
_CONSUMER: Final = ("stream_name", "consumer_name")
_QUEUE: Final = ("queue",)
_LIMIT: Final = ("queue", "limit")

CATALOGUE: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric("jetstream_server_total_streams", "gauge", (), "Streams"),
        Metric("jetstream_server_total_consumers", "gauge", (), "Consumers"),
        Metric("jetstream_server_total_messages", "gauge", (), "Messages in all streams"),
        Metric("jetstream_server_total_message_bytes", "gauge", (), "Bytes of the messages in all streams"),
        Metric("jetstream_stream_total_messages", "gauge", _STREAM, "Messages in a stream"),
        Metric("jetstream_stream_total_bytes", "gauge", _STREAM, "Bytes of a stream's messages"),
        Metric("jetstream_stream_first_seq", "gauge", _STREAM, "First sequence of a stream"),
        Metric(
            "jetstream_stream_last_seq", "gauge", _STREAM, "Last sequence of a stream: its rate is what is published"
        ),
        Metric("jetstream_stream_subject_count", "gauge", _STREAM, "Subjects that have messages in a stream"),
        Metric("jetstream_stream_consumer_count", "gauge", _STREAM, "Consumers of a stream"),
        Metric("jetstream_stream_limit_messages", "gauge", _STREAM, "Most messages a stream keeps, if it has a limit"),
        Metric("jetstream_stream_limit_bytes", "gauge", _STREAM, "Most bytes a stream keeps, if it has a limit"),
        Metric("jetstream_consumer_delivered_stream_seq", "gauge", _CONSUMER, "Last sequence delivered"),
        Metric("jetstream_consumer_delivered_consumer_seq", "gauge", _CONSUMER, "Deliveries so far"),
        Metric("jetstream_consumer_ack_floor_stream_seq", "gauge", _CONSUMER, "All up to this sequence is settled"),
        Metric("jetstream_consumer_ack_floor_consumer_seq", "gauge", _CONSUMER, "All up to this delivery is settled"),
        Metric("jetstream_consumer_num_pending", "gauge", _CONSUMER, "Matching messages that were never delivered"),
        Metric("jetstream_consumer_num_ack_pending", "gauge", _CONSUMER, "Messages delivered and not settled"),
        Metric("jetstream_consumer_num_redelivered", "gauge", _CONSUMER, "Unsettled messages delivered repeatedly"),
        Metric("jetstream_consumer_num_waiting", "gauge", _CONSUMER, "Pulls that wait"),
        Metric("pelton_consumer_lag", "gauge", _CONSUMER, "Sequences after the last below which all is settled"),
        Metric("pelton_consumer_paused", "gauge", _CONSUMER, "1 while a consumer is paused"),
        Metric("pelton_queue_jobs", "gauge", ("queue", "state"), "Jobs that have not ended, by state"),
        Metric("pelton_queue_history_jobs", "gauge", ("queue", "state"), "Ended jobs in the history, by state"),
        Metric("pelton_queue_jobs_ended", "counter", _QUEUE, "Jobs that have ended"),
        Metric("pelton_queue_jobs_dead", "counter", _QUEUE, "Jobs that have become dead letters"),
        Metric("pelton_queue_dead_letters", "gauge", _QUEUE, "Failed jobs that can be redriven"),
        Metric("pelton_queue_paused", "gauge", _QUEUE, "1 while the whole queue is paused"),
        Metric(
            "pelton_queue_oldest_job_age_seconds", "gauge", _QUEUE, "For how long the oldest job that is due has been"
        ),
        Metric("pelton_queue_last_ended_timestamp_seconds", "gauge", _QUEUE, "When a job ended last"),
        Metric("pelton_queue_job_wait_seconds", "gauge", ("queue", "quantile"), "Wait of the jobs that ended last"),
        Metric("pelton_queue_job_run_seconds", "gauge", ("queue", "quantile"), "Run time of the jobs that ended last"),
        Metric("pelton_queue_workers", "gauge", _QUEUE, "Workers, each as it told in the last 30 s"),
        Metric("pelton_queue_longest_running_seconds", "gauge", _QUEUE, "How long the oldest running attempt has run"),
        Metric("pelton_queue_worker_memory_bytes", "gauge", _QUEUE, "Memory of the worker's process that has most"),
        Metric("pelton_queue_recent_flows", "gauge", ("queue", "state"), "Of the 100 flows that began last, by state"),
        Metric("pelton_queue_schedules", "gauge", ("queue", "state"), "Schedules, active and paused"),
        Metric("pelton_limit_concurrency", "gauge", _LIMIT, "Most jobs that may run at a time, if it says so"),
        Metric("pelton_limit_running", "gauge", _LIMIT, "Jobs that hold slots of a limit"),
        Metric("pelton_limit_fullest", "gauge", _LIMIT, "Jobs that hold slots of a limit, at the key that has most"),
        Metric("pelton_limit_held", "gauge", _LIMIT, "Jobs that wait for a limit"),
        Metric("pelton_limit_next_start_seconds", "gauge", _LIMIT, "In how long the rate of a limit lets a job start"),
        Metric("pelton_election_has_leader", "gauge", ("election",), "1 while somebody leads"),
        Metric("pelton_election_token", "gauge", ("election",), "Fencing token of the leader"),
        Metric("pelton_leaf_connected", "gauge", ("hub",), "1 while the store is connected to a hub as its leaf node"),
        Metric("pelton_leaf_rtt_seconds", "gauge", ("hub",), "How long an answer of a hub took last"),
        Metric("pelton_leaf_in_msgs", "gauge", ("hub",), "Messages that have come from a hub by this connection"),
        Metric("pelton_leaf_out_msgs", "gauge", ("hub",), "Messages sent to a hub by this connection"),
        Metric("pelton_leaf_in_bytes", "gauge", ("hub",), "Bytes that have come from a hub by this connection"),
        Metric("pelton_leaf_out_bytes", "gauge", ("hub",), "Bytes sent to a hub by this connection"),
        Metric("pelton_store_file_bytes", "gauge", (), "Size of the store file"),
        Metric("pelton_store_log_bytes", "gauge", (), "Size of the store's write-ahead log"),
        Metric("pelton_store_quarantined_messages", "gauge", (), "Damaged messages, which are never delivered"),
        Metric("pelton_store_slow_syncs", "counter", (), "Syncs to disk of a second or more, by this process"),
        Metric("pelton_store_writer_waits", "counter", (), "Waits of a second or more to write, by this process"),
        Metric("pelton_store_checkpoints_blocked", "counter", (), "Times this process could not shorten the log"),
        Metric("pelton_store_disk_free_bytes", "gauge", (), "Free space on the disk of the store"),
        Metric(
            "pelton_store_writer_held_seconds",
            "gauge",
            ("pid",),
            "How long a process was seen to write, and wrote nothing",
        ),
        Metric("pelton_backup_age_seconds", "gauge", ("target",), "Age of the last point of a backup that continues"),
        Metric("pelton_standby_lag_seconds", "gauge", _STANDBY, "Since when a standby lacks what its store has"),
        Metric("pelton_standby_lag_messages", "gauge", _STANDBY, "Messages that a store has and its standby lacks"),
        Metric("pelton_alarm", "gauge", ("kind",), "Alarms of a kind, as the first page of the dashboard shows them"),
        Metric("pelton_omitted", "gauge", ("kind",), "Streams, consumers, queues or elections beyond the limit"),
    )
}
