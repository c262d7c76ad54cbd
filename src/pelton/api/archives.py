"""What a NATS archive of a stream holds, besides its configuration: consumers with their positions, and messages.

The JSON of consumers is nats-server's; see NATS's design "JetStream Stream Backup and Restore V2".
"""

from typing import Final, NamedTuple, TypeVar

import msgspec

from pelton.api.codec import convert_request, request_fields
from pelton.api.config import ConsumerConfig, StreamConfig
from pelton.api.durations import dec_hook, enc_hook
from pelton.api.errors import api_error
from pelton.api.fields import shown
from pelton.api.info import StreamInfo, StreamState

S = TypeVar("S", bound=msgspec.Struct)


class ArchivedMessage(NamedTuple):
    """A stored message; ``ts`` is in nanoseconds since the epoch."""

    seq: int
    ts: int
    subject: str
    hdr: bytes | None
    data: bytes


class ArchivedPosition(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How far a consumer has come: in its own deliveries, and in the stream."""

    consumer_seq: int = shown(0)
    stream_seq: int = shown(0)


class ArchivedDelivery(msgspec.Struct, kw_only=True, frozen=True, rename="pascal"):
    """A message that awaits its ack: the number of its delivery, and since when it waits (nanoseconds)."""

    sequence: int = 0
    timestamp: int = 0


class ArchivedConsumerState(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The state of a consumer; ``pending`` by stream sequence, ``redelivered`` how often beyond the first time."""

    delivered: ArchivedPosition = msgspec.field(default_factory=ArchivedPosition)
    ack_floor: ArchivedPosition = msgspec.field(default_factory=ArchivedPosition)
    pending: dict[int, ArchivedDelivery] | None = None
    redelivered: dict[int, int] | None = None


class ArchivedConsumer(msgspec.Struct, kw_only=True, frozen=True):
    """A consumer: its configuration, and its state."""

    config: ConsumerConfig
    state: ArchivedConsumerState


def encode_archived(consumer: ArchivedConsumer) -> bytes:
    """Return the JSON of a consumer."""
    return msgspec.json.encode(consumer, enc_hook=enc_hook)


def decode_archived(body: bytes) -> ArchivedConsumer:
    """Return the consumer of an archive. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=ArchivedConsumer, dec_hook=dec_hook)


class SnapshotRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request for an archive of a stream, which is sent to ``deliver_subject`` in chunks (sizes are bytes)."""

    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: int = 0
    window_size: int = 0
    jsck: bool = False


class RestoreRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request to restore a stream from an archive."""

    config: StreamConfig
    state: StreamState


def decode_snapshot_request(body: bytes) -> SnapshotRequest:
    """Return the request of a client. Raises `ApiError`."""
    return _decoded(SnapshotRequest, body, "JSApiStreamSnapshotRequest")


def decode_restore_request(body: bytes) -> RestoreRequest:
    """Return the request of a client. Raises `ApiError`."""
    return _decoded(RestoreRequest, body, "JSApiStreamRestoreRequest")


def decode_archived_state(body: bytes) -> StreamState:
    """Return the state with which an archive begins. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=StreamState)


def _decoded(kind: type[S], body: bytes, root: str) -> S:
    if body.strip() == b"{}" or not body:
        raise api_error("JSBadRequestErr")
    return convert_request(kind, request_fields(kind, body, root))


_REPLY: Final = "io.nats.jetstream.api.v1.{}_response"


def encode_snapshot_reply(info: StreamInfo, state: StreamState) -> bytes:
    """Return the answer to a snapshot request."""
    kind = {"type": _REPLY.format("stream_snapshot")}
    return msgspec.json.encode(
        kind | {"config": msgspec.to_builtins(info.config, enc_hook=enc_hook), "state": msgspec.to_builtins(state)}
    )


def encode_restore_reply(subject: str) -> bytes:
    """Return the answer to a restore request: where the chunks are to be sent."""
    return msgspec.json.encode({"type": _REPLY.format("stream_restore"), "deliver_subject": subject})
