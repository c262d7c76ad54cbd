"""The checks of a publish with headers before anything is stored, in the order of nats-server 2.15.

If a message has several faults, the first is reported. A single publish: increment, stream, TTL, condition without a
sequence, sequences, schedule, source, last id, roll-up, and finally a missing increment. In a batch, whose messages a
server prepares together: increment, stream, TTL, duplicate, source, a missing increment, sequences, schedule, roll-up.
One difference is ours: a duplicate is acknowledged whatever sequence it expected, so that retries are harmless.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pelton.api import ApiError, api_error
from pelton.streams.counters import increment_of
from pelton.streams.publish_checks.conditions import (
    Expectations,
    check_in_batch,
    check_last_id,
    check_rollup_in_batch,
    check_sequences,
    check_source,
    check_stream,
    expectations,
)
from pelton.streams.publish_checks.options import StorageOptions, check_life, replacing, scheduled, with_life
from pelton.streams.publish_checks.target import AtomicBatch, Target

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
