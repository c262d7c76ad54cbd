"""What a publish with headers is held against before anything is stored, in the order of nats-server 2.15.

Where a message has several faults the first is told. Alone: increment, stream, life, condition without a sequence,
sequences, schedule, source, last id, roll-up, and last a missing increment. In a batch, whose messages a server
prepares together: increment, stream, life, duplicate, source, a missing increment, sequences, schedule, roll-up.
One thing is ours: a repeated publish is answered whatever sequence it expected, so that repeating is harmless.
"""

from __future__ import annotations

import re
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

_WISHES: Final = re.compile(rb"\nNats-(?:TTL|Schedule|Rollup)")


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
    asked, wishes = expectations(hdr), _WISHES.search(hdr) is not None
    if asked is not None and asked.stream:
        check_stream(stream, asked)
    if wishes:
        check_life(stream.config, hdr)
    if stream.batch is not None:
        return _member(stream, stream.batch, subject, hdr, now, asked, increment, wishes=wishes)
    duplicate = None
    if asked is not None:
        duplicate = _duplicate_of(stream, asked, now)
        if duplicate is None:
            check_sequences(stream, asked, subject)
    wish = scheduled(stream, subject, hdr, now) if wishes else None
    if asked is not None:
        if asked.source:
            check_source(asked)
        if duplicate is not None:
            return Judged(duplicate=duplicate)
        if asked.last_msg_id:
            check_last_id(stream, asked)
    if wish is not None:
        wish = with_life(stream.config, replacing(stream.config, wish), now)
    return _found(hdr, asked, wish, increment)


def _member(
    stream: Judge,
    batch: Batch,
    subject: str,
    hdr: bytes,
    now: int,
    asked: Expectations | None,
    increment: str,
    *,
    wishes: bool,
) -> Judged:
    """What follows for a message of a batch."""
    if asked is not None:
        if asked.msg_id and stream.known_id(asked.msg_id, now) is not None:
            raise api_error("JSAtomicPublishContainsDuplicateMessageErr")
        check_source(asked)
    if stream.counts and not increment:
        raise api_error("JSMessageIncrMissingErr")
    if asked is not None:
        batch.check(stream, asked, subject)
    wish = scheduled(stream, subject, hdr, now) if wishes else None
    if wish is not None:
        wish = with_life(stream.config, replacing(stream.config, wish), now)
        if wish.rollup:
            batch.check_rollup(wish.rollup, subject)
    return _found(hdr, asked, wish, increment)


def _found(hdr: bytes, asked: Expectations | None, wish: Wish | None, increment: str) -> Judged:
    msg_id = asked.msg_id if asked is not None else ""
    if wish is None or wish == Wish(hdr):
        return Judged(hdr, msg_id, None, increment)
    return Judged(wish.hdr, msg_id, wish, increment)


def _duplicate_of(stream: Judge, asked: Expectations, now: int) -> int | None:
    if asked.last_subject_seq is None and asked.last_subject_filter:
        raise api_error("JSStreamExpectedLastSeqPerSubjectInvalid")
    return stream.known_id(asked.msg_id, now) if asked.msg_id else None
