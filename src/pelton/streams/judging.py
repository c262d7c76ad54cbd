"""What a publish with headers is held against before anything is stored, in the order of nats-server 2.15.

Where a message has several faults the first is told. Alone: increment, stream, life, condition without a sequence,
sequences, schedule, source, last id, roll-up, and last a missing increment. In a batch, whose messages a server
prepares together: increment, stream, life, duplicate, source, a missing increment, sequences, schedule, roll-up.
One thing is ours: a repeated publish is answered whatever sequence it expected, so that repeating is harmless.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from pelton.api import api_error
from pelton.streams.counters import increment_of
from pelton.streams.expect import (
    Batch,
    Expectations,
    Known,
    check_last_id,
    check_sequences,
    check_source,
    check_stream,
    expectations,
)
from pelton.streams.wishes import Holder, Wish, check_life, replacing, scheduled, with_life

_MARK: Final = b"Nats-"


class Judge(Known, Holder, Protocol):
    """The stream that is published to."""

    batch: Batch | None

    @property
    def counts(self) -> bool: ...


class Judged(NamedTuple):
    """What a message asks for, once nothing speaks against it; ``duplicate`` is the sequence of its original."""

    hdr: bytes | None = None
    msg_id: str = ""
    wish: Wish | None = None
    increment: str = ""
    duplicate: int | None = None


def judged(stream: Judge, subject: str, hdr: bytes, data: bytes, now: int) -> Judged:
    """Return what a header block asks for. Raises ApiError."""
    increment = increment_of(hdr, data, counting=stream.counts)
    asked = expectations(hdr)
    if asked is None and _MARK not in hdr:
        return Judged(hdr)
    if asked is not None:
        check_stream(stream, asked)
    check_life(stream.config, hdr)
    batch = stream.batch
    if batch is not None:
        _check_member(stream, asked, increment, now)
        if asked is not None:
            batch.check(stream, asked, subject)
        duplicate, wish = None, scheduled(stream, subject, hdr, now)
    else:
        duplicate = _duplicate_of(stream, asked, now)
        if asked is not None and duplicate is None:
            check_sequences(stream, asked, subject)
        wish = scheduled(stream, subject, hdr, now)
        if asked is not None:
            check_source(asked)
            if duplicate is not None:
                return Judged(duplicate=duplicate)
            check_last_id(stream, asked)
    wish = with_life(stream.config, replacing(stream.config, wish), now)
    if batch is not None and wish.rollup:
        batch.check_rollup(wish.rollup, subject)
    msg_id = asked.msg_id if asked is not None else ""
    return Judged(wish.hdr, msg_id, None if wish == Wish(hdr) else wish, increment)


def _duplicate_of(stream: Judge, asked: Expectations | None, now: int) -> int | None:
    if asked is None:
        return None
    if asked.last_subject_seq is None and asked.last_subject_filter:
        raise api_error("JSStreamExpectedLastSeqPerSubjectInvalid")
    return stream.known_id(asked.msg_id, now) if asked.msg_id else None


def _check_member(stream: Judge, asked: Expectations | None, increment: str, now: int) -> None:
    if asked is not None:
        if asked.msg_id and stream.known_id(asked.msg_id, now) is not None:
            raise api_error("JSAtomicPublishContainsDuplicateMessageErr")
        check_source(asked)
    if stream.counts and not increment:
        raise api_error("JSMessageIncrMissingErr")
