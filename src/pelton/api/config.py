"""Stream and consumer configurations: NATS 2.15's own field names, values and units.

Durations are given as seconds or `timedelta` and held as `Duration`, times are RFC 3339 strings, as on the wire;
`build.py` turns friendlier Python values into these structs. Limits use -1 for "none". A value of 0 in
``duplicate_window``,
``ack_wait``, ``max_ack_pending``, ``max_waiting`` and ``inactive_threshold`` means "left to the server",
whose choice depends on the other fields (`defaults.py` makes it): a NATS server would refuse a default of ours,
for instance ``max_waiting`` on a push consumer.

Fields declared `shown` are always in the JSON, the others only if set, as the reference server does and
its schemas require.
"""

from typing import Final, Literal

import msgspec

from pelton.api.durations import NO_DURATIONS, ZERO, Duration, Durations, HasDurations
from pelton.api.fields import shown

Retention = Literal["limits", "interest", "workqueue"]
Discard = Literal["old", "new"]
Storage = Literal["file", "memory"]
Compression = Literal["none", "s2"]
PersistMode = Literal["", "default", "async"]
AckPolicy = Literal["explicit", "all", "none", "flow_control"]
DeliverPolicy = Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
ReplayPolicy = Literal["instant", "original"]
PriorityPolicy = Literal["", "none", "overflow", "pinned_client", "prioritized"]

EXTENSION_FIELDS: Final = frozenset({"max_ack_pending_per_subject", "max_ack_pending_subject_end"})
"""Fields of `ConsumerConfig` that are Pelton's own: a NATS server refuses them."""


class Placement(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Where a cluster should keep the replicas; ignored in an embedded store."""

    cluster: str = ""
    tags: tuple[str, ...] = ()
    preferred: str = ""


class External(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The API and delivery prefixes of a stream in another account or domain."""

    api: str
    deliver: str = ""


class SubjectTransform(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Messages that match `src` are stored under `dest` (ADR-30); in a source, an empty `dest` keeps their subjects."""

    src: str
    dest: str = shown("")


class SourceConsumer(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """An existing consumer from which a NATS server takes a source's messages (ADR-60)."""

    name: str = ""
    deliver_subject: str = ""


class StreamSource(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A stream to mirror or to take messages from (ADR-59)."""

    name: str
    opt_start_seq: int = 0
    opt_start_time: str = ""
    filter_subject: str = ""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    external: External | None = None
    consumer: SourceConsumer | None = None


class Republish(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Stored messages are republished under `dest` (ADR-28)."""

    src: str
    dest: str
    headers_only: bool = False


class ConsumerLimits(HasDurations, msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Upper bounds, and defaults, for the consumers of a stream."""

    inactive_threshold: Duration = ZERO
    max_ack_pending: int = 0


class StreamConfig(HasDurations, msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How a stream keeps messages (ADR-1 and the ADRs named per field group)."""

    name: str = ""
    description: str = ""
    subjects: tuple[str, ...] = ()
    retention: Retention = shown("limits")
    max_consumers: int = shown(-1)
    max_msgs: int = shown(-1)
    max_bytes: int = shown(-1)
    max_age: Duration = shown(ZERO)
    max_msgs_per_subject: int = shown(-1)
    max_msg_size: int = shown(-1)
    discard: Discard = shown("old")
    discard_new_per_subject: bool = False
    storage: Storage = shown("file")
    num_replicas: int = shown(1)
    no_ack: bool = False
    template_owner: str = ""
    duplicate_window: Duration = ZERO
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: tuple[StreamSource, ...] = ()
    compression: Compression = shown("none")
    first_seq: int = 0
    subject_transform: SubjectTransform | None = None
    republish: Republish | None = None
    allow_direct: bool = shown(False)
    mirror_direct: bool = shown(False)
    sealed: bool = shown(False)
    deny_delete: bool = shown(False)
    deny_purge: bool = shown(False)
    allow_rollup_hdrs: bool = shown(False)
    consumer_limits: ConsumerLimits = shown(ConsumerLimits())
    # ADR-43 and 48: time to live; ADR-49: counters; ADR-50: batches; ADR-51: schedules.
    allow_msg_ttl: bool = shown(False)
    subject_delete_marker_ttl: Duration = ZERO
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_batched: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = ""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class ConsumerConfig(HasDurations, msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How a consumer delivers the messages of a stream, and what it expects of its clients."""

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = shown("all")
    opt_start_seq: int = 0
    opt_start_time: str = ""
    ack_policy: AckPolicy = shown("explicit")
    ack_wait: Duration = ZERO
    max_deliver: int = shown(-1)
    backoff: Durations = NO_DURATIONS
    filter_subject: str = ""
    filter_subjects: tuple[str, ...] = ()
    replay_policy: ReplayPolicy = shown("instant")
    rate_limit_bps: int = 0
    sample_freq: str = ""
    max_waiting: int = 0
    max_ack_pending: int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: int = 0
    max_expires: Duration = ZERO
    max_bytes: int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: Duration = ZERO
    inactive_threshold: Duration = ZERO
    num_replicas: int = shown(0)
    mem_storage: bool = False
    direct: bool = False
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    pause_until: str = ""
    # ADR-42: priority groups.
    priority_groups: tuple[str, ...] = ()
    priority_policy: PriorityPolicy = ""
    priority_timeout: Duration = ZERO
    # Pelton's own: at most this many messages of one subject await an ack; 0 for no limit.
    max_ack_pending_per_subject: int = 0
    # Pelton's own: subjects count as the same up to the first token of this text; empty for whole subjects.
    max_ack_pending_subject_end: str = ""
