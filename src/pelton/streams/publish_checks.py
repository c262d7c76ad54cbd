"""The checks of a publish with headers before anything is stored, in the order of nats-server 2.15.

If a message has several faults, the first is reported. A single publish: increment, stream, TTL, condition without a
sequence, sequences, schedule, source, last id, roll-up, and finally a missing increment. In a batch, whose messages a
server prepares together: increment, stream, TTL, duplicate, source, a missing increment, sequences, schedule, roll-up.
One difference is ours: a duplicate is acknowledged whatever sequence it expected, so that retries are harmless.

**Conditions: the message id and ``Nats-Expected-*`` (ADR-4, ADR-8).** A header without a value is ignored. A value that
is not a sequence equals none: as on nats-server, the error names the actual sequence.

**The headers of a message are read once** (:func:`fields_of`); what its conditions refer to is looked up for all
messages of a group together (``appender.py``).

**Options: a TTL, a schedule or its end, a roll-up (ADR-43, ADR-51)**, which replaces all earlier messages, of its
subject or of the whole stream. They are parsed and checked before anything is stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import tzinfo
from functools import lru_cache
from operator import methodcaller
from typing import Final, Protocol

import msgspec

from pelton.api import ApiError, StreamConfig, api_error, headers
from pelton.api.errors import MAXIMUM_BYTES, MAXIMUM_MESSAGES, MAXIMUM_MESSAGES_PER_SUBJECT
from pelton.api.json_values import quote_text, whole
from pelton.api.schedule import LATEST, Schedule, first_due, parse_schedule, parse_zone
from pelton.api.times import NEVER, SECOND, parse_duration
from pelton.streams.counters import increment_of
from pelton.streams.reader import Reader
from pelton.streams.state import StreamState
from pelton.subjects import is_subject


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
    """``batch`` is set while an atomic batch is stored; ``counts`` tells whether its subjects are counters.

    ``last`` is the stream's last sequence, ``last_seq_of`` that of what a filter matches, 0 if there is none.
    """

    @property
    def state(self) -> StreamState: ...
    @property
    def reader(self) -> Reader: ...
    @property
    def batch(self) -> AtomicBatch | None: ...
    @property
    def counts(self) -> bool: ...
    @property
    def last(self) -> int: ...

    def takes(self, subject: str) -> bool: ...
    def stored_subject(self, subject: str) -> str: ...
    def last_seq_of(self, subject_filter: str) -> int: ...
    def is_schedule(self, subject: str) -> bool | None: ...
    def last_id(self) -> str: ...
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


Fields = dict[str, str]
"""The first value of each header of a message whose name begins with ``Nats-``."""

_KINDS: Final = frozenset({"sub", "all"})


def fields_of(block: bytes) -> Fields:
    """Return what an encoded header block may ask for."""
    fields: Fields = {}
    for line in block.decode("utf-8", "surrogateescape").split("\r\n"):
        if line.startswith("Nats-"):
            name, colon, value = line.partition(":")
            if colon and name not in fields:
                fields[name] = value.lstrip(" ")
    return fields


def rollup_of(text: str, config: StreamConfig) -> str:
    """Return what the roll-up header of a message asks to replace: ``sub``, ``all``, or "" for nothing.

    Raises ApiError (10111) if the stream does not allow it, or for any other value.
    """
    if not text:
        return ""
    # As Go lowers a text: a byte that is no UTF-8 becomes the character for that.
    kind = text if text in _KINDS else whole(text).lower()
    if not config.allow_rollup_hdrs:
        raise _rollup_error("rollup not permitted", config.name)
    if kind not in _KINDS:
        raise _rollup_error(f"rollup value invalid: {quote_text(kind)}", config.name)
    return kind


def _rollup_error(text: str, stream: str) -> ApiError:
    return api_error("JSStreamRollupFailedF", stream=stream, err=text)


PURGE: Final = "purge"
_LONGEST: Final = (1 << 63) - 1
_SUBJECT: Final = "sub"
_ROLLED_UP: Final = f"{headers.ROLLUP}: {_SUBJECT}\r\n\r\n".encode()


class StorageOptions(msgspec.Struct, gc=False):
    """The header block to store, when it expires, when it first fires, the subject whose schedule it ends.

    ``rollup`` is what it replaces: ``sub``, ``all`` or nothing.
    """

    hdr: bytes
    expires: int | None = None
    fires: int | None = None
    ends: str = ""
    rollup: str = ""


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


def _limit_life(config: StreamConfig, options: StorageOptions, text: str, now: int) -> None:
    try:
        seconds = seconds_of(text)
    except ValueError:
        raise api_error("JSMessageTTLInvalidErr") from None
    least = lifted(config, seconds)
    if least != seconds:
        options.hdr = headers.with_value(headers.without_headers(options.hdr, headers.TTL), headers.TTL, str(least))
    options.expires = expiry(least, now)


# --- schedules


def scheduled(target: Target, subject: str, hdr: bytes, asked: Asked, now: int) -> StorageOptions:
    """Return the schedule options of a message; a schedule gets a roll-up. Raises ApiError if they are invalid."""
    rest, fires = asked.rest or {}, None
    if not target.state.config.allow_msg_schedules and (asked.schedule or not _is_zone(rest)):
        raise api_error("JSMessageSchedulesDisabledErr")
    zone = zone_of(rest) if rest else None
    if asked.schedule:
        fires, dest = _first_due(asked.schedule, zone, now), asked.target
        if rest:
            _check_schedule_life(target.state.config, rest)
        # A target that is renamed to the schedule's own subject would be removed with it, as on a NATS server.
        if dest == subject or not target.takes(dest) or target.stored_subject(dest) == subject:
            raise api_error("JSMessageSchedulesTargetInvalidErr")
        if rest:
            _check_schedule_extras(target, subject, dest, rest)
        if not rest.get(headers.ROLLUP):
            hdr = hdr[:-2] + _ROLLED_UP
    return StorageOptions(hdr, None, fires, _ends_schedule_of(target, subject, rest) if rest else "")


def zone_of(fields: Fields) -> tzinfo | None:
    """Return the time zone that headers name, None if they name none; raises ApiError 10223."""
    name = fields.get(headers.SCHEDULE_TIME_ZONE)
    if name is None:
        return None
    try:
        return parse_zone(name)
    except ValueError:
        raise api_error("JSMessageSchedulesTimeZoneInvalidErr") from None


def _is_zone(fields: Fields) -> bool:
    try:
        zone_of(fields)
    except ApiError:
        return False
    return True


def schedule_of(hdr: bytes) -> Schedule:
    """Return the schedule that a stored block holds. Raises ApiError, ValueError."""
    fields = fields_of(hdr)
    return parse_schedule(fields.get(headers.SCHEDULE, ""), zone_of(fields))


@lru_cache(16)
def _due_at(pattern: str) -> int:
    """Return when a schedule that names a time fires; those of messages that are stored together are often the same."""
    return first_due(parse_schedule(pattern), 0)


def _first_due(pattern: str, zone: tzinfo | None, now: int) -> int:
    try:
        if zone is None and pattern.startswith("@at "):
            return _due_at(pattern)
        return first_due(parse_schedule(pattern, zone), now)
    except ValueError:
        raise api_error("JSMessageSchedulesPatternInvalidErr") from None


def _check_schedule_life(config: StreamConfig, fields: Fields) -> None:
    if life := fields.get(headers.SCHEDULE_TTL):
        try:
            seconds_of(life)
        except ValueError:
            raise api_error("JSMessageSchedulesTTLInvalidErr") from None
        if not config.allow_msg_ttl:
            raise api_error("JSMessageTTLDisabledErr")


def _check_schedule_extras(target: Target, subject: str, dest: str, fields: Fields) -> None:
    if fields.get(headers.SCHEDULE_ROLLUP) not in (None, "", _SUBJECT):
        raise api_error("JSMessageSchedulesRollupInvalidErr")
    if (fields.get(headers.ROLLUP) or _SUBJECT).lower() != _SUBJECT:
        raise api_error("JSMessageSchedulesRollupInvalidErr")
    source = fields.get(headers.SCHEDULE_SOURCE)
    if source and (source in (subject, dest) or not target.takes(source)):
        raise api_error("JSMessageSchedulesSourceInvalidErr")


def _ends_schedule_of(target: Target, subject: str, fields: Fields) -> str:
    """Return the subject whose schedule a message ends, or an empty text."""
    following = fields.get(headers.SCHEDULE_NEXT, "")
    scheduler = fields.get(headers.SCHEDULER, "")
    if not following and not scheduler:
        return ""
    if following != PURGE or scheduler == subject or not is_subject(scheduler):
        raise api_error("JSMessageSchedulesSchedulerInvalidErr")
    if not target.state.config.allow_msg_schedules:
        raise api_error("JSMessageSchedulesDisabledErr")
    if target.is_schedule(scheduler) is False:
        raise api_error("JSMessageSchedulesSchedulerInvalidErr")
    return scheduler


# Every ``Nats-`` header may ask for something, except these, which mark a republished message.
_ASKS: Final = re.compile(rb"\nNats-(?!(?:Stream|Subject|Sequence|Time-Stamp|Last-Sequence|Msg-Size):)")
_IS_OPTION: Final = methodcaller("startswith", (headers.TTL, "Nats-Schedule", headers.ROLLUP))
_NO_SEQUENCE: Final = -1
_SEQUENCE_DIGITS: Final = 20


def is_bare(block: bytes | None) -> bool:
    """Whether a header block asks for nothing, so that its message is stored like one without headers."""
    return block is None or (len(block) <= headers.LARGEST and _ASKS.search(block) is None)


# Most blocks that ask for something hold nothing but these, which are found at once.
_USUAL: Final = re.compile(
    r"NATS/1\.0\r\n"
    rf"(?:{headers.SCHEDULE}: (@at [0-9TZ:.+-]+)\r\n{headers.SCHEDULE_TARGET}: ([!-~]+)\r\n"
    rf"(?:{headers.DELAY}: [0-9a-z.]+\r\n)?)?"
    rf"(?:{headers.EXPECTED_LAST_SUBJECT_SEQUENCE}: ([0-9]{{1,18}})\r\n"
    rf"{headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT}: ([!-~]+)\r\n)?"
    rf"(?:{headers.MSG_ID}: ([!-~]+)\r\n)?\r\n"
)
_USUAL_LENGTH: Final = 1_024


class Asked(msgspec.Struct, gc=False):
    """What the headers of a message ask for, read once; empty or None if they do not.

    ``expected`` is the last sequence of the subjects that ``where`` matches, or else of its own; ``schedule`` is for
    messages on ``target``. ``rest`` are all headers, if there are others than these.
    """

    msg_id: str = ""
    expected: int | None = None
    where: str = ""
    schedule: str = ""
    target: str = ""
    rest: Fields | None = None


def asked_by(block: bytes | None) -> Asked | None:
    """Return what a header block asks for, None for nothing."""
    if block is None:
        return None
    if len(block) <= _USUAL_LENGTH and block.isascii() and (found := _USUAL.fullmatch(block.decode("ascii"))):
        schedule, dest, digits, of, name = found.groups("")
        if digits or schedule or name:
            return Asked(name, int(digits) if digits else None, of, schedule, dest)
        return None
    if is_bare(block):
        return None
    fields = fields_of(block)
    msg_id, text = fields.get(headers.MSG_ID), fields.get(headers.EXPECTED_LAST_SUBJECT_SEQUENCE)
    where = fields.get(headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT)
    read = (msg_id is not None) + (text is not None) + (where is not None)
    rest = fields if len(fields) > read or len(block) > headers.LARGEST else None
    schedule, dest = fields.get(headers.SCHEDULE, ""), fields.get(headers.SCHEDULE_TARGET, "")
    id_text = headers.as_storable(msg_id) if msg_id else ""
    return Asked(id_text, _sequence(text), where or "", schedule, dest, rest)


def _sequence(text: str | None) -> int | None:
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= _SEQUENCE_DIGITS
    return int(text) if is_number else _NO_SEQUENCE


class Checked(msgspec.Struct, gc=False):
    """What a message that passed the checks asks for; ``duplicate`` is the sequence of its original."""

    hdr: bytes | None = None
    options: StorageOptions | None = None
    increment: str = ""
    duplicate: int | None = None


def check_headers(target: Target, subject: str, hdr: bytes, asked: Asked, data: bytes, now: int) -> Checked:
    """Check a header block, which asks for this, and return what is to be stored. Raises ApiError."""
    rest, batch = asked.rest, target.batch
    increment = "" if rest is None else _check_alone(target, hdr, rest, data)
    duplicate = target.reader.known_id(asked.msg_id, now) if asked.msg_id else None
    if batch is not None:
        _check_member(target, batch, asked, subject, duplicate, increment)
    else:
        if asked.where and asked.expected is None:
            raise api_error("JSStreamExpectedLastSeqPerSubjectInvalid")
        try:
            if asked.expected is not None or rest is not None:
                _check_sequences(target, asked, subject)
        except ApiError:
            if duplicate is None:
                raise
            return Checked(duplicate=duplicate)
    options = None
    if asked.schedule or (rest is not None and any(map(_IS_OPTION, rest))):
        options = scheduled(target, subject, hdr, asked, now)
    if rest is not None:
        _check_source(rest)
        if duplicate is None and batch is None:
            _check_last_id(target, rest)
    if duplicate is None and options is not None:
        _add_rollup_and_life(target, options, rest, subject, now)
        hdr = options.hdr
    return Checked(hdr, options, increment, duplicate)


def _check_alone(target: Target, hdr: bytes, fields: Fields, data: bytes) -> str:
    """Check what depends on no message of the stream; return the increment of a counter."""
    config = target.state.config
    increment = increment_of(fields, data, counting=target.counts) if headers.INCREMENT in fields else ""
    if len(hdr) > headers.LARGEST:
        raise api_error("JSStreamHeaderExceedsMaximumErr")
    if (stream := fields.get(headers.EXPECTED_STREAM)) and stream != config.name:
        raise api_error("JSStreamNotMatchErr")
    if headers.TTL in fields and not config.allow_msg_ttl and _is_life(fields[headers.TTL]):
        raise api_error("JSMessageTTLDisabledErr")
    return increment


def _check_member(
    target: Target, batch: AtomicBatch, asked: Asked, subject: str, duplicate: int | None, increment: str
) -> None:
    """Check what a message of an atomic batch expects: a condition may not refer to what the batch has written."""
    if duplicate is not None:
        raise api_error("JSAtomicPublishContainsDuplicateMessageErr")
    if asked.rest is not None:
        _check_source(asked.rest)
    if target.counts and not increment:
        raise api_error("JSMessageIncrMissingErr")
    last = target.last
    expected = None if asked.rest is None else _sequence(asked.rest.get(headers.EXPECTED_LAST_SEQUENCE))
    if expected is not None:
        if expected != last:
            raise api_error("JSStreamWrongLastSequenceErrF", seq=last)
        if last != batch.base:
            raise api_error("JSStreamWrongLastSequenceConstantErr")
    if asked.expected is None:
        if asked.where:
            raise api_error("JSStreamExpectedLastSeqPerSubjectInvalid")
        return
    wanted = asked.where or subject
    if wanted in batch.written:
        raise api_error("JSStreamWrongLastSequenceConstantErr")
    if batch.lasts[wanted] != asked.expected:
        raise api_error("JSStreamWrongLastSequenceErrF", seq=batch.lasts[wanted])


def _check_sequences(target: Target, asked: Asked, subject: str) -> None:
    """Raise if a last sequence is not the expected one (10071)."""
    if asked.expected is not None and (last := target.last_seq_of(asked.where or subject)) != asked.expected:
        raise api_error("JSStreamWrongLastSequenceErrF", seq=last)
    if asked.rest is None or headers.EXPECTED_LAST_SEQUENCE not in asked.rest:
        return
    expected = _sequence(asked.rest[headers.EXPECTED_LAST_SEQUENCE])
    if expected is not None and expected != target.last:
        raise api_error("JSStreamWrongLastSequenceErrF", seq=target.last)


def _check_source(fields: Fields) -> None:
    """Raise if a publish has the header ``Nats-Stream-Source`` (10227), which only sourced messages may have."""
    if fields.get(headers.STREAM_SOURCE):
        raise api_error("JSMessageSourceHdrNotAllowedErr")


def _check_last_id(target: Target, fields: Fields) -> None:
    """Raise if the last message id is not the expected one (10070)."""
    expected = fields.get(headers.EXPECTED_LAST_MSG_ID)
    if expected and headers.as_storable(expected) != (known := target.last_id()):
        raise api_error("JSStreamWrongLastMsgIDErrF", id=known)


def _add_rollup_and_life(
    target: Target, options: StorageOptions, fields: Fields | None, subject: str, now: int
) -> None:
    """Add what a message replaces, and when it expires. Raises ApiError (10111, 10165)."""
    config, batch = target.state.config, target.batch
    asked = fields.get(headers.ROLLUP) if fields else None
    if asked is None and options.fires is not None:
        asked = _SUBJECT
    options.rollup = rollup = rollup_of(asked or "", config)
    if fields and (text := fields.get(headers.TTL)):
        _limit_life(config, options, text, now)
    if rollup and batch is not None and (batch.written if rollup == "all" else subject in batch.written):
        # It would remove messages of its own batch.
        raise api_error("JSStreamRollupFailedF", err=f"batch rollup {rollup} invalid")
