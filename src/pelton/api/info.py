"""Reports: the state of streams and consumers, stored messages, acknowledgements of publishes.

Field names and shapes are NATS's; times are RFC 3339 strings (see `times.py`), bytes travel as base64.
"""

import msgspec

from pelton.api.config import ConsumerConfig, External, StreamConfig, SubjectTransform
from pelton.api.times import ZERO, ZERO_TIME, Duration, HasDurations, always


class PubAck(msgspec.Struct, omit_defaults=True, gc=False):
    """Where a message is stored; `duplicate` if its message id was known, then `seq` is that of the original.

    `val` is the new total of a counter, in digits (ADR-49). For an atomic batch (ADR-50) `batch` is the
    id and `count` the number of messages, `seq` that of the last. A message of such a batch that is not committed
    yet is acknowledged without a stream and with `seq` 0.
    """

    stream: str
    seq: int
    duplicate: bool = False
    domain: str = ""
    """The JetStream domain of the server, if it has one."""
    val: str = ""
    batch: str = ""
    count: int = 0


class StreamState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The messages a stream holds; when emptied, ``first_seq == last_seq + 1``; when never used, both are 0."""

    messages: int = always(0)
    """How many messages there are."""
    bytes: int = always(0)
    """Their size in bytes, with headers and subjects."""
    first_seq: int = always(0)
    """The sequence of the first message."""
    first_ts: str = always(ZERO_TIME)
    """When the first message was stored, RFC 3339."""
    last_seq: int = always(0)
    """The sequence that was given last."""
    last_ts: str = always(ZERO_TIME)
    """When the last message was stored, RFC 3339."""
    num_subjects: int = 0
    """How many different subjects there are."""
    subjects: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of messages of each subject that was asked for."""
    num_deleted: int = 0
    """How many messages between the first and the last one are gone."""
    deleted: list[int] = msgspec.field(default_factory=list)
    """Their sequences, if asked for."""
    consumer_count: int = always(0)
    """How many consumers the stream has."""


class ErrorBody(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """An error inside a reply: HTTP-like `code`, NATS's own `err_code`, and its text."""

    code: int
    err_code: int = 0
    description: str = ""


class StreamSourceInfo(HasDurations, msgspec.Struct, kw_only=True, omit_defaults=True):
    """How far behind a mirror or source is; `active` is the time since its last contact, below 0 for never.

    `seq` is the origin's last message that was stored, 0 for none; `error` is why it cannot continue.
    """

    name: str
    external: External | None = None
    lag: int = always(0)
    seq: int = 0
    active: Duration = always(Duration.of_ns(-1))
    error: ErrorBody | None = None
    filter_subject: str = ""
    subject_transforms: tuple[SubjectTransform, ...] = ()


class PeerInfo(HasDurations, msgspec.Struct, kw_only=True, omit_defaults=True):
    """A replica that follows: `active` is the time since its last contact, `lag` the operations it is behind."""

    name: str
    """The server's name."""
    current: bool = always(False)
    """Whether it has all that the leader has."""
    observer: bool = False
    """Whether it never leads."""
    active: Duration = always(ZERO)
    offline: bool = False
    """Whether it cannot be reached."""
    lag: int = 0
    peer: str = ""
    """Its id in the group."""


class ClusterInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The replicas of a stream or consumer in a cluster: the leader, and its followers."""

    name: str = ""
    """The cluster's name."""
    raft_group: str = ""
    """The name of the group of servers."""
    leader: str = ""
    """The server that leads; empty while there is none."""
    leader_since: str = ""
    """Since when it leads, RFC 3339."""
    replicas: list[PeerInfo] = msgspec.field(default_factory=list)


class StreamInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A stream: its configuration and state. Paging fields count the entries of ``state.subjects``.

    `cluster` is reported only by servers of a cluster.
    """

    config: StreamConfig
    """Its configuration, with all defaults."""
    created: str
    """When it was created, RFC 3339."""
    state: StreamState
    """The messages that it holds."""
    domain: str = ""
    """The JetStream domain of the server, if it has one."""
    cluster: ClusterInfo | None = None
    mirror: StreamSourceInfo | None = None
    """How far behind it is, if it is a mirror."""
    sources: list[StreamSourceInfo] = msgspec.field(default_factory=list)
    """How far behind its sources it is."""
    ts: str = ""
    """When this was true, RFC 3339."""
    did_create: bool = False
    """Of a request to create it: whether it was new."""
    total: int = 0
    """How many subjects there are in all."""
    offset: int = 0
    """The first of those that are listed."""
    limit: int = 0
    """How many are listed at most."""


class SequenceInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A position, counted in deliveries (`consumer_seq`) and in the stream (`stream_seq`)."""

    consumer_seq: int = always(0)
    stream_seq: int = always(0)
    last_active: str = ""
    """When that was, RFC 3339; empty if never."""


class PriorityGroupState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which client a priority group is pinned to (ADR-42)."""

    group: str
    """The group's name."""
    pinned_client_id: str = ""
    """The id of its pin; empty if there is none."""
    pinned_ts: str = always(ZERO_TIME)
    """Since when, RFC 3339."""


class ConsumerInfo(HasDurations, msgspec.Struct, kw_only=True, omit_defaults=True):
    """A consumer: its configuration, how far it has delivered, and what is outstanding.

    `cluster` is reported only by servers of a cluster.
    """

    stream_name: str
    """The stream's name."""
    name: str
    """The consumer's name."""
    created: str
    """When it was created, RFC 3339."""
    config: ConsumerConfig
    """Its configuration, with all defaults."""
    delivered: SequenceInfo
    """The last delivery."""
    ack_floor: SequenceInfo
    """The position below which everything is settled."""
    num_ack_pending: int = always(0)
    """How many messages were delivered and are not settled."""
    num_redelivered: int = always(0)
    """How many of those were delivered more than once."""
    num_waiting: int = always(0)
    """How many pulls wait."""
    num_pending: int = always(0)
    """How many messages were not delivered yet."""
    ts: str = ""
    """When this was true, RFC 3339."""
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    """Whether somebody listens to its deliver subject."""
    paused: bool = False
    """Whether it is paused."""
    pause_remaining: Duration = ZERO
    """For how much longer, in seconds."""
    priority_groups: list[PriorityGroupState] = msgspec.field(default_factory=list)
    """To whom its groups are pinned."""


class WireMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A stored message as JSON carries it: `hdrs` is the encoded header block, empty for none."""

    subject: str
    """The subject."""
    seq: int
    """The sequence."""
    hdrs: bytes = b""
    data: bytes = b""
    """The payload."""
    time: str
    """When it was stored, RFC 3339."""


class AccountLimits(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an account may use; -1 for no limit."""

    max_memory: int = always(-1)
    """Bytes of streams in memory."""
    max_storage: int = always(-1)
    """Bytes of streams in files."""
    max_streams: int = always(-1)
    """How many streams."""
    max_consumers: int = always(-1)
    """How many consumers of each stream."""
    max_ack_pending: int = always(-1)
    """The largest `max_ack_pending` of a consumer."""
    memory_max_stream_bytes: int = always(-1)
    """The largest `max_bytes` of a stream in memory."""
    storage_max_stream_bytes: int = always(-1)
    """The largest `max_bytes` of a stream in files."""
    max_bytes_required: bool = always(False)
    """Whether each stream needs a `max_bytes`."""


class ApiStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many API requests were served, and how many of them ended in an error."""

    level: int = always(0)
    """The level of the API that the server speaks."""
    total: int = always(0)
    """How many requests were answered."""
    errors: int = always(0)
    """How many of them with an error."""


class AccountInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an account uses: bytes in memory and in files, streams and consumers."""

    memory: int = always(0)
    """Bytes of streams in memory."""
    storage: int = always(0)
    """Bytes of streams in files."""
    reserved_memory: int = always(0)
    """Bytes that the `max_bytes` of streams in memory reserve."""
    reserved_storage: int = always(0)
    """Bytes that the `max_bytes` of streams in files reserve."""
    streams: int = always(0)
    """How many streams there are."""
    consumers: int = always(0)
    """How many consumers there are."""
    domain: str = ""
    """The JetStream domain."""
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)
    """What the account may use."""
    api: ApiStats = msgspec.field(default_factory=ApiStats)
    """How many requests were answered."""
