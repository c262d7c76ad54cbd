"""What operators see. Times are RFC 3339 text, empty if unknown; durations are seconds; sizes are bytes."""

from __future__ import annotations

from typing import Literal

import msgspec

from pelton.queue import AttemptError, JobInfo

StreamKind = Literal["stream", "bucket", "objects", "queue", "locks", "election"]


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A stream, and what it is used for. ``max_messages`` and ``max_bytes`` are its limits, -1 for none."""

    name: str
    kind: StreamKind
    subjects: tuple[str, ...]
    retention: str
    storage: str
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    last_at: str
    num_subjects: int
    consumers: int
    replicas: int
    max_messages: int
    max_bytes: int


class ConsumerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer. ``pending``: matching messages that were never delivered; ``ack_pending``: delivered and not settled.

    ``lag``: how many sequences of the stream follow the last one below which everything is settled.
    ``deliveries`` counts all there were, ``ack_floor_delivery`` those below which everything is settled.
    """

    stream: str
    name: str
    durable: bool
    filters: tuple[str, ...]
    pending: int
    ack_pending: int
    redelivered: int
    waiting_pulls: int
    delivered_seq: int
    deliveries: int
    ack_floor: int
    ack_floor_delivery: int
    lag: int
    last_delivered_at: str
    last_ack_at: str
    paused: bool


class BucketSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A key-value bucket; ``values`` counts revisions and markers of deleted keys."""

    name: str
    values: int
    keys: int
    bytes: int
    history: int
    ttl: float
    storage: str
    replicas: int
    last_at: str


class ObjectsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An object store; ``bytes`` is what it takes."""

    name: str
    bytes: int
    ttl: float
    storage: str
    replicas: int
    last_at: str


class LockSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A lock, or a slot of a semaphore, that is held. ``slot`` is 0 for a lock; ``waiting`` callers want any slot."""

    kind: Literal["lock", "semaphore"]
    name: str
    slot: int
    holder: str
    token: int
    since: str
    renewed_at: str
    ttl: float
    waiting: int


class ElectionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An election; ``leader`` is empty if nobody leads, ``token`` 0 for leaders of other clients than Pelton."""

    bucket: str
    election: str
    leader: str
    token: int
    since: str
    renewed_at: str
    ttl: float


class TimeSpread(msgspec.Struct, frozen=True, kw_only=True):
    """How some durations, in seconds, are spread."""

    median: float = 0.0
    p95: float = 0.0
    longest: float = 0.0


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A queue. The counts of ended jobs are those in its history.

    ``per_minute``, ``wait`` (from enqueue to the start of the last attempt) and ``run`` come from the jobs that ended
    last; ``oldest_at`` is when the oldest job that has not ended was enqueued. ``paused``: no job starts;
    ``paused_keys`` and ``paused_jobs``: none of these keys, or of these names.
    """

    name: str
    exclusive: bool
    lease: float
    pending: int
    running: int
    retrying: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    scheduled: int
    dead_letters: int
    oldest_at: str
    last_ended_at: str
    per_minute: float
    wait: TimeSpread
    run: TimeSpread
    paused: bool = False
    paused_keys: tuple[str, ...] = ()
    paused_jobs: tuple[str, ...] = ()


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has done among the jobs that ended last, and what it does.

    What it does is what it told at ``seen_at``, which it does about every 10 s; that is empty for one that is gone.
    ``running`` jobs run, the oldest for ``oldest_running`` seconds.
    """

    queue: str
    worker: str
    ended: int
    failed: int
    last_job: str
    last_ended_at: str
    host: str = ""
    pid: int = 0
    seen_at: str = ""
    running: int = 0
    oldest_running: float = 0.0
    stopping: bool = False


class LimitSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a queue, for jobs named ``job`` or, if that is empty, for all; ``per_key``: for each key by itself.

    At most ``concurrency`` run at a time, ``starts`` start in ``per`` seconds; None for any number. ``running`` jobs
    hold slots of it, at ``keys`` keys if it is for each, and ``fullest`` of them at one key. The next start that its
    rate allows is in ``next_start`` seconds, of keys in as many at most.
    """

    queue: str
    job: str
    per_key: bool
    concurrency: int | None
    starts: int | None
    per: float
    burst: int
    running: int
    keys: int
    fullest: int
    next_start: float


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its ``arguments`` as JSON, and the errors of all its attempts, oldest first.

    Of a job that has ended, only a dead letter (``is_dead``) has its arguments still; None for the others.
    """

    job: JobInfo
    arguments: bytes | None
    errors: tuple[AttemptError, ...]
    is_dead: bool


class JobSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that a search has found, among ``looked_at`` messages of a queue's streams.

    ``next_begin`` is 0 if all were looked at, or else where to go on: the search took too long, or found enough.
    """

    queue: str
    jobs: tuple[JobInfo, ...]
    looked_at: int
    next_begin: int


class KeyCount(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and how many of its jobs have not ended: those that wait, run or will be tried again."""

    key: str
    jobs: int


class KeyCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a queue with most jobs that have not ended.

    ``sampled`` is 0 if all jobs were counted, or else how many: the oldest.
    """

    queue: str
    keys: tuple[KeyCount, ...]
    sampled: int


class JobsOfKey(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of a key that have not ended, scheduled ones among them. ``total`` counts all there are, -1 if unknown.

    ``next_begin`` is 0 if there are no more, or else where to go on.
    """

    queue: str
    key: str
    total: int
    jobs: tuple[JobInfo, ...]
    next_begin: int


class StoreSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A store or cluster as a whole; ``file_bytes`` and ``log_bytes`` are 0 for a cluster."""

    streams: int
    consumers: int
    messages: int
    bytes: int
    queues: int
    buckets: int
    object_stores: int
    file_bytes: int
    log_bytes: int
