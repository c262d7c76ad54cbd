"""Stream and consumer configurations: NATS 2.15's own field names, values and units.

Durations are given as seconds or `timedelta` and held as `Duration`, times are RFC 3339 strings, as on the wire;
`build.py` turns friendlier Python values into these structs. Limits use -1 for "none". A value of 0 in
``duplicate_window``, ``ack_wait``, ``max_ack_pending``, ``max_waiting`` and ``inactive_threshold`` means "left to the
server", whose choice depends on the other fields (`resolved_stream` and `resolved_consumer` make it): a NATS server
would refuse a default of ours, for instance ``max_waiting`` on a push consumer.

Fields declared `always` are always in the JSON, the others only if set, as the reference server does and
its schemas require.

**The server's defaults, for fields that a configuration leaves to the server.** The values, and when each applies, were
read from the replies of nats-server 2.15. A created stream or consumer is kept and reported in its resolved form: the
rest of the code never sees a "left to the server" 0.
"""

from typing import Final, Literal

import msgspec

from pelton.api.times import NO_DURATIONS, ZERO, Duration, Durations, HasDurations, always

Retention = Literal["limits", "interest", "workqueue"]
Discard = Literal["old", "new"]
Storage = Literal["file", "memory"]
Compression = Literal["none", "s2"]
PersistMode = Literal["", "default", "async"]
AckPolicy = Literal["explicit", "all", "none", "flow_control"]
DeliverPolicy = Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
ReplayPolicy = Literal["instant", "original"]
PriorityPolicy = Literal["", "none", "overflow", "pinned_client", "prioritized"]


class Placement(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Where a cluster should keep the replicas; ignored in an embedded store."""

    cluster: str = ""
    """The name of the cluster of servers."""
    tags: tuple[str, ...] = ()
    """Only servers that have all of these tags."""
    preferred: str = ""
    """The server that should lead, if it can."""


class External(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The API and delivery prefixes of a stream in another account or domain."""

    api: str
    """The prefix of the other API, such as `$JS.hub.API`."""
    deliver: str = ""
    """The prefix of the subjects that messages are delivered to; empty: as usual."""


class SubjectTransform(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Messages that match `src` are stored under `dest` (ADR-30); in a source, an empty `dest` keeps their subjects."""

    src: str
    """The subjects that are changed, a filter."""
    dest: str = always("")
    """The new subject; `{{wildcard(1)}}` stands for the first token that a wildcard has matched."""


class SourceConsumer(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """An existing durable push consumer, with `ack_policy` `flow_control`, that a source takes from (ADR-60)."""

    name: str = ""
    """The name of the consumer."""
    deliver_subject: str = ""
    """The subject that it delivers to."""


class StreamSource(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A stream to mirror or to take messages from (ADR-59)."""

    name: str
    """The name of the stream that messages come from."""
    opt_start_seq: int = 0
    """The sequence to start with; 0: with the first message."""
    opt_start_time: str = ""
    """The time to start at, RFC 3339; not together with `opt_start_seq`."""
    filter_subject: str = ""
    """Take only messages of this filter; empty: all. Not together with `subject_transforms`."""
    subject_transforms: tuple[SubjectTransform, ...] = ()
    """Filters, each with the subject under which its messages are stored."""
    external: External | None = None
    """Where the stream is, if in another account or domain (clusters)."""
    consumer: SourceConsumer | None = None
    """Take what this consumer delivers; it decides on filters and the start."""


class Republish(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Stored messages are republished under `dest` (ADR-28)."""

    src: str
    """The subjects that are republished, a filter; empty: all."""
    dest: str
    """The subject to republish under, as in a `SubjectTransform`."""
    headers_only: bool = False
    """Leave out the payload, and tell its size in `Nats-Msg-Size`."""


class ConsumerLimits(HasDurations, msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Upper bounds, and defaults, for the consumers of a stream."""

    inactive_threshold: Duration = ZERO
    """The longest `inactive_threshold`, in seconds, also the default; 0: no limit."""
    max_ack_pending: int = 0
    """The largest `max_ack_pending`, also the default; 0: no limit."""


class StreamConfig(HasDurations, msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How a stream keeps messages (ADR-1 and the ADRs named per field group)."""

    name: str = ""
    """The name, one token without `.`, `*`, `>`, spaces and slashes."""
    description: str = ""
    """A text for people, up to 4 KB."""
    subjects: tuple[str, ...] = ()
    """What the stream takes: subjects, or filters with `*` and `>`. Empty: the name. No two streams take the same
    subject."""
    retention: Retention = always("limits")
    """What removes messages, besides limits: nothing (`limits`), the acks of all consumers that match (`interest`), or
    of one (`workqueue`)."""
    max_consumers: int = always(-1)
    """How many consumers there may be; -1: no limit."""
    max_msgs: int = always(-1)
    """How many messages are kept; -1: no limit. `discard` tells what happens to more."""
    max_bytes: int = always(-1)
    """How many bytes are kept, with headers and subjects; -1: no limit."""
    max_age: Duration = always(ZERO)
    """How long a message is kept, in seconds; 0: for ever."""
    max_msgs_per_subject: int = always(-1)
    """How many messages of each subject are kept, the newest; -1: no limit."""
    max_msg_size: int = always(-1)
    """The largest message, in bytes with its headers; -1: no limit."""
    discard: Discard = always("old")
    """At a limit, remove the oldest message (`old`), or refuse the new one (`new`)."""
    discard_new_per_subject: bool = False
    """With `discard="new"`, refuse a message of a subject that is at `max_msgs_per_subject`."""
    storage: Storage = always("file")
    """In a file or in memory, on servers. A store file keeps both in the file."""
    num_replicas: int = always(1)
    """On how many servers of a cluster the stream is kept, 1 to 5; 1 in a file."""
    no_ack: bool = False
    """Publishes are not acknowledged."""
    duplicate_window: Duration = ZERO
    """How long message ids are remembered, in seconds; 0: two minutes, or `max_age` if that is less."""
    placement: Placement | None = None
    """Where a cluster should keep the stream."""
    mirror: StreamSource | None = None
    """The stream that this one is a copy of; it then takes no publishes."""
    sources: tuple[StreamSource, ...] = ()
    """The streams whose messages this one takes, beside its own."""
    compression: Compression = always("none")
    """Compress stored payloads (`s2`)."""
    first_seq: int = 0
    """The sequence of the first message; 0: 1."""
    subject_transform: SubjectTransform | None = None
    """Change the subjects of messages before they are stored."""
    republish: Republish | None = None
    """Publish what was stored once more, under another subject."""
    allow_direct: bool = always(False)
    """Answer direct gets (ADR-31), which are faster."""
    mirror_direct: bool = always(False)
    """Answer direct gets for the stream that this one mirrors."""
    sealed: bool = always(False)
    """Nothing can be changed or removed any more; only an update can set it."""
    deny_delete: bool = always(False)
    """Refuse to delete single messages. It can't be taken back."""
    deny_purge: bool = always(False)
    """Refuse purges. It can't be taken back."""
    allow_rollup_hdrs: bool = always(False)
    """Allow messages that replace all earlier ones of their subject, or of the stream (`Nats-Rollup`)."""
    consumer_limits: ConsumerLimits = always(ConsumerLimits())
    """Bounds and defaults for the consumers of this stream."""
    # ADR-43 and 48: time to live; ADR-49: counters; ADR-50: batches; ADR-51: schedules.
    allow_msg_ttl: bool = always(False)
    """Allow messages with a time to live (ADR-43)."""
    subject_delete_marker_ttl: Duration = ZERO
    """How long the marker is kept, in seconds, that replaces the last message of a subject when it expires (ADR-48);
    0: no markers."""
    allow_msg_counter: bool = False
    """The subjects are counters (ADR-49)."""
    allow_atomic: bool = False
    """Allow `publish_atomic` (ADR-50)."""
    allow_batched: bool = False
    """Allow fast ingest (ADR-50, NATS servers)."""
    allow_msg_schedules: bool = False
    """Allow scheduled messages (ADR-51)."""
    persist_mode: PersistMode = ""
    """When a server writes to disk: `async` acknowledges before. A store file goes by `sync` of `pelton.open`."""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    """Texts for programs. Names that begin with `_nats` belong to the server."""


class ConsumerConfig(HasDurations, msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How a consumer delivers the messages of a stream, and what it expects of its clients."""

    durable_name: str = ""
    """The name of a consumer that stays until it is deleted; empty: an ephemeral one."""
    name: str = ""
    """The name; empty: `durable_name`, or one that is made up."""
    description: str = ""
    """A text for people."""
    deliver_policy: DeliverPolicy = always("all")
    """Where to start: with all messages, the last one, the last one of each subject, new ones, or at `opt_start_seq`
    or `opt_start_time`."""
    opt_start_seq: int = 0
    """The sequence to start with, for `by_start_sequence`."""
    opt_start_time: str = ""
    """The time to start at, RFC 3339, for `by_start_time`."""
    ack_policy: AckPolicy = always("explicit")
    """Each message is acked (`explicit`), an ack counts for all before it (`all`), or there are no acks (`none`)."""
    ack_wait: Duration = ZERO
    """How long a message may stay unacked, in seconds, until it is redelivered; 0: 30 s."""
    max_deliver: int = always(-1)
    """How often a message is delivered at most; -1: no limit."""
    backoff: Durations = NO_DURATIONS
    """The waits before each redelivery of a message that was not answered, in seconds, instead of `ack_wait`; the last
    repeats."""
    filter_subject: str = ""
    """Deliver only messages of this filter; empty: all."""
    filter_subjects: tuple[str, ...] = ()
    """Several filters that do not overlap, instead of `filter_subject`."""
    replay_policy: ReplayPolicy = always("instant")
    """Deliver as fast as possible (`instant`), or in the pace of the publishes (`original`)."""
    rate_limit_bps: int = 0
    """How many bits a second a push consumer sends; 0: no limit."""
    sample_freq: str = ""
    """The share of acks for which a metric is published, such as `30%`."""
    max_waiting: int = 0
    """How many pulls may wait; 0: 512."""
    max_ack_pending: int = 0
    """How many messages may be unacked at a time; 0: 1,000. -1: no limit."""
    flow_control: bool = False
    """A push consumer waits for its client (needs `idle_heartbeat`)."""
    headers_only: bool = False
    """Leave out payloads, and tell their size in `Nats-Msg-Size`."""
    max_batch: int = 0
    """The largest `batch` of a pull; 0: no limit."""
    max_expires: Duration = ZERO
    """The longest `timeout` of a pull, in seconds; 0: no limit."""
    max_bytes: int = 0
    """The largest `max_bytes` of a pull; 0: no limit."""
    deliver_subject: str = ""
    """Where a push consumer sends its messages; empty: a pull consumer."""
    deliver_group: str = ""
    """Of a push consumer: the queue group of which one client gets each message."""
    idle_heartbeat: Duration = ZERO
    """How often a push consumer tells that it is alive if there is nothing to send, in seconds; 0: never."""
    inactive_threshold: Duration = ZERO
    """After how long without use it is deleted, in seconds; 0: never if durable, else 5 s."""
    num_replicas: int = always(0)
    """On how many servers of a cluster it is kept; 0: as the stream."""
    mem_storage: bool = False
    """Keep its state in memory (clusters)."""
    direct: bool = False
    """A consumer of a mirror or source; servers set it."""
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    """Texts for programs. Names that begin with `_nats` belong to the server."""
    pause_until: str = ""
    """Deliver nothing until this time, RFC 3339."""
    # ADR-42: priority groups.
    priority_groups: tuple[str, ...] = ()
    """The name of the group of clients that share it by a policy (ADR-42); one name."""
    priority_policy: PriorityPolicy = ""
    """How they share: `overflow`, `pinned_client` or `prioritized`."""
    priority_timeout: Duration = ZERO
    """After how long a pinned client that does not pull is replaced, in seconds; 0: two minutes."""
    max_ack_pending_per_subject: int = 0
    """Pelton's own, for files: how many messages of one subject may be unacked at a time; 0: no limit."""
    max_ack_pending_subject_end: str = ""
    """Pelton's own: subjects count as the same up to the first token of this text; empty: whole subjects."""
    max_ack_pending_subject_ranks: tuple[str, ...] = ()
    """Pelton's own: how the subjects of each rank begin, the lowest first. Subjects that differ only there count as the
    same, and a subject whose next message has a higher rank comes first."""


DUPLICATE_WINDOW: Final = Duration(120)
ACK_WAIT: Final = Duration(30)
INACTIVE_THRESHOLD: Final = Duration(5)
MAX_ACK_PENDING: Final = 1000
MAX_WAITING: Final = 512
PINNED_TIMEOUT: Final = Duration(120)
FLOW_CONTROL_HEARTBEAT: Final = Duration(1)
NO_LIMITS: Final = ConsumerLimits()
SERVER_METADATA: Final = frozenset({"_nats.level", "_nats.req.level", "_nats.ver"})
"""Keys in which a server describes itself; they are no part of a user's configuration."""
_ANYWHERE: Final = Placement()
_ALL: Final = ">"


def resolved_stream(config: StreamConfig) -> StreamConfig:
    """Return the configuration as a server reports it, with all defaults. Nothing is checked here."""
    window = config.duplicate_window
    # A stream that copies others keeps no message ids, also if it has subjects of its own.
    if not window and not (config.mirror or config.sources):
        window = min(DUPLICATE_WINDOW, config.max_age) if config.max_age > ZERO else DUPLICATE_WINDOW
    # Markers and schedules replace the messages under their subjects.
    replaces = config.allow_msg_schedules or config.subject_delete_marker_ttl > ZERO
    return msgspec.structs.replace(
        config,
        subjects=config.subjects or _implied_subjects(config),
        max_msgs=_limit(config.max_msgs),
        max_bytes=_limit(config.max_bytes),
        max_consumers=_limit(config.max_consumers),
        max_msg_size=_limit(config.max_msg_size),
        max_msgs_per_subject=_limit(config.max_msgs_per_subject),
        num_replicas=config.num_replicas or 1,
        duplicate_window=window,
        republish=_resolved_republish(config),
        deny_purge=config.deny_purge and (config.allow_rollup_hdrs or not replaces),
        allow_rollup_hdrs=config.allow_rollup_hdrs or replaces,
        allow_msg_ttl=config.allow_msg_ttl or config.subject_delete_marker_ttl > ZERO,
        persist_mode="" if config.persist_mode == "default" else config.persist_mode,
        placement=None if config.placement == _ANYWHERE else config.placement,
        metadata=_own_metadata(config),
    )


def sealed_stream(config: StreamConfig) -> StreamConfig:
    """Return a resolved configuration sealed: no message is added or removed, nor expires."""
    return msgspec.structs.replace(
        config, max_age=ZERO, discard="new", deny_delete=True, deny_purge=True, allow_rollup_hdrs=False
    )


def resolved_consumer(config: ConsumerConfig, limits: ConsumerLimits = NO_LIMITS) -> ConsumerConfig:
    """Return the configuration as a server reports it; `limits` are those of the stream. Nothing is checked here."""
    timed = config.ack_policy in ("explicit", "all")
    pinned = config.priority_policy == "pinned_client"
    threshold = max(config.inactive_threshold, ZERO) or limits.inactive_threshold
    by_flow = config.ack_policy == "flow_control"
    waiting = max(config.max_waiting, 0)
    return msgspec.structs.replace(
        config,
        name=config.name or config.durable_name,
        ack_wait=config.backoff[0] if config.backoff else config.ack_wait or (ACK_WAIT if timed else ZERO),
        max_deliver=_limit(config.max_deliver),
        max_ack_pending=_ack_pending(config, limits),
        max_waiting=waiting if config.deliver_subject else waiting or MAX_WAITING,
        max_batch=max(config.max_batch, 0),
        max_expires=max(config.max_expires, ZERO),
        max_bytes=max(config.max_bytes, 0),
        flow_control=config.flow_control or by_flow,
        idle_heartbeat=FLOW_CONTROL_HEARTBEAT if by_flow else max(config.idle_heartbeat, ZERO),
        priority_policy="" if config.priority_policy == "none" else config.priority_policy,
        priority_timeout=max(config.priority_timeout, ZERO) or (PINNED_TIMEOUT if pinned else ZERO),
        inactive_threshold=threshold or (ZERO if config.durable_name else INACTIVE_THRESHOLD),
        metadata=_own_metadata(config),
    )


def _own_metadata(config: StreamConfig | ConsumerConfig) -> dict[str, str]:
    return {key: value for key, value in config.metadata.items() if key not in SERVER_METADATA}


def _ack_pending(config: ConsumerConfig, limits: ConsumerLimits) -> int:
    asked = max(config.max_ack_pending, -1) or limits.max_ack_pending
    return asked or (0 if config.ack_policy == "none" else MAX_ACK_PENDING)


def _limit(value: int) -> int:
    """Return a limit as it is reported: -1 for no limit."""
    return value if value > 0 else -1


def _resolved_republish(config: StreamConfig) -> Republish | None:
    """Return what is republished: an empty source is everything; ">" to ">" is what the transform makes."""
    republish, transform = config.republish, config.subject_transform
    if republish is None:
        return None
    src, dest = republish.src or _ALL, republish.dest
    if (src, dest) == (_ALL, _ALL) and transform is not None and config.subjects == (transform.src,):
        src = dest = transform.dest
    return msgspec.structs.replace(republish, src=src, dest=dest)


def _implied_subjects(config: StreamConfig) -> tuple[str, ...]:
    return () if config.mirror or config.sources else (config.name,)
