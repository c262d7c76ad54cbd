"""Direct gets (ADR-31) inside one snapshot, with nats-server's semantics.

A damaged message is never returned and never hides the ones before it: a batch ends before it, and a read that starts
with it raises CorruptMessageError.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from pelton.api import (
    ConfigError,
    CorruptMessageError,
    DirectGet,
    DirectReply,
    PeltonError,
    StoredMessage,
    WireMessage,
    api_error,
    parse_rfc3339,
    rfc3339,
)
from pelton.api.direct import MAX_BYTES, MAX_SUBJECTS
from pelton.api.errors import from_reply
from pelton.storage import MessageRow, intact
from pelton.streams.filter_count import FilterCount
from pelton.streams.last_per_subject import last_of_each
from pelton.streams.log import StreamLog

_LARGEST: Final = (1 << 63) - 1
_SPANS: Final = 1000


def stored_message(row: MessageRow) -> StoredMessage:
    """Return an intact row as a message."""
    seq, ts, subject, hdr, data, _ = row
    return StoredMessage(subject, seq, ts, hdr or b"", data)


def wire_message(row: MessageRow) -> WireMessage:
    """Return an intact row as JSON carries it."""
    return WireMessage(subject=row.subject, seq=row.seq, hdrs=row.hdr or b"", data=row.data, time=rfc3339(row.ts))


class DirectReads:
    """Answers direct gets of one store, and caches their counts (``filter_count.py``)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._spans: dict[tuple[int, str], FilterCount] = {}

    def read(self, log: StreamLog, request: DirectGet) -> DirectReply:
        """Answer a request; raises ApiError, CorruptMessageError."""
        _check(log.name, request)
        if request.multi_last:
            return self._last_of_each(log, request)
        if request.batch and not request.last_by_subj:
            return self._batch(log, request)
        return DirectReply([self._intact(log, _row(log, request))])

    def _last_of_each(self, log: StreamLog, request: DirectGet) -> DirectReply:
        if request.up_to_seq > log.state.last and log.config.storage == "file":
            # As nats-server's file store.
            raise api_error("JSNoMessageFoundErr", stream=log.name)
        up_to = _up_to(log, request)
        found = last_of_each(log, request.multi_last, min(up_to, log.state.last), MAX_SUBJECTS)
        if not found:
            raise api_error("JSNoMessageFoundErr", stream=log.name)
        asked = [seq for seq in found if seq >= request.seq]
        wanted = asked[: request.batch] if request.batch > 0 else asked
        rows = (row for seq in wanted if (row := log.reader.get(seq)) is not None)
        messages = _taken(takewhile(intact, rows), request.max_bytes)
        if wanted and not messages:
            self._intact(log, log.reader.get(wanted[0]))
        last = messages[-1].seq if messages else 0
        return DirectReply(messages, len(asked) - len(messages), last, up_to)

    def _batch(self, log: StreamLog, request: DirectGet) -> DirectReply:
        span = self._span(log, request.next_by_subj)
        seq = _start(log, request)
        pending = span.pending(log, seq)
        if request.batch < 0:
            return DirectReply([], pending)
        rows = log.table.walk(max(seq, span.first), span.last, request.batch, span.condition)
        messages = _taken(rows, request.max_bytes)
        if not messages:
            self._intact(log, log.reader.next_row_of(seq, request.next_by_subj))
        last = messages[-1].seq
        span.passed(last, pending - len(messages))
        return DirectReply(messages, pending - len(messages), last)

    def _span(self, log: StreamLog, subject_filter: str) -> FilterCount:
        wanted = "" if subject_filter == ">" else subject_filter
        key = (log.id, wanted)
        span = self._spans.get(key)
        if span is None:
            if len(self._spans) >= _SPANS:
                self._spans.clear()
            span = self._spans[key] = FilterCount(wanted)
        span.refresh(log)
        return span

    def _intact(self, log: StreamLog, row: MessageRow | None) -> StoredMessage:
        if row is None:
            raise api_error("JSNoMessageFoundErr", stream=log.name)
        if not intact(row):
            raise CorruptMessageError(log.name, row.seq, self._path)
        return stored_message(row)


def _row(log: StreamLog, request: DirectGet) -> MessageRow | None:
    """Return the one row that a request asks for."""
    if request.last_by_subj:
        return log.reader.last_row_of(request.last_by_subj)
    seq = _start(log, request)
    if request.next_by_subj:
        return log.reader.next_row_of(seq, request.next_by_subj)
    return log.reader.next_row_of(seq, "") if request.start_time else log.reader.get(seq)


def _taken(rows: Iterable[MessageRow], max_bytes: int) -> list[StoredMessage]:
    """Return messages until they reach ``max_bytes``."""
    left = max_bytes or MAX_BYTES
    messages: list[StoredMessage] = []
    for seq, ts, subject, hdr, data, _ in rows:
        hdrs = hdr or b""
        messages.append(StoredMessage(subject, seq, ts, hdrs, data))
        left -= len(data) + len(hdrs) + (len(subject) if subject.isascii() else len(subject.encode()))
        if left <= 0:
            break
    return messages


def _start(log: StreamLog, request: DirectGet) -> int:
    if request.start_time:
        return log.reader.first_at(_time(log.name, request.start_time))
    return min(request.seq, _LARGEST)


def _up_to(log: StreamLog, request: DirectGet) -> int:
    """Return the last sequence to consider."""
    if request.up_to_time:
        return log.reader.first_at(_time(log.name, request.up_to_time)) - 1
    return request.up_to_seq or log.state.last


# --- checks of a request


def _refused(stream: str, text: str) -> PeltonError:
    return from_reply(408, 10003, text, stream=stream)


def _time(stream: str, text: str) -> int:
    try:
        return parse_rfc3339(text)
    except ConfigError:
        raise _refused(stream, "Malformed Request") from None


def _check(stream: str, request: DirectGet) -> None:
    """Raise BadRequestError for a request that asks for nothing, or for two things at once."""
    seq, last, following, time = request.seq, request.last_by_subj, request.next_by_subj, request.start_time
    many = bool(request.multi_last)
    if seq < 0 or request.up_to_seq < 0:
        raise _refused(stream, "Malformed Request")
    for text in (time, request.up_to_time):
        if text:
            _time(stream, text)
    if not (seq or last or following or time or many):
        raise _refused(stream, "Empty Request")
    if (
        (last and (seq or following or time or many or request.batch > 0))
        or (time and seq)
        or (following and many)
        or (request.up_to_seq and request.up_to_time)
    ):
        raise _refused(stream, "Bad Request")
