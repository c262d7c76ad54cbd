"""Encodes and decodes the API: requests and replies, errors, and what an archive of a stream holds.

**Encodes and decodes the API: requests as API subject and JSON body, replies and errors as JSON.** A request's names
travel in the subject (``$JS.API.STREAM.INFO.orders``), the rest in the body, and an empty body means all defaults.
Replies carry their ``type``; errors take their place. Unknown fields of a reply, from newer servers, are ignored; in a
request they are refused (`JSInvalidJSONErr`), as on nats-server 2.15.

**What a NATS archive of a stream holds, besides its configuration: consumers with their positions, and messages.** The
JSON of consumers is nats-server's; see NATS's design "JetStream Stream Backup and Restore V2".
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from pelton.api.build import check_token
from pelton.api.config import ConsumerConfig, StreamConfig
from pelton.api.direct import WireGet
from pelton.api.errors import ApiError, api_error, from_reply
from pelton.api.info import ErrorBody, StreamInfo, StreamState
from pelton.api.json_values import GoJsonError, read_object, read_request
from pelton.api.requests import (
    VERB_OF,
    VERBS,
    AccountInfoRequest,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfoRequest,
    ConsumerList,
    ConsumerNames,
    ConsumerPause,
    ConsumerReset,
    ConsumerUnpin,
    MsgDelete,
    MsgGet,
    Request,
    StreamCreate,
    StreamDelete,
    StreamInfoRequest,
    StreamList,
    StreamNames,
    StreamPurge,
    StreamUpdate,
    Verb,
)
from pelton.api.times import ZERO_TIME, always, dec_hook, enc_hook
from pelton.subjects import is_filter

R = TypeVar("R")

PREFIX: Final = "$JS.API"
_NO_FIELDS: Final = re.compile(rb"\s*\{\s*\}\s*")
_DURABLE_CREATE: Final = "CONSUMER.DURABLE.CREATE"
_EMPTY: Final = (StreamDelete, ConsumerDelete, ConsumerInfoRequest)
# Their bodies may be any text that is no JSON object or array.
_LENIENT: Final = (StreamNames, StreamList, StreamInfoRequest, StreamPurge, ConsumerNames, ConsumerList, ConsumerPause)
_IGNORING_UNKNOWN: Final = (ConsumerReset, ConsumerUnpin)
_ROOTS: Final[dict[type[Request[Any]], str]] = {
    StreamCreate: "StreamConfigRequest",
    StreamUpdate: "StreamConfigRequest",
    ConsumerCreate: "CreateConsumerRequest",
    ConsumerNames: "JSApiConsumersRequest",
    ConsumerList: "JSApiConsumersRequest",
}


_NO_PAGE: Final = {"total": 0, "offset": 0, "limit": 0}
# What a reply shows that is an error, too, as Go's structs do.
_SHOWN: Final[dict[str, dict[str, Any]]] = {
    "stream_info": _NO_PAGE,
    "stream_names": {**_NO_PAGE, "streams": None},
    "stream_list": {**_NO_PAGE, "streams": []},
    "consumer_names": {**_NO_PAGE, "consumers": []},
    "consumer_list": {**_NO_PAGE, "consumers": []},
    "stream_purge": {"purged": 0},
    "stream_restore": {"deliver_subject": ""},
    "consumer_pause": {"paused": False, "pause_until": ZERO_TIME},
    "consumer_reset": {"reset_seq": 0},
}
_TYPE: Final = "io.nats.jetstream.api.v1.{}_response"
_ALWAYS_SHOWN: Final = {_TYPE.format(name): fields for name, fields in _SHOWN.items()}


class _Envelope(msgspec.Struct):
    error: ErrorBody | None = None


def api_subject(request: Request[Any], prefix: str = PREFIX) -> str:
    """Return the subject a request is sent to; `ConfigError` for a name that would change the subject."""
    for what, name in names_of(request).items():
        check_token(what, name)
    if isinstance(request, ConsumerCreate):
        return f"{prefix}.CONSUMER.CREATE.{_consumer_tail(request)}"
    names = {"name": request.config.name} if isinstance(request, StreamCreate | StreamUpdate) else {}
    names |= {field: getattr(request, field) for field in request._subject_fields}
    return f"{prefix}.{VERB_OF[type(request)].subject.format(**names)}"


def encode_body(request: Request[Any]) -> bytes:
    """Return the JSON body of a request; empty if all is default."""
    body: dict[str, Any] = msgspec.to_builtins(request, enc_hook=enc_hook)
    if isinstance(request, StreamCreate | StreamUpdate):
        body |= body.pop("config")
    for field in request._subject_fields:
        del body[field]
    return msgspec.json.encode(body) if body else b""


def decode_request(
    subject: str, body: bytes, prefix: str = PREFIX, check: Callable[[StreamUpdate], None] | None = None
) -> Request[Any] | None:
    """Return the request a client sent, or None if no verb has this subject.

    Raises `ApiError` if the body is not valid for the verb or contradicts the subject. What else is wrong with an
    update, ``check`` has to raise: it is told first.
    """
    found = _find_verb(subject.removeprefix(prefix + "."))
    if found is None or not subject.startswith(prefix + "."):
        return None
    verb, names = found
    if verb.request in _EMPTY:
        _check_empty(body)
    if verb.request in (StreamCreate, StreamUpdate):
        return _stream_create(verb, body, names[0], check)
    if verb.request is ConsumerCreate:
        return _consumer_create(subject.removeprefix(prefix + "."), body, names)
    if verb.request in (MsgGet, MsgDelete) and (not body or body.split() in ([b"{}"], [b"{", b"}"])):
        raise api_error("JSBadRequestErr", stream=names[0])
    if verb.request is MsgGet:
        data = _message_get(body, names[0])
    elif verb.request is AccountInfoRequest:
        data = {}
    else:
        data = _fields_of(verb.request, body)
    data |= dict(zip(verb.request._subject_fields, names, strict=True))
    return convert_request(verb.request, data)


def _message_get(body: bytes, stream: str) -> dict[str, Any]:
    # The fields that ask for several messages are known, and refused.
    data = request_fields(WireGet, body, "JSApiMsgGetRequest")
    if not data or data.get("batch", 0) > 0 or data.get("max_bytes", 0) > 0:
        raise api_error("JSBadRequestErr", stream=stream)
    return {key: value for key, value in data.items() if key in MsgGet.__struct_fields__}


def _fields_of(kind: type[Request[Any]], body: bytes) -> dict[str, Any]:
    root = _ROOTS.get(kind) or f"JSApi{kind.__name__.removesuffix('Request')}Request"
    if kind in _LENIENT and not body.lstrip().startswith((b"{", b"[")):
        return {}
    if kind not in _IGNORING_UNKNOWN:
        return request_fields(kind, body, root)
    try:
        return read_object(kind, body, root) if body or kind is not ConsumerReset else {}
    except GoJsonError as error:
        raise api_error("JSInvalidJSONErr", err=str(error)) from None


def request_fields(kind: type[msgspec.Struct], body: bytes, root: str) -> dict[str, Any]:
    """Return the fields of a request, which the server knows as ``root``. Raises `ApiError`."""
    try:
        return read_request(kind, body, root)
    except GoJsonError as error:
        raise api_error("JSInvalidJSONErr", err=str(error)) from None


def _check_empty(body: bytes) -> None:
    """Raise `ApiError` if a request that has no fields has some."""
    if body and not _NO_FIELDS.fullmatch(body):
        raise api_error("JSNotEmptyRequestErr")


def _check_durable(path: str, config: dict[str, Any], names: list[str]) -> None:
    """Raise `ApiError` if the older subjects and the configuration disagree about whether a consumer is durable."""
    durable = config.get("durable_name")
    if path.startswith(_DURABLE_CREATE) and not durable:
        raise api_error("JSConsumerDurableNameNotSetErr", stream=names[0])
    if durable and len(names) == 1:
        raise api_error("JSConsumerEphemeralWithDurableNameErr", stream=names[0])


def verb_of(subject: str, prefix: str = PREFIX) -> Verb | None:
    """Return the verb of an API subject, or None."""
    found = _find_verb(subject.removeprefix(prefix + ".")) if subject.startswith(prefix + ".") else None
    return None if found is None else found[0]


def encode_reply(request: type[Request[R]], reply: R) -> bytes:
    """Return the JSON of a reply, with its type."""
    kind = VERB_OF[request].reply_type
    body = msgspec.to_builtins(reply, enc_hook=enc_hook)
    if request is StreamNames:
        body["streams"] = body["streams"] or None
    return msgspec.json.encode({"type": kind, **_ALWAYS_SHOWN.get(kind, {}), **body})


def encode_error(request: type[Request[Any]], error: ApiError) -> bytes:
    """Return the JSON of an error in place of a reply."""
    return _failure(VERB_OF[request].reply_type, error)


def encode_failure(kind: str, error: ApiError) -> bytes:
    """Return the JSON of an error in place of a reply of a verb that only servers have, such as ``stream_snapshot``."""
    return _failure(_TYPE.format(kind), error)


def _failure(reply_type: str, error: ApiError) -> bytes:
    body = ErrorBody(code=error.code, err_code=error.err_code, description=error.description)
    return msgspec.json.encode({"type": reply_type, "error": body, **_ALWAYS_SHOWN.get(reply_type, {})})


def decode_reply(request: Request[R], body: bytes) -> R:
    """Return the reply to `request`; raises the `ApiError` it holds, or `ApiError` if it cannot be read."""
    verb = VERB_OF[type(request)]
    named = names_of(request)
    stream, consumer = named.get("stream", ""), named.get("consumer", "")
    try:
        failed = msgspec.json.decode(body, type=_Envelope).error
        if failed is None:
            return cast(R, _decode(body, verb.reply))
    except msgspec.DecodeError as error:
        text = f"the reply to {verb.name} cannot be read: {error}"
        raise ApiError(500, 0, text, stream=stream, consumer=consumer) from None
    raise from_reply(failed.code, failed.err_code, failed.description, stream=stream, consumer=consumer)


def _decode(body: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=dec_hook)
    except msgspec.ValidationError:
        # Go writes an empty list as null: treat it as an absent field.
        return msgspec.convert(_without_nulls(msgspec.json.decode(body)), kind, dec_hook=dec_hook)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def names_of(request: Request[Any]) -> dict[str, str]:
    """Return the "stream" and the "consumer" that a request names, if any."""
    if isinstance(request, ConsumerCreate):
        name = request.config.name or request.config.durable_name
        names = [request.stream_name, name] if name else [request.stream_name]
    elif isinstance(request, StreamCreate | StreamUpdate):
        names = [request.config.name]
    else:
        names = [getattr(request, field) for field in request._subject_fields]
    return dict(zip(("stream", "consumer"), names, strict=False))


def _consumer_tail(request: ConsumerCreate) -> str:
    config = request.config
    name = config.name or config.durable_name
    # An invalid filter would make the subject invalid; in the body alone it gets the server's answer.
    only_body = config.filter_subjects or config.filter_subject == ">" or not is_filter(config.filter_subject)
    always = "" if only_body else config.filter_subject
    tokens = [request.stream_name, name, always]
    # The filter follows the name, so that access rules can see it; without a name there is no place for it.
    return ".".join(token for token in tokens if token) if name else request.stream_name


def _find_verb(path: str) -> tuple[Verb, list[str]] | None:
    if path.startswith(_DURABLE_CREATE):
        path = path.replace(_DURABLE_CREATE, "CONSUMER.CREATE", 1)
    for verb in VERBS:
        if path != verb.name and not path.startswith(verb.name + "."):
            continue
        names = path[len(verb.name) + 1 :].split(".") if path != verb.name else []
        if len(names) == verb.subject.count("{") or (verb.request is ConsumerCreate and names):
            return verb, names
    return None


def _consumer_create(path: str, body: bytes, names: list[str]) -> ConsumerCreate:
    data = _fields_of(ConsumerCreate, body)
    config = data.get("config", {})
    if data.get("stream_name", "") != names[0]:
        raise api_error("JSStreamMismatchErr", stream=names[0])
    _check_durable(path, config, names)
    # Our default is the safe policy; on the wire an absent one means "none".
    fields = {"stream_name": ""} | data | {"config": {"ack_policy": "none"} | config}
    request = convert_request(ConsumerCreate, fields)
    stream, name, *filters = [*names, ""] if len(names) == 1 else names
    _check_consumer_subject(request, stream, name, ".".join(filters))
    return msgspec.structs.replace(request, config=_named_config(request.config, name))


def _named_config(config: ConsumerConfig, name: str) -> ConsumerConfig:
    return msgspec.structs.replace(config, name=name) if name else config


def _check_consumer_subject(request: ConsumerCreate, stream: str, name: str, filtered: str) -> None:
    config = request.config
    if name and (config.durable_name or name) != name:
        raise api_error("JSConsumerDurableNameNotMatchSubjectErr", stream=stream, consumer=name)
    if not name and config.name and config.durable_name and config.name != config.durable_name:
        raise api_error("JSConsumerCreateDurableAndNameMismatch", stream=stream, consumer=config.name)
    if filtered and config.filter_subjects:
        raise api_error("JSConsumerMultipleFiltersNotAllowed", stream=stream, consumer=name)
    if filtered and filtered != config.filter_subject:
        raise api_error("JSConsumerCreateFilterSubjectMismatchErr", stream=stream, consumer=name)


class _WireStream(StreamConfig, kw_only=True, frozen=True):
    """The body of a request to create or update a stream: its configuration, and what it asks of the server."""

    pedantic: bool = False


def _stream_create(
    verb: Verb, body: bytes, name: str, check: Callable[[StreamUpdate], None] | None
) -> StreamCreate | StreamUpdate:
    data = request_fields(_WireStream, body, _ROOTS[verb.request])
    pedantic = data.pop("pedantic", False)
    kind = StreamUpdate if verb.request is StreamUpdate else StreamCreate
    request = kind(config=convert_request(StreamConfig, data), pedantic=pedantic)
    if request.config.name != name:
        if check is not None and isinstance(request, StreamUpdate):
            check(request)
        raise api_error("JSStreamMismatchErr", stream=name)
    return request


S = TypeVar("S", bound=msgspec.Struct)


def convert_request(kind: type[S], data: dict[str, Any]) -> S:
    """Return the struct of a request's fields. Raises `ApiError` for invalid ones."""
    try:
        return msgspec.convert(data, kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise api_error("JSInvalidJSONErr", err=str(error)) from None


class ArchivedMessage(NamedTuple):
    """A stored message; ``ts`` is in nanoseconds since the epoch."""

    seq: int
    ts: int
    subject: str
    hdr: bytes | None
    data: bytes


class ArchivedPosition(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """How far a consumer has come: in its own deliveries, and in the stream."""

    consumer_seq: int = always(0)
    stream_seq: int = always(0)


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
    return _decode_body(SnapshotRequest, body, "JSApiStreamSnapshotRequest")


def decode_restore_request(body: bytes) -> RestoreRequest:
    """Return the request of a client. Raises `ApiError`."""
    return _decode_body(RestoreRequest, body, "JSApiStreamRestoreRequest")


def decode_archived_state(body: bytes) -> StreamState:
    """Return the state with which an archive begins. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=StreamState)


def _decode_body(kind: type[S], body: bytes, root: str) -> S:
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
