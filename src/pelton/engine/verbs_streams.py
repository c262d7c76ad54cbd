"""The verbs on streams and their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pelton.api import (
    ConfigError,
    CorruptMessageError,
    MsgDelete,
    MsgGet,
    MsgGetReply,
    PurgeReply,
    StreamConfig,
    StreamCreate,
    StreamDelete,
    StreamHeads,
    StreamHeadsReply,
    StreamInfo,
    StreamInfoRequest,
    StreamPurge,
    StreamState,
    StreamUpdate,
    Success,
    WireMessage,
    api_error,
    parse_rfc3339,
    resolved_stream,
    rfc3339,
)
from pelton.consumers import follow_purge
from pelton.sourcing import check_circle, check_mirror_change, check_sourcing
from pelton.storage import Row, intact
from pelton.streams import (
    StreamLog,
    changed_stream,
    check_consumers,
    check_new_stream,
    check_stream,
    check_time_pedantic,
    heads_of,
)
from pelton.subjects import overlaps

if TYPE_CHECKING:
    from pelton.engine.verbs import Scope

_SUBJECTS_PAGE: Final = 100_000


def takes(config: StreamConfig, subject: str) -> bool:
    """Return whether a stream takes messages of a subject or filter; every stream takes the empty one."""
    return not subject or any(overlaps(subject, mine) for mine in config.subjects)


def fresh(scope: Scope, name: str) -> StreamLog:
    """Return a stream without messages past their age; raises StreamNotFoundError."""
    log = scope.catalogue.stream(name)
    log.advance(scope.now())
    scope.catalogue.retire(log, scope.now())
    return log


def create(scope: Scope, request: StreamCreate) -> StreamInfo:
    """Make a stream; the same configuration again is answered with the stream there is."""
    if request.pedantic:
        check_time_pedantic(request.config)
    config = resolved_stream(request.config)
    if config.name not in scope.catalogue.streams and not config.sealed:
        scope.account.check_number()
    check_new_stream(config)
    check_sourcing(config)
    scope.account.check_bytes(config)
    existing = scope.catalogue.streams.get(config.name)
    if existing is not None:
        if existing.config != config:
            raise api_error("JSStreamNameExistErr", stream=config.name)
        return info_of(scope, fresh(scope, config.name))
    _check_overlap(scope, config)
    _check_circle(scope, config)
    scope.account.check_reservation(config)
    log = scope.catalogue.create_stream(config, scope.now())
    reply = info_of(scope, log)
    reply.did_create = True
    return reply


def _check_overlap(scope: Scope, config: StreamConfig) -> None:
    for other in scope.catalogue.streams.values():
        if other.name != config.name and any(takes(other.config, subject) for subject in config.subjects):
            raise api_error("JSStreamSubjectOverlapErr", stream=config.name)


def _check_circle(scope: Scope, config: StreamConfig) -> None:
    check_circle(config, (log.config for log in scope.catalogue.streams.values()))


def update(scope: Scope, request: StreamUpdate) -> StreamInfo:
    """Replace a stream's configuration; new limits apply at once."""
    if request.pedantic:
        check_time_pedantic(request.config)
    wanted = resolved_stream(request.config)
    check_stream(wanted)
    check_sourcing(wanted)
    log = fresh(scope, wanted.name)
    config = changed_stream(log.config, wanted)
    check_mirror_change(log.config, config)
    scope.account.check_bytes(config)
    scope.account.check_reservation(config, log.config)
    check_consumers(log.config, config, (each.config for each in scope.catalogue.consumers_of(log.name)))
    _check_overlap(scope, config)
    _check_circle(scope, config)
    log = scope.catalogue.update_stream(log, config)
    log.appender.apply_limits()
    log.flush()
    return info_of(scope, log)


def info(scope: Scope, request: StreamInfoRequest) -> StreamInfo:
    """Report a stream, with its subjects or its gaps where asked."""
    log = fresh(scope, request.name)
    reply = info_of(scope, log)
    if request.subjects_filter:
        counts = log.reader.subject_counts(request.subjects_filter)
        offset = max(request.offset, 0)
        page = list(counts.items())[offset : offset + _SUBJECTS_PAGE]
        reply.state.subjects = dict(page)
        if counts:
            reply.total, reply.offset, reply.limit = len(counts), offset, _SUBJECTS_PAGE
    if request.deleted_details:
        reply.state.deleted = log.reader.deleted()
    return reply


def info_of(scope: Scope, log: StreamLog) -> StreamInfo:
    reply = StreamInfo(
        config=log.config, created=rfc3339(log.created), state=_state(scope, log), ts=rfc3339(scope.now())
    )
    infos = scope.catalogue.network.infos(log)
    if log.config.mirror is not None:
        reply.mirror = infos[0]
    else:
        reply.sources = infos
    return reply


def _state(scope: Scope, log: StreamLog) -> StreamState:
    log.flush()
    now = scope.now()
    consumers = [scope.catalogue.use_consumer(each) for each in scope.catalogue.listed_of(log.name)]
    state = StreamState(
        messages=log.state.msgs,
        bytes=log.state.bytes,
        first_seq=log.state.first if log.state.last or log.config.first_seq else 0,
        last_seq=log.state.last,
        num_subjects=log.reader.num_subjects(),
        num_deleted=log.state.last - log.state.first + 1 - log.state.msgs,
        consumer_count=sum(not consumer.is_idle(now) for consumer in consumers),
    )
    first_ts = log.table.time_of(log.state.first) if log.state.msgs else None
    if first_ts is not None:
        state.first_ts = rfc3339(first_ts)
    if log.state.last_ts:
        state.last_ts = rfc3339(log.state.last_ts)
    return state


def delete(scope: Scope, request: StreamDelete) -> Success:
    """Remove a stream, its messages and its consumers."""
    scope.catalogue.delete_stream(scope.catalogue.stream(request.name))
    return Success()


def purge(scope: Scope, request: StreamPurge) -> PurgeReply:
    """Remove messages (ADR-10)."""
    _check_unsigned(request.name, seq=request.seq, keep=request.keep)
    if request.seq and request.keep:
        raise api_error("JSBadRequestErr", stream=request.name)
    log = fresh(scope, request.name)
    _check_open(log.config)
    if log.config.deny_purge:
        raise api_error("JSStreamPurgeFailedF", stream=log.name, err="stream purge not permitted")
    purged = log.remover.purge(request.filter, request.seq, request.keep)
    log.flush()
    for consumer in scope.catalogue.consumers_of(log.name):
        follow_purge(scope.catalogue.use_consumer(consumer), request.filter)
    return PurgeReply(purged=purged)


def heads(scope: Scope, request: StreamHeads) -> StreamHeadsReply:
    """Return the last messages of subjects, without their payloads."""
    log = fresh(scope, request.stream)
    log.flush()
    return StreamHeadsReply(heads=tuple(heads_of(log, request.filters, request.after, request.limit)))


def get_message(scope: Scope, request: MsgGet) -> MsgGetReply:
    """Return a stored message: by sequence, the last of a subject, or the first from a place on."""
    _check_unsigned(request.stream, seq=request.seq)
    start = _start_time(request)
    asked = [bool(request.seq), bool(request.last_by_subj), start is not None]
    if sum(asked) > 1 or (request.last_by_subj and request.next_by_subj) or not (any(asked) or request.next_by_subj):
        raise api_error("JSBadRequestErr", stream=request.stream)
    log = fresh(scope, request.stream)
    if request.last_by_subj:
        row = log.reader.last_row_of(request.last_by_subj)
    elif start is not None:
        row = log.reader.next_row_of(log.reader.first_at(start), request.next_by_subj)
    elif request.next_by_subj:
        row = log.reader.next_row_of(max(request.seq, 1), request.next_by_subj)
    else:
        row = log.reader.get(request.seq)
    if row is None:
        raise api_error("JSNoMessageFoundErr", stream=log.name, seq=request.seq)
    message = _stored(scope, log, row)
    if request.no_hdr:
        message.hdrs = b""
    return MsgGetReply(message=message)


def _start_time(request: MsgGet) -> int | None:
    try:
        return parse_rfc3339(request.start_time) if request.start_time else None
    except ConfigError as error:
        raise api_error("JSInvalidJSONErr", stream=request.stream, err=error) from None


def _stored(scope: Scope, log: StreamLog, row: Row) -> WireMessage:
    if not intact(row):
        raise CorruptMessageError(log.name, row[0], scope.catalogue.db.path)
    seq, ts, subject, hdr, data, _ = row
    return WireMessage(subject=subject, seq=seq, hdrs=hdr or b"", data=data, time=rfc3339(ts))


def delete_message(scope: Scope, request: MsgDelete) -> Success:
    """Remove one message."""
    _check_unsigned(request.stream, seq=request.seq)
    log = fresh(scope, request.stream)
    _check_open(log.config)
    if log.config.deny_delete:
        raise api_error("JSStreamMsgDeleteFailedF", stream=log.name, err="message delete not permitted")
    if request.seq > log.state.last or not log.remover.remove([request.seq]):
        if log.state.first <= request.seq <= log.state.last:
            raise api_error("JSSequenceNotFoundErrF", stream=log.name, seq=request.seq)
        raise api_error("JSStreamMsgDeleteFailedF", stream=log.name, err="no message found", seq=request.seq)
    return Success()


def _check_open(config: StreamConfig) -> None:
    if config.sealed:
        raise api_error("JSStreamSealedErr", stream=config.name)


def _check_unsigned(stream: str, **values: int) -> None:
    """Refuse numbers that NATS's requests cannot carry: below 0, or no sequence that can be stored."""
    for name, value in values.items():
        if not 0 <= value < 1 << 63:
            err = f"{name} is {value}: give 0 or more, and less than 2**63"
            raise api_error("JSInvalidJSONErr", stream=stream, err=err)
