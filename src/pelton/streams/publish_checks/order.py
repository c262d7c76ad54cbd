"""The checks of a publish with headers before anything is stored, in the order of nats-server 2.15.

If a message has several faults, the first is reported. A single publish: increment, stream, TTL, condition without a
sequence, sequences, schedule, source, last id, roll-up, and finally a missing increment. In a batch, whose messages a
server prepares together: increment, stream, TTL, duplicate, source, a missing increment, sequences, schedule, roll-up.
One difference is ours: a duplicate is acknowledged whatever sequence it expected, so that retries are harmless.

**Publish conditions in headers: the message id and ``Nats-Expected-*`` (ADR-4, ADR-8).** This module parses them and
checks whether they hold; the order of the checks is in ``order.py``. A header without a value is ignored. A value that
is not a sequence equals none: as on nats-server, the error names the actual sequence.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pelton.api import ApiError, api_error, headers
from pelton.streams.counters import increment_of
from pelton.streams.publish_checks.options import StorageOptions, check_life, replacing, scheduled, with_life
from pelton.streams.publish_checks.target import AtomicBatch, Target
from pelton.subjects import is_filter

# Every ``Nats-`` header may ask for something, except these, which mark a republished message.
_ASKS: Final = re.compile(rb"\nNats-(?!(?:Stream|Subject|Sequence|Time-Stamp|Last-Sequence|Msg-Size):)")
_NO_SEQUENCE: Final = -1
_SEQUENCE_DIGITS: Final = 20


class Expectations(NamedTuple):
    """The conditions of one message; None or empty if not set."""

    msg_id: str = ""
    stream: str = ""
    last_msg_id: str = ""
    last_seq: int | None = None
    last_subject_seq: int | None = None
    last_subject_filter: str = ""
    source: str = ""


_NOTHING: Final = Expectations()


def is_bare(block: bytes | None) -> bool:
    """Whether a header block asks for nothing, so that its message is stored like one without headers."""
    return block is None or (len(block) <= headers.LARGEST and _ASKS.search(block) is None)


def expectations(block: bytes | None) -> Expectations | None:
    """Parse the conditions of an encoded header block; None if there are none.

    Raises ApiError 10097 for a block that is larger than any server accepts.
    """
    if block is None or is_bare(block):
        return None
    if len(block) > headers.LARGEST:
        raise api_error("JSStreamHeaderExceedsMaximumErr")
    found = Expectations(
        msg_id=headers.stored_text(block, headers.MSG_ID),
        stream=headers.asked(block, headers.EXPECTED_STREAM) or "",
        last_msg_id=headers.stored_text(block, headers.EXPECTED_LAST_MSG_ID),
        last_seq=_sequence(block, headers.EXPECTED_LAST_SEQUENCE),
        last_subject_seq=_sequence(block, headers.EXPECTED_LAST_SUBJECT_SEQUENCE),
        last_subject_filter=headers.asked(block, headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT) or "",
        source=headers.asked(block, headers.STREAM_SOURCE) or "",
    )
    return None if found == _NOTHING else found


def check_in_batch(target: Target, batch: AtomicBatch, asked: Expectations, subject: str) -> None:
    """Raise if a condition in an atomic batch fails, or refers to what the batch itself has written."""
    last = target.state.last
    if asked.last_seq is not None:
        if asked.last_seq != last:
            raise api_error("JSStreamWrongLastSequenceErrF", seq=last)
        if last != batch.base:
            raise api_error("JSStreamWrongLastSequenceConstantErr")
    if asked.last_subject_seq is None:
        if asked.last_subject_filter:
            raise api_error("JSStreamExpectedLastSeqPerSubjectInvalid")
        return
    wanted = asked.last_subject_filter or subject
    if wanted in batch.written:
        raise api_error("JSStreamWrongLastSequenceConstantErr")
    if batch.lasts[wanted] != asked.last_subject_seq:
        raise api_error("JSStreamWrongLastSequenceErrF", seq=batch.lasts[wanted])


def check_rollup_in_batch(batch: AtomicBatch, kind: str, subject: str) -> None:
    """Raise if a roll-up would remove messages of its own batch (10111)."""
    if batch.written if kind == "all" else subject in batch.written:
        raise api_error("JSStreamRollupFailedF", err=f"batch rollup {kind} invalid")


def check_stream(target: Target, asked: Expectations) -> None:
    """Raise if another stream is expected (10060)."""
    if asked.stream and asked.stream != target.state.name:
        raise api_error("JSStreamNotMatchErr")


def check_source(asked: Expectations) -> None:
    """Raise if a publish has the header ``Nats-Stream-Source`` (10227), which only sourced messages may have."""
    if asked.source:
        raise api_error("JSMessageSourceHdrNotAllowedErr")


def check_sequences(target: Target, asked: Expectations, subject: str) -> None:
    """Raise if a last sequence is not the expected one (10071)."""
    if asked.last_subject_seq is not None:
        last = last_expected_of(target, asked.last_subject_filter or subject)
        if last != asked.last_subject_seq:
            raise api_error("JSStreamWrongLastSequenceErrF", seq=last)
    if asked.last_seq is not None and asked.last_seq != target.state.last:
        raise api_error("JSStreamWrongLastSequenceErrF", seq=target.state.last)


def check_last_id(target: Target, asked: Expectations) -> None:
    """Raise if the last message id is not the expected one (10070)."""
    if asked.last_msg_id and asked.last_msg_id != (known := target.reader.last_id()):
        raise api_error("JSStreamWrongLastMsgIDErrF", id=known)


def last_expected_of(target: Target, subject_filter: str) -> int:
    """Return the last sequence of the subject or filter that a condition refers to."""
    return target.last_seq_of(subject_filter) if is_filter(subject_filter) else 0


def _sequence(block: bytes, name: str) -> int | None:
    text = headers.asked(block, name)
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= _SEQUENCE_DIGITS
    return int(text) if is_number else _NO_SEQUENCE


_OPTIONS: Final = re.compile(rb"\nNats-(?:TTL|Schedule|Rollup)")


class Checked(NamedTuple):
    """What a message that passed the checks asks for; ``duplicate`` is the sequence of its original."""

    hdr: bytes | None = None
    msg_id: str = ""
    options: StorageOptions | None = None
    increment: str = ""
    duplicate: int | None = None


def check_headers(target: Target, subject: str, hdr: bytes, data: bytes, now: int) -> Checked:
    """Check a header block, and return what it asks for. Raises ApiError."""
    increment = increment_of(hdr, data, counting=target.counts)
    asked, has_options = expectations(hdr), _OPTIONS.search(hdr) is not None
    if asked is not None and asked.stream:
        check_stream(target, asked)
    if has_options:
        check_life(target.state.config, hdr)
    if target.batch is not None:
        return _member(target, target.batch, subject, hdr, now, asked, increment, has_options=has_options)
    duplicate = None
    if asked is not None:
        duplicate = _duplicate_of(target, asked, now)
        try:
            check_sequences(target, asked, subject)
        except ApiError:
            if duplicate is None:
                raise
            return Checked(duplicate=duplicate)
    options = scheduled(target, subject, hdr, now) if has_options else None
    if asked is not None:
        if asked.source:
            check_source(asked)
        if duplicate is not None:
            return Checked(duplicate=duplicate)
        if asked.last_msg_id:
            check_last_id(target, asked)
    if options is not None:
        options = with_life(target.state.config, replacing(target.state.config, options), now)
    return _found(hdr, asked, options, increment)


def _member(
    target: Target,
    batch: AtomicBatch,
    subject: str,
    hdr: bytes,
    now: int,
    asked: Expectations | None,
    increment: str,
    *,
    has_options: bool,
) -> Checked:
    """Do the remaining checks for a message of a batch."""
    if asked is not None:
        if asked.msg_id and target.reader.known_id(asked.msg_id, now) is not None:
            raise api_error("JSAtomicPublishContainsDuplicateMessageErr")
        check_source(asked)
    if target.counts and not increment:
        raise api_error("JSMessageIncrMissingErr")
    if asked is not None:
        check_in_batch(target, batch, asked, subject)
    options = scheduled(target, subject, hdr, now) if has_options else None
    if options is not None:
        options = with_life(target.state.config, replacing(target.state.config, options), now)
        if options.rollup:
            check_rollup_in_batch(batch, options.rollup, subject)
    return _found(hdr, asked, options, increment)


def _found(hdr: bytes, asked: Expectations | None, options: StorageOptions | None, increment: str) -> Checked:
    msg_id = asked.msg_id if asked is not None else ""
    if options is None or options == StorageOptions(hdr):
        return Checked(hdr, msg_id, None, increment)
    return Checked(options.hdr, msg_id, options, increment)


def _duplicate_of(target: Target, asked: Expectations, now: int) -> int | None:
    if asked.last_subject_seq is None and asked.last_subject_filter:
        raise api_error("JSStreamExpectedLastSeqPerSubjectInvalid")
    return target.reader.known_id(asked.msg_id, now) if asked.msg_id else None
