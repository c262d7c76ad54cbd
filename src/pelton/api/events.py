"""Advisories and metrics of a store, with NATS's subjects, types and fields.

They are published under ``$JS.EVENT.>`` to subscribers; a stream may capture them. Each is JSON
with its ``type`` first; `decode_event` turns it into a struct. `EVENTS` lists them all.
"""

from collections.abc import Callable
from typing import ClassVar, Final, Literal, Union

import msgspec

from pelton.api.info import StreamState
from pelton.api.json_values import UNREADABLE
from pelton.api.times import ZERO, ZERO_TIME, Duration, HasDurations, always, dec_hook, enc_hook

ACCOUNT: Final = "$G"
"""The only account of an embedded store, named like a server's default account."""

Action = Literal["create", "modify", "delete"]
Reason = Literal["timeout", "large", "incomplete", "unsupported"]

_ADVISORY: Final = "io.nats.jetstream.advisory.v1."
_DONE: Final = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}


class Event(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, tag_field="type"):
    """The base of all events: a unique `id`, and when it happened, its `timestamp` (RFC 3339).

    Most events name a `stream`, and many a `consumer`, or the `account` that both are in. Of a message, `stream_seq` is
    its sequence, `consumer_seq` the number of its last delivery, and `deliveries` how often it was delivered. `domain`
    is the JetStream domain, if there is one.
    """

    _subject: ClassVar[str] = ""

    id: str = always("")
    timestamp: str = always(ZERO_TIME)

    @property
    def subject(self) -> str:
        """The subject it is published under."""
        names = {field: getattr(self, field) for field in self.__struct_fields__}
        return self._subject.format(done=_DONE.get(names.get("action", "")), **names)


class StreamAction(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}stream_action"):
    """A stream was created, updated or deleted, as its `action` says: `create`, `modify`, `delete`."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STREAM.{done}.{stream}"

    stream: str
    action: Action
    domain: str = ""


class BatchAbandoned(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}stream_batch_abandoned"):
    """An atomic batch ended without being stored (ADR-50)."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{stream}"

    stream: str
    batch: str
    reason: Reason
    domain: str = ""


class ConsumerAction(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}consumer_action"):
    """A consumer was created, or deleted (its `action`): by request, with its stream, or because it was inactive."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.CONSUMER.{done}.{stream}.{consumer}"

    stream: str
    consumer: str
    action: Action
    domain: str = ""


class ConsumerPaused(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}consumer_pause"):
    """A consumer was `paused` until a time, `pause_until` (RFC 3339), or resumed."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.CONSUMER.PAUSE.{stream}.{consumer}"

    stream: str
    consumer: str
    paused: bool = always(False)
    pause_until: str = always(ZERO_TIME)
    domain: str = ""


class GroupPinned(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}consumer_group_pinned"):
    """A priority group was pinned to a client, under the id `pinned_id`."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.CONSUMER.PINNED.{stream}.{consumer}"

    account: str = ""
    stream: str
    consumer: str
    group: str
    pinned_id: str
    domain: str = ""


class GroupUnpinned(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}consumer_group_unpinned"):
    """A priority group was unpinned: its client was silent (`timeout`), or by request (`admin`), its `reason`."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.{stream}.{consumer}"

    account: str = ""
    stream: str
    consumer: str
    group: str
    reason: Literal["admin", "timeout"]
    domain: str = ""


class MaxDeliveries(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}max_deliver"):
    """A message was delivered `max_deliver` times and is given up."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"

    stream: str
    consumer: str
    stream_seq: int
    deliveries: int
    domain: str = ""


class MessageNaked(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}nak"):
    """A message was given back."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.{stream}.{consumer}"

    stream: str
    consumer: str
    consumer_seq: int
    stream_seq: int
    deliveries: int
    domain: str = ""


class MessageTerminated(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}terminated"):
    """A message was terminated, for a `reason` if one was given."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream}.{consumer}"

    stream: str
    consumer: str
    consumer_seq: int
    stream_seq: int
    deliveries: int
    reason: str = ""
    domain: str = ""


class AckSample(HasDurations, Event, kw_only=True, frozen=True, tag="io.nats.jetstream.metric.v1.consumer_ack"):
    """A message was acked, `ack_time` after its delivery; sampled according to ``sample_freq``."""

    _subject: ClassVar[str] = "$JS.EVENT.METRIC.CONSUMER.ACK.{stream}.{consumer}"

    stream: str
    consumer: str
    consumer_seq: int
    stream_seq: int
    ack_time: Duration
    deliveries: int
    domain: str = ""


class ClientInfo(HasDurations, msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The client of a request. In an embedded store the process: `id` is its pid, `start` when it opened the store.

    On a server: its `host`, account (`acc`), `user` and `name`; the language of its library and its version (`lang`,
    `ver`); the `server` that it is connected to, the `kind` of connection and its `client_type`; and its round trip
    time, `rtt`, in seconds.
    """

    start: str = ""
    host: str = ""
    id: int = 0
    acc: str = ""
    user: str = ""
    name: str = ""
    lang: str = ""
    ver: str = ""
    rtt: Duration = ZERO
    server: str = ""
    kind: str = ""
    client_type: str = ""


class SnapshotStarted(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}snapshot_create"):
    """A `client` is sent an archive of a stream, whose `state` it has."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_CREATE.{stream}"

    stream: str
    state: StreamState = msgspec.field(default_factory=StreamState)
    client: ClientInfo = msgspec.field(default_factory=ClientInfo)
    domain: str = ""


class SnapshotEnded(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}snapshot_complete"):
    """An archive of a stream was sent to a `client`, from `start` to `end` (RFC 3339), or failed with an `error`."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.{stream}"

    stream: str
    start: str
    end: str
    client: ClientInfo = msgspec.field(default_factory=ClientInfo)
    error: str = ""
    domain: str = ""


class RestoreStarted(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}restore_create"):
    """A `client` sends an archive of a stream, to restore it."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STREAM.RESTORE_CREATE.{stream}"

    stream: str
    client: ClientInfo = msgspec.field(default_factory=ClientInfo)
    domain: str = ""


class RestoreEnded(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}restore_complete"):
    """An archive of `bytes` was received from a `client`, from `start` to `end` (RFC 3339).

    Its stream is there, or it was refused.
    """

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STREAM.RESTORE_COMPLETE.{stream}"

    stream: str
    start: str
    end: str
    bytes: int = 0
    client: ClientInfo = msgspec.field(default_factory=ClientInfo)
    domain: str = ""


class ApiAudit(Event, kw_only=True, frozen=True, tag=f"{_ADVISORY}api_audit"):
    """A request of a `client` to the API, under `api_subject`, was answered by a `server`.

    `request` and `response` are the JSON as on the wire.
    """

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.API"

    server: str = always("")
    client: ClientInfo = msgspec.field(default_factory=ClientInfo)
    # The subject of the request: its JSON name, "subject", is here the event's own subject.
    api_subject: str = msgspec.field(name="subject", default_factory=str)
    request: str = ""
    response: str = always("")
    domain: str = ""


class CheckpointBlocked(Event, kw_only=True, frozen=True, tag="io.pelton.advisory.v1.checkpoint_blocked"):
    """The log of a `store` grows, to `log_bytes`, because a process that reads an old state blocks checkpoints."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STORE.CHECKPOINT_BLOCKED"

    store: str
    log_bytes: int


class SlowSync(HasDurations, Event, kw_only=True, frozen=True, tag="io.pelton.advisory.v1.slow_sync"):
    """A sync of a `store` to disk `took` a second or more; published at most once a minute."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STORE.SLOW_SYNC"

    store: str
    took: Duration


class WriterBusy(HasDurations, Event, kw_only=True, frozen=True, tag="io.pelton.advisory.v1.writer_busy"):
    """An opener of a `store` waited a second or more, as `took` tells, for the transaction of another.

    Told at most once a minute.
    """

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STORE.WRITER_BUSY"

    store: str
    took: Duration


class MessageQuarantined(Event, kw_only=True, frozen=True, tag="io.pelton.advisory.v1.message_quarantined"):
    """A stored message was found damaged as it was to be delivered, for a `reason`, and is never delivered."""

    _subject: ClassVar[str] = "$JS.EVENT.ADVISORY.STREAM.MSG_QUARANTINED.{stream}"

    stream: str
    stream_seq: int
    reason: str


EVENTS: Final[tuple[type[Event], ...]] = tuple(Event.__subclasses__())
"""All events."""

_encode: Final = msgspec.json.Encoder(enc_hook=enc_hook).encode
_decode: Final[Callable[[bytes], Event]] = msgspec.json.Decoder(Union[EVENTS], dec_hook=dec_hook).decode  # noqa: UP007  # of a tuple


def encode_event(event: Event) -> bytes:
    """Return the JSON of an event."""
    return _encode(event)


def decode_event(data: bytes) -> Event | None:
    """Return the event that a message under ``$JS.EVENT.>`` holds; None for an unknown one."""
    try:
        return _decode(data)
    except UNREADABLE:
        return None
