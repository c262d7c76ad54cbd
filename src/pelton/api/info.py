"""Reports: the state of streams and consumers, stored messages, acknowledgements of publishes.

Field names and shapes are NATS's; times are RFC 3339 strings (see `times.py`), bytes travel as base64.
"""

import msgspec

from pelton.api.config import ConsumerConfig, External, StreamConfig, SubjectTransform
from pelton.api.durations import ZERO, Duration, HasDurations
from pelton.api.fields import shown
from pelton.api.times import ZERO_TIME


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
    val: str = ""
    batch: str = ""
    count: int = 0


class StreamState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The messages a stream holds; when emptied, ``first_seq == last_seq + 1``; when never used, both are 0."""

    messages: int = shown(0)
    bytes: int = shown(0)
    first_seq: int = shown(0)
    first_ts: str = shown(ZERO_TIME)
    last_seq: int = shown(0)
    last_ts: str = shown(ZERO_TIME)
    num_subjects: int = 0
    subjects: dict[str, int] = msgspec.field(default_factory=dict)
    num_deleted: int = 0
    deleted: list[int] = msgspec.field(default_factory=list)
    consumer_count: int = shown(0)


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
    lag: int = shown(0)
    seq: int = 0
    active: Duration = shown(Duration.of_ns(-1))
    error: ErrorBody | None = None
    filter_subject: str = ""
    subject_transforms: tuple[SubjectTransform, ...] = ()


class PeerInfo(HasDurations, msgspec.Struct, kw_only=True, omit_defaults=True):
    """A replica that follows: `active` is the time since its last contact, `lag` the operations it is behind."""

    name: str
    current: bool = shown(False)
    observer: bool = False
    active: Duration = shown(ZERO)
    offline: bool = False
    lag: int = 0
    peer: str = ""


class ClusterInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The replicas of a stream or consumer in a cluster: the leader, and its followers."""

    name: str = ""
    raft_group: str = ""
    leader: str = ""
    leader_since: str = ""
    replicas: list[PeerInfo] = msgspec.field(default_factory=list)


class StreamInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A stream: its configuration and state. Paging fields count the entries of ``state.subjects``.

    `cluster` is reported only by servers of a cluster.
    """

    config: StreamConfig
    created: str
    state: StreamState
    cluster: ClusterInfo | None = None
    mirror: StreamSourceInfo | None = None
    sources: list[StreamSourceInfo] = msgspec.field(default_factory=list)
    ts: str = ""
    did_create: bool = False
    total: int = 0
    offset: int = 0
    limit: int = 0


class SequenceInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A position, counted in deliveries (`consumer_seq`) and in the stream (`stream_seq`)."""

    consumer_seq: int = shown(0)
    stream_seq: int = shown(0)
    last_active: str = ""


class PriorityGroupState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which client a priority group is pinned to (ADR-42)."""

    group: str
    pinned_client_id: str = ""
    pinned_ts: str = shown(ZERO_TIME)


class ConsumerInfo(HasDurations, msgspec.Struct, kw_only=True, omit_defaults=True):
    """A consumer: its configuration, how far it has delivered, and what is outstanding.

    `cluster` is reported only by servers of a cluster.
    """

    stream_name: str
    name: str
    created: str
    config: ConsumerConfig
    delivered: SequenceInfo
    ack_floor: SequenceInfo
    num_ack_pending: int = shown(0)
    num_redelivered: int = shown(0)
    num_waiting: int = shown(0)
    num_pending: int = shown(0)
    ts: str = ""
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    paused: bool = False
    pause_remaining: Duration = ZERO
    priority_groups: list[PriorityGroupState] = msgspec.field(default_factory=list)


class WireMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A stored message as JSON carries it: `hdrs` is the encoded header block, empty for none."""

    subject: str
    seq: int
    hdrs: bytes = b""
    data: bytes = b""
    time: str


class AccountLimits(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an account may use; -1 for no limit."""

    max_memory: int = shown(-1)
    max_storage: int = shown(-1)
    max_streams: int = shown(-1)
    max_consumers: int = shown(-1)
    max_ack_pending: int = shown(-1)
    memory_max_stream_bytes: int = shown(-1)
    storage_max_stream_bytes: int = shown(-1)
    max_bytes_required: bool = shown(False)


class ApiStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How many API requests were served, and how many of them ended in an error."""

    level: int = shown(0)
    total: int = shown(0)
    errors: int = shown(0)


class AccountInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an account uses: bytes in memory and in files, streams and consumers."""

    memory: int = shown(0)
    storage: int = shown(0)
    reserved_memory: int = shown(0)
    reserved_storage: int = shown(0)
    streams: int = shown(0)
    consumers: int = shown(0)
    domain: str = ""
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)
    api: ApiStats = msgspec.field(default_factory=ApiStats)
