"""The verbs on streams and their messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

import msgspec

from pelton.api import (
    ConfigError,
    MsgDelete,
    MsgGet,
    MsgGetReply,
    PurgeReply,
    StreamConfig,
    StreamCreate,
    StreamDelete,
    StreamInfo,
    StreamInfoRequest,
    StreamLastHeaders,
    StreamLastHeadersReply,
    StreamLastMessages,
    StreamLastMessagesReply,
    StreamPurge,
    StreamState,
    StreamUpdate,
    Success,
    api_error,
    parse_rfc3339,
    resolved_stream,
    rfc3339,
)
from pelton.api.admission import check_request
from pelton.consumers import first_left, follow_purge
from pelton.engine.session import Session, create_stream, delete_stream, retire, update_stream
from pelton.runtime import stopwatch
from pelton.sourcing import check_circle, check_mirror_change, check_sourcing
from pelton.storage import intact
from pelton.streams import (
    StreamLog,
    changed_stream,
    check_consumers,
    check_copies,
    check_creation,
    check_new_stream,
    check_stream,
    check_time_pedantic,
    corrupt_message,
    last_headers_of,
    stored_message,
    wire_message,
)
from pelton.subjects import clash_between

_SUBJECTS_PAGE: Final = 100_000
# So many subjects of a stream are looked up one by one among those of the others.
_FEW: Final = 16
# A portion of what removes much gives way to others after so long: what else its transaction does takes as much.
_PORTION_S: Final = 0.005


def fresh(session: Session, name: str) -> StreamLog:
    """Return a stream without its expired messages, unless the store is only read; raises StreamNotFoundError."""
    log = session.registry.stream(name)
    if session.db.is_read_only:
        return log
    log.advance(session.now())
    retire(session, log, session.now())
    return log


def create(session: Session, request: StreamCreate) -> StreamInfo:
    """Create a stream; with the same configuration again, return the existing stream."""
    if request.pedantic:
        check_time_pedantic(request.config)
    config = _as_origin(session, resolved_stream(request.config), pedantic=request.pedantic)
    _check_new(session, config)
    existing = session.registry.streams.get(config.name)
    if existing is not None:
        if existing.config != config:
            raise api_error("JSStreamNameExistErr", stream=config.name)
        return info_of(session, fresh(session, config.name))
    _check_overlap(session, config)
    session.registry.account.check_reservation(config)
    log = create_stream(session, config)
    reply = info_of(session, log)
    reply.did_create = True
    return reply


def _as_origin(session: Session, config: StreamConfig, *, pedantic: bool) -> StreamConfig:
    """Return the configuration of a mirror that allows direct gets if its origin does, as on nats-server."""
    mirror = config.mirror
    origin = session.registry.streams.get(mirror.name) if mirror is not None and mirror.external is None else None
    if origin is None or config.mirror_direct == origin.config.allow_direct:
        return config
    if pedantic:
        text = "origin stream has direct get set, mirror has it disabled"
        raise api_error("JSPedanticErrF", stream=config.name, err=text)
    return msgspec.structs.replace(config, mirror_direct=origin.config.allow_direct)


def _check_new(session: Session, config: StreamConfig) -> None:
    session.registry.check_sound(config.name)
    check_creation(config)
    if config.name not in session.registry.streams:
        session.registry.account.check_number()
    check_new_stream(config)
    check_sourcing(config)
    check_circle(config, session.registry.takers)
    check_copies(config)
    session.registry.account.check_bytes(config)


def checked_restore(session: Session, wanted: StreamConfig) -> StreamConfig:
    """Return the resolved configuration of a stream that is to be restored; raises ApiError if it cannot be."""
    config = resolved_stream(wanted)
    if config.name in session.registry.streams:
        raise api_error("JSStreamNameExistRestoreFailedErr", stream=config.name)
    check_restored(config)
    _check_new(session, msgspec.structs.replace(config, sealed=False))
    _check_overlap(session, config)
    session.registry.account.check_reservation(config)
    return config


def check_restored(config: StreamConfig) -> None:
    """Raise what a create would raise for a resolved configuration that comes with an archive or a backup.

    A stream may not begin sealed, but it may have been sealed when it was archived.
    """
    check_request(StreamCreate(config=config))
    check_new_stream(msgspec.structs.replace(config, sealed=False))
    check_sourcing(config)
    check_copies(config)


def origins_of(session: Session, config: StreamConfig) -> dict[str, str]:
    """Return the creation times of those streams of the store that a configuration names as origins."""
    named = (*config.sources, *((config.mirror,) if config.mirror is not None else ()))
    there = session.registry.streams
    return {one.name: rfc3339(there[one.name].created) for one in named if not one.external and one.name in there}


def _check_overlap(session: Session, config: StreamConfig) -> None:
    registry, subjects = session.registry, config.subjects
    if len(subjects) > _FEW:
        others = (row.digest.subjects for row in registry.streams.rows.values() if row.name != config.name)
        is_taken = clash_between(subjects, chain.from_iterable(others))
    else:
        is_taken = any(other != config.name for each in subjects for other in registry.routes.overlapping(each))
    if is_taken:
        raise api_error("JSStreamSubjectOverlapErr", stream=config.name)


def checked_update(request: StreamUpdate, others: Iterable[StreamConfig] = ()) -> StreamConfig:
    """Return the resolved configuration of an update; raises ApiError or ConfigError if it contradicts itself.

    It must not take from itself either, through ``others``.
    """
    if request.pedantic:
        check_time_pedantic(request.config)
    config = resolved_stream(request.config)
    check_stream(config)
    check_sourcing(config)
    check_circle(config, others)
    check_copies(config)
    return config


class Update(msgspec.Struct, frozen=True):
    """A replacement of a stream's configuration, whose lower limits are applied in portions before it is.

    So a stream is never beyond the limits that it has. If it is interrupted, it has the old limits and fewer messages;
    nothing up to ``after`` is left to remove because of the limit per subject, up to ``last``.
    """

    request: StreamUpdate
    stream: int = 0
    after: int = 0
    last: int = 0

    def remove_portion(self, session: Session) -> Update | StreamInfo:
        """Remove a portion; return what is left to do, or the reply. Raises ApiError, ConfigError."""
        since = stopwatch()
        log, config = _checked_change(session, self.request)
        if self.stream not in (0, log.id):
            raise api_error("JSStreamNotFoundErr", stream=log.name)
        log.appender.flush()
        last = self.last or log.state.last
        # Where a limit refuses, what waits would take the room before the new limit holds, and push out what stays.
        refuses = "new" in (log.config.discard, config.discard)
        for after in () if refuses else log.remover.shrink(config, self.after, last):
            if stopwatch() - since > _PORTION_S:
                log.appender.flush()
                return Update(self.request, log.id, after, last)
        log = update_stream(session, log, config)
        log.appender.apply_limits()
        log.appender.flush()
        return info_of(session, log)


def _checked_change(session: Session, request: StreamUpdate) -> tuple[StreamLog, StreamConfig]:
    wanted = _as_origin(session, checked_update(request, session.registry.takers), pedantic=request.pedantic)
    log = fresh(session, wanted.name)
    config = changed_stream(log.config, wanted)
    check_mirror_change(log.config, config)
    session.registry.account.check_bytes(config)
    session.registry.account.check_reservation(config, log.config)
    check_consumers(log.config, config, (each.config for each in session.registry.consumers_of(log)))
    _check_overlap(session, config)
    return log, config


def info(session: Session, request: StreamInfoRequest) -> StreamInfo:
    """Return the info of a stream, with its subjects or gaps if requested."""
    log = fresh(session, request.name)
    reply = info_of(session, log)
    if request.subjects_filter:
        offset = max(request.offset, 0)
        reply.state.subjects, total = log.reader.subject_counts(request.subjects_filter, offset, _SUBJECTS_PAGE)
        if total:
            reply.total, reply.offset, reply.limit = total, offset, _SUBJECTS_PAGE
    if request.deleted_details:
        reply.state.deleted = log.reader.deleted()
    return reply


def info_of(session: Session, log: StreamLog) -> StreamInfo:
    reply = StreamInfo(
        config=log.config, created=rfc3339(log.created), state=_state(session, log), ts=rfc3339(session.now())
    )
    infos = session.registry.source_graph.infos(log)
    if log.config.mirror is not None:
        reply.mirror = infos[0]
    else:
        reply.sources = infos
    return reply


def _state(session: Session, log: StreamLog) -> StreamState:
    log.appender.flush()
    now = session.now()
    state = StreamState(
        messages=log.state.msgs,
        bytes=log.state.bytes,
        first_seq=log.state.first if log.state.last or log.config.first_seq else 0,
        last_seq=log.state.last,
        num_subjects=log.reader.num_subjects(),
        num_deleted=log.state.last - log.state.first + 1 - log.state.msgs,
        consumer_count=len(set(session.registry.listed_names(log)) - session.registry.idle_names(log, now)),
    )
    first_ts = log.table.time_of(log.state.first) if log.state.msgs else None
    if first_ts is not None:
        state.first_ts = rfc3339(first_ts)
    if log.state.last_ts:
        state.last_ts = rfc3339(log.state.last_ts)
    return state


def delete(session: Session, request: StreamDelete) -> Success:
    """Delete a stream, its messages and its consumers."""
    delete_stream(session, session.registry.stream(request.name))
    return Success()


class Purge(msgspec.Struct, frozen=True):
    """A purge (ADR-10), in portions between which others can write: what was stored after its first one stays.

    Each portion is a purge up to a sequence. So what is seen between two, or is left if it is interrupted, is the
    stream after such a purge. Nothing up to ``after`` is left to remove, nothing after ``last`` is to be; ``keep``
    messages before that are still to be passed.
    """

    request: StreamPurge
    stream: int = 0
    after: int = 0
    last: int = 0
    keep: int = 0
    purged: int = 0

    def remove_portion(self, session: Session) -> Purge | PurgeReply:
        """Remove a portion; return what is left to do, or the reply. Raises ApiError."""
        since = stopwatch()
        log, subject_filter = _purgeable(session, self.request), self.request.filter or ">"
        if self.stream not in (0, log.id):
            raise api_error("JSStreamNotFoundErr", stream=log.name)
        after, last, keep, purged = self.after, self.last, self.keep, self.purged
        if not self.stream:
            last, keep, present = self.request.seq - 1, self.request.keep, log.state.last
            last = last if last >= 0 else present
            if subject_filter == ">" and not keep and last >= present:
                # Cheap, and not to be divided.
                after = last
                purged = log.remover.remove_all(last)
            last = min(last, log.state.last)
        while after < last:
            if keep:
                last, keep = log.remover.pass_newest(subject_filter, last, keep)
            else:
                removed, after = log.remover.remove_some(subject_filter, after, last)
                purged += removed
            if stopwatch() - since > _PORTION_S:
                break
        log.appender.flush()
        is_over = after >= last
        if consumers := session.registry.consumers_of(log):
            left = first_left(log, subject_filter, after) if is_over else after + 1
            for consumer in consumers:
                follow_purge(session.registry.use_consumer(consumer), subject_filter, left)
        return PurgeReply(purged=purged) if is_over else Purge(self.request, log.id, after, last, keep, purged)


def _purgeable(session: Session, request: StreamPurge) -> StreamLog:
    _check_unsigned(request.name, seq=request.seq, keep=request.keep)
    if request.seq and request.keep:
        raise api_error("JSBadRequestErr", stream=request.name)
    log = fresh(session, request.name)
    _check_open(log.config)
    if log.config.deny_purge:
        raise api_error("JSStreamPurgeFailedF", stream=log.name, err="stream purge not permitted")
    return log


def heads(session: Session, request: StreamLastHeaders) -> StreamLastHeadersReply:
    """Return the last messages of subjects, without their payloads."""
    log = fresh(session, request.stream)
    log.appender.flush()
    return StreamLastHeadersReply(heads=tuple(last_headers_of(log, request.filters, request.after, request.limit)))


def last_messages(session: Session, request: StreamLastMessages) -> StreamLastMessagesReply:
    """Return the last messages of subjects. Raises CorruptMessageError."""
    log = fresh(session, request.stream)
    log.appender.flush()
    found = last_headers_of(log, request.filters, request.after, request.limit)
    rows = log.reader.get_many([head.seq for head in found])
    for row in rows:
        if not intact(row):
            raise corrupt_message(log.name, row.seq, session.db.path)
    return StreamLastMessagesReply(
        messages=tuple(map(stored_message, rows)),
        jumped_ns=tuple(log.state.counts_from(row.seq, row.ts) - row.ts for row in rows),
        after=found[-1].subject if found else "",
    )


def get_message(session: Session, request: MsgGet) -> MsgGetReply:
    """Return a stored message: by sequence, the last of a subject, or the first from a sequence or time on."""
    _check_unsigned(request.stream, seq=request.seq)
    start = _start_time(request)
    asked = [bool(request.seq), bool(request.last_by_subj), start is not None]
    if sum(asked) > 1 or (request.last_by_subj and request.next_by_subj) or not (any(asked) or request.next_by_subj):
        raise api_error("JSBadRequestErr", stream=request.stream)
    log = fresh(session, request.stream)
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
    if not intact(row):
        raise corrupt_message(log.name, row.seq, session.db.path)
    message = wire_message(row)
    if request.no_hdr:
        message.hdrs = b""
    return MsgGetReply(message=message)


def _start_time(request: MsgGet) -> int | None:
    try:
        return parse_rfc3339(request.start_time) if request.start_time else None
    except ConfigError as error:
        raise api_error("JSInvalidJSONErr", stream=request.stream, err=error) from None


def delete_message(session: Session, request: MsgDelete) -> Success:
    _check_unsigned(request.stream, seq=request.seq)
    log = fresh(session, request.stream)
    _check_open(log.config)
    if log.config.deny_delete:
        raise api_error("JSStreamMsgDeleteFailedF", stream=log.name, err="message delete not permitted")
    is_ahead = request.seq > log.state.last
    if is_ahead or not log.remover.remove([request.seq]):
        if log.config.storage == "memory" or (log.state.first <= request.seq and not is_ahead):
            raise api_error("JSSequenceNotFoundErrF", stream=log.name, seq=request.seq)
        # The texts of nats-server's file store.
        err = "stream store EOF" if is_ahead else "no message found"
        raise api_error("JSStreamMsgDeleteFailedF", stream=log.name, err=err, seq=request.seq)
    return Success()


def _check_open(config: StreamConfig) -> None:
    if config.sealed:
        raise api_error("JSStreamSealedErr", stream=config.name)


def _check_unsigned(stream: str, **values: int) -> None:
    """Refuse numbers that NATS's requests cannot carry: below 0, or too large for a stored sequence."""
    for name, value in values.items():
        if not 0 <= value < 1 << 63:
            err = f"{name} is {value}: give 0 or more, and less than 2**63"
            raise api_error("JSInvalidJSONErr", stream=stream, err=err)
