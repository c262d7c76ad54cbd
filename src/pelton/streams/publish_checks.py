"""The checks of a publish with headers before anything is stored, in the order of nats-server 2.15.

If a message has several faults, the first is reported. A single publish: increment, stream, TTL, condition without a
sequence, sequences, schedule, source, last id, roll-up, and finally a missing increment. In a batch, whose messages a
server prepares together: increment, stream, TTL, duplicate, source, a missing increment, sequences, schedule, roll-up.
One difference is ours: a duplicate is acknowledged whatever sequence it expected, so that retries are harmless.

**Conditions: the message id and ``Nats-Expected-*`` (ADR-4, ADR-8).** A header without a value is ignored. A value that
is not a sequence equals none: as on nats-server, the error names the actual sequence.

**Options: a TTL, a schedule or its end, a roll-up (ADR-43, ADR-51)**, which replaces all earlier messages, of its
subject or of the whole stream. They are parsed and checked before anything is stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import tzinfo
from typing import Final, NamedTuple, Protocol

from pelton.api import ApiError, StreamConfig, api_error, headers
from pelton.api.errors import MAXIMUM_BYTES, MAXIMUM_MESSAGES, MAXIMUM_MESSAGES_PER_SUBJECT
from pelton.api.json_values import quote_text, whole
from pelton.api.schedule import LATEST, Schedule, first_due, parse_schedule, parse_zone
from pelton.api.times import NEVER, SECOND, parse_duration
from pelton.streams.counters import increment_of
from pelton.streams.reader import Reader
from pelton.streams.state import StreamState
from pelton.subjects import is_filter, is_subject, matches


class AtomicBatch:
    """A batch that is stored as one (ADR-50): its conditions refer to the stream before it.

    ``base`` is the stream's last sequence before it, ``lasts`` holds that of each subject or filter with a condition,
    and ``written`` the subjects that the batch has written so far.
    """

    def __init__(self, base: int, lasts: Mapping[str, int]) -> None:
        self.base = base
        self.lasts = lasts
        self.written: set[str] = set()


class Target(Protocol):
    """``batch`` is set while an atomic batch is stored; ``counts`` tells whether its subjects are counters."""

    @property
    def state(self) -> StreamState: ...
    @property
    def reader(self) -> Reader: ...
    @property
    def batch(self) -> AtomicBatch | None: ...
    @property
    def counts(self) -> bool: ...

    def stored_subject(self, subject: str) -> str: ...
    def last_seq_of(self, subject_filter: str) -> int: ...
    def flush(self) -> None: ...


def check_capacity(target: Target, subject: str, size: int, *, replaces: bool) -> None:
    """Raise ApiError (10077) if a message does not fit; the limit per subject is reported first.

    The limit per subject does not apply to a message that ``replaces`` others of its subject; if it does not fit before
    they are removed, it is refused like any other, as on a NATS server.
    """
    config = target.state.config
    full = _is_full(target, subject)
    if full and config.discard_new_per_subject and not replaces:
        raise _no_room(MAXIMUM_MESSAGES_PER_SUBJECT)
    if not (0 < config.max_msgs <= target.state.msgs or 0 < config.max_bytes < target.state.bytes + size):
        return
    if config.max_msgs_per_subject > 0 and target.state.dirty:
        # Messages that newer ones of their subject have replaced still count until they are trimmed.
        target.flush()
        full = _is_full(target, subject)
    if 0 < config.max_msgs <= target.state.msgs and not full:
        raise _no_room(MAXIMUM_MESSAGES)
    if 0 < config.max_bytes < target.state.bytes + size and not (full and _makes_room(target, subject, size)):
        raise _no_room(MAXIMUM_BYTES)


def _is_full(target: Target, subject: str) -> bool:
    limit = target.state.config.max_msgs_per_subject
    return limit > 0 and target.state.subject_row(subject).msgs >= limit


def _makes_room(target: Target, subject: str, size: int) -> bool:
    """Whether the oldest message of a full subject makes room for one of ``size`` bytes."""
    row = target.reader.next_row_of(target.state.subject_row(subject).first, subject)
    if row is None:
        return False
    return size <= target.state.size_of(subject, row.hdr, row.data)


def _no_room(text: str) -> ApiError:
    return api_error("JSStreamStoreFailedF", err=text)


_HEADER: Final = headers.ROLLUP.encode() + b":"
_KINDS: Final = frozenset({"sub", "all"})


def rollup_of(block: bytes, config: StreamConfig) -> str:
    """Return what an encoded header block asks to replace: ``sub``, ``all``, or "" for nothing.

    Raises ApiError (10111) if the stream does not allow it, or for any other value.
    """
    if _HEADER not in block:
        return ""
    # As Go lowers a text: a byte that is no UTF-8 becomes the character for that.
    kind = whole(headers.first_value(block, headers.ROLLUP) or "").lower()
    if not kind:
        return ""
    if not config.allow_rollup_hdrs:
        raise _failed("rollup not permitted", config.name)
    if kind not in _KINDS:
        raise _failed(f"rollup value invalid: {quote_text(kind)}", config.name)
    return kind


def _failed(text: str, stream: str) -> ApiError:
    return api_error("JSStreamRollupFailedF", stream=stream, err=text)


PURGE: Final = "purge"
_LONGEST: Final = (1 << 63) - 1
_SUBJECT: Final = "sub"
_TTL: Final = headers.TTL.encode()
_SCHEDULE: Final = b"Nats-Schedule"


class StorageOptions(NamedTuple):
    """The header block to store, when it expires, when it first fires, the subject whose schedule it ends.

    ``rollup`` is what it replaces: ``sub``, ``all`` or nothing.
    """

    hdr: bytes
    expires: int | None = None
    fires: int | None = None
    ends: str = ""
    rollup: str = ""


def check_life(config: StreamConfig, hdr: bytes) -> None:
    """Raise if a message has a TTL, and its stream does not allow TTLs (10166)."""
    if _TTL in hdr and not config.allow_msg_ttl and _is_life(headers.first_value(hdr, headers.TTL) or ""):
        raise api_error("JSMessageTTLDisabledErr")


def scheduled(target: Target, subject: str, hdr: bytes, now: int) -> StorageOptions:
    """Return the schedule options of a header block. Raises ApiError if they are invalid."""
    return _schedule_options(target, subject, hdr, now) if _SCHEDULE in hdr else StorageOptions(hdr)


def replacing(config: StreamConfig, options: StorageOptions) -> StorageOptions:
    """Add the roll-up. Raises ApiError (10111)."""
    rollup = rollup_of(options.hdr, config)
    return options._replace(rollup=rollup) if rollup else options


def with_life(config: StreamConfig, options: StorageOptions, now: int) -> StorageOptions:
    """Add when the message expires. Raises ApiError (10165)."""
    text = headers.first_value(options.hdr, headers.TTL) if _TTL in options.hdr else None
    return _lifetime(config, options, text, now) if text else options


# --- TTLs


def seconds_of(text: str) -> int | None:
    """Return a TTL in whole seconds, None for ``never``; raises ValueError if it is invalid, too short or too long."""
    if text.lower() == "never":
        return None
    seconds = int(text) if text.isascii() and text.isdigit() else parse_duration(text) // SECOND
    if not 1 <= seconds <= _LONGEST:
        raise ValueError(f"a time to live of {text!r} is too short, or too long: at least 1s, at most {_LONGEST} s")
    return seconds


def _is_life(text: str) -> bool:
    """Whether nats-server takes a text for a TTL; one of too many digits it may take for another number."""
    try:
        if text.isascii() and text.isdigit() and len(text) > len(str(_LONGEST)):
            return int(text) % (1 << 64) < 1 << 63
        seconds_of(text)
    except ValueError:
        return False
    return True


def expiry(seconds: int | None, now: int) -> int:
    """Return when a message that is stored at ``now`` expires; :data:`NEVER` if not even ``max_age`` applies."""
    return NEVER if seconds is None else min(now + seconds * SECOND, LATEST)


def lifted(config: StreamConfig, seconds: int | None) -> int | None:
    """Return a message's TTL in seconds, raised to that of the stream's delete markers if it is shorter (ADR-43).

    As on a NATS server, this does not apply to streams that keep one message per subject.
    """
    least = config.subject_delete_marker_ttl.ns // SECOND
    return least if seconds is not None and seconds < least and config.max_msgs_per_subject != 1 else seconds


def _lifetime(config: StreamConfig, options: StorageOptions, text: str, now: int) -> StorageOptions:
    try:
        seconds = seconds_of(text)
    except ValueError:
        raise api_error("JSMessageTTLInvalidErr") from None
    least = lifted(config, seconds)
    hdr = options.hdr
    if least != seconds:
        hdr = headers.with_value(headers.without_headers(hdr, headers.TTL), headers.TTL, str(least))
    return options._replace(hdr=hdr, expires=expiry(least, now))


# --- schedules


def _schedule_options(target: Target, subject: str, hdr: bytes, now: int) -> StorageOptions:
    pattern = headers.first_value(hdr, headers.SCHEDULE) or ""
    if not target.state.config.allow_msg_schedules and (pattern or not _is_zone(hdr)):
        raise api_error("JSMessageSchedulesDisabledErr")
    zone = zone_of(hdr)
    options = StorageOptions(hdr)
    if pattern:
        fires = _first_due(pattern, zone, now)
        _check_schedule(target, subject, hdr)
        options = options._replace(fires=fires)
        if not headers.first_value(hdr, headers.ROLLUP):
            options = options._replace(hdr=headers.with_value(hdr, headers.ROLLUP, _SUBJECT))
    return options._replace(ends=_ended(target, subject, hdr))


def zone_of(hdr: bytes) -> tzinfo | None:
    """Return the time zone that a block names, None if it names none; raises ApiError 10223."""
    name = headers.first_value(hdr, headers.SCHEDULE_TIME_ZONE)
    if name is None:
        return None
    try:
        return parse_zone(name)
    except ValueError:
        raise api_error("JSMessageSchedulesTimeZoneInvalidErr") from None


def _is_zone(hdr: bytes) -> bool:
    try:
        zone_of(hdr)
    except ApiError:
        return False
    return True


def schedule_of(hdr: bytes) -> Schedule:
    """Return the schedule that a stored block holds. Raises ApiError, ValueError."""
    return parse_schedule(headers.first_value(hdr, headers.SCHEDULE) or "", zone_of(hdr))


def _first_due(pattern: str, zone: tzinfo | None, now: int) -> int:
    try:
        return first_due(parse_schedule(pattern, zone), now)
    except ValueError:
        raise api_error("JSMessageSchedulesPatternInvalidErr") from None


def _check_schedule(target: Target, subject: str, hdr: bytes) -> None:
    config = target.state.config
    if life := headers.first_value(hdr, headers.SCHEDULE_TTL):
        try:
            seconds_of(life)
        except ValueError:
            raise api_error("JSMessageSchedulesTTLInvalidErr") from None
        if not config.allow_msg_ttl:
            raise api_error("JSMessageTTLDisabledErr")
    dest = headers.first_value(hdr, headers.SCHEDULE_TARGET) or ""
    # A target that is renamed to the schedule's own subject would be removed with it, as on a NATS server.
    if dest == subject or not _is_ours(config, dest) or target.stored_subject(dest) == subject:
        raise api_error("JSMessageSchedulesTargetInvalidErr")
    if headers.first_value(hdr, headers.SCHEDULE_ROLLUP) not in (None, "", _SUBJECT):
        raise api_error("JSMessageSchedulesRollupInvalidErr")
    if (headers.first_value(hdr, headers.ROLLUP) or _SUBJECT).lower() != _SUBJECT:
        raise api_error("JSMessageSchedulesRollupInvalidErr")
    source = headers.first_value(hdr, headers.SCHEDULE_SOURCE)
    if source and (source in (subject, dest) or not _is_ours(config, source)):
        raise api_error("JSMessageSchedulesSourceInvalidErr")


def _is_ours(config: StreamConfig, subject: str) -> bool:
    return is_subject(subject) and any(matches(mine, subject) for mine in config.subjects)


def _ended(target: Target, subject: str, hdr: bytes) -> str:
    """Return the subject whose schedule a message ends, or an empty text."""
    following = headers.first_value(hdr, headers.SCHEDULE_NEXT) or ""
    scheduler = headers.first_value(hdr, headers.SCHEDULER) or ""
    if not following and not scheduler:
        return ""
    if following != PURGE or scheduler == subject or not is_subject(scheduler):
        raise api_error("JSMessageSchedulesSchedulerInvalidErr")
    if not target.state.config.allow_msg_schedules:
        raise api_error("JSMessageSchedulesDisabledErr")
    if target.state.is_schedule(scheduler) is False:
        raise api_error("JSMessageSchedulesSchedulerInvalidErr")
    return scheduler


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
        stream=headers.first_value(block, headers.EXPECTED_STREAM) or "",
        last_msg_id=headers.stored_text(block, headers.EXPECTED_LAST_MSG_ID),
        last_seq=_sequence(block, headers.EXPECTED_LAST_SEQUENCE),
        last_subject_seq=_sequence(block, headers.EXPECTED_LAST_SUBJECT_SEQUENCE),
        last_subject_filter=headers.first_value(block, headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT) or "",
        source=headers.first_value(block, headers.STREAM_SOURCE) or "",
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
    text = headers.first_value(block, name)
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
