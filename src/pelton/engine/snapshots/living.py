"""Answers from a snapshot without what has expired, for a store that nobody here may clean up."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from pelton.api import (
    DirectGet,
    DirectReply,
    MsgGet,
    Request,
    StreamLastHeaders,
    StreamLastHeadersReply,
    api_error,
    parse_rfc3339,
)
from pelton.api.times import NEVER
from pelton.engine.session import Session
from pelton.engine.verbs.table import answer
from pelton.streams import DirectReads, StreamLog

R = TypeVar("R")


def living_answer(session: Session, request: Request[R]) -> R:
    """Answer a request that only asks. Raises ApiError."""
    if isinstance(request, MsgGet):
        return cast("R", _living_message(session, request))
    if isinstance(request, StreamLastHeaders):
        return cast("R", _living_heads(session, request))
    return answer(session, request)


def _living_message(session: Session, request: MsgGet) -> Any:
    while True:
        reply = answer(session, request)
        log, message, now = session.registry.stream(request.stream), reply.message, session.now()
        if not log.state.is_overdue(now) or not _has_expired(log, message.seq, parse_rfc3339(message.time), now):
            return reply
        if not (request.next_by_subj or request.start_time):
            raise api_error("JSNoMessageFoundErr", stream=request.stream, seq=request.seq)
        following = {"start_time": "", "next_by_subj": request.next_by_subj or ">"}
        request = msgspec.structs.replace(request, seq=message.seq + 1, **following)


def _living_heads(session: Session, request: StreamLastHeaders) -> StreamLastHeadersReply:
    while True:
        reply = answer(session, request)
        log, now = session.registry.stream(request.stream), session.now()
        if not reply.heads or not log.state.is_overdue(now):
            return reply
        living = tuple(
            head for head in reply.heads if not _has_expired(log, head.seq, log.table.time_of(head.seq), now)
        )
        if living:
            return StreamLastHeadersReply(heads=living)
        request = msgspec.structs.replace(request, after=reply.heads[-1].subject)


def living_messages(reads: DirectReads, log: StreamLog, request: DirectGet, now: int) -> DirectReply:
    """Answer a direct get. Raises ApiError, CorruptMessageError."""
    while True:
        reply = reads.read(log, request)
        if not reply.messages or not log.state.is_overdue(now):
            return reply
        living = [one for one in reply.messages if not _has_expired(log, one.seq, one.time_ns, now)]
        if living:
            return msgspec.structs.replace(reply, messages=living)
        if not (request.next_by_subj or request.start_time) or request.multi_last:
            raise api_error("JSNoMessageFoundErr", stream=log.name, seq=request.seq)
        following = {"start_time": "", "next_by_subj": request.next_by_subj or ">"}
        request = msgspec.structs.replace(request, seq=reply.messages[-1].seq + 1, **following)


def _has_expired(log: StreamLog, seq: int, ts: int | None, now: int) -> bool:
    """Whether a message is past its own TTL or its stream's ``max_age``."""
    due = log.state.timers.due_of(seq)
    if due is not None and due <= now:
        return True
    return due != NEVER and ts is not None and 0 < log.config.max_age.ns <= now - log.state.counts_from(seq, ts)
