"""Publish options in headers: a TTL, a schedule or its end, a roll-up (ADR-43, ADR-51).

They are parsed and checked before anything is stored. The order of the checks, and which values are ignored, are those
of nats-server 2.15.
"""

from __future__ import annotations

from datetime import tzinfo
from typing import Final, NamedTuple

from pelton.api import ApiError, StreamConfig, api_error, headers
from pelton.api.durations import parse_duration
from pelton.api.schedule import LATEST, Schedule, first_due, parse_schedule, parse_zone
from pelton.api.times import NEVER, SECOND
from pelton.streams.blocks import with_header, without_headers
from pelton.streams.publish_checks.rollup import rollup_of
from pelton.streams.publish_checks.target import Target
from pelton.subjects import is_subject, matches

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
    if _TTL in hdr and not config.allow_msg_ttl and _is_life(headers.asked(hdr, headers.TTL) or ""):
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
    text = headers.asked(options.hdr, headers.TTL) if _TTL in options.hdr else None
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
        hdr = with_header(without_headers(hdr, headers.TTL), headers.TTL, str(least))
    return options._replace(hdr=hdr, expires=expiry(least, now))


# --- schedules


def _schedule_options(target: Target, subject: str, hdr: bytes, now: int) -> StorageOptions:
    pattern = headers.asked(hdr, headers.SCHEDULE) or ""
    if not target.state.config.allow_msg_schedules and (pattern or not _is_zone(hdr)):
        raise api_error("JSMessageSchedulesDisabledErr")
    zone = zone_of(hdr)
    options = StorageOptions(hdr)
    if pattern:
        fires = _first_due(pattern, zone, now)
        _check_schedule(target, subject, hdr)
        options = options._replace(fires=fires)
        if not headers.asked(hdr, headers.ROLLUP):
            options = options._replace(hdr=with_header(hdr, headers.ROLLUP, _SUBJECT))
    return options._replace(ends=_ended(target, subject, hdr))


def zone_of(hdr: bytes) -> tzinfo | None:
    """Return the time zone that a block names, None if it names none; raises ApiError 10223."""
    name = headers.asked(hdr, headers.SCHEDULE_TIME_ZONE)
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
    return parse_schedule(headers.asked(hdr, headers.SCHEDULE) or "", zone_of(hdr))


def _first_due(pattern: str, zone: tzinfo | None, now: int) -> int:
    try:
        return first_due(parse_schedule(pattern, zone), now)
    except ValueError:
        raise api_error("JSMessageSchedulesPatternInvalidErr") from None


def _check_schedule(target: Target, subject: str, hdr: bytes) -> None:
    config = target.state.config
    if life := headers.asked(hdr, headers.SCHEDULE_TTL):
        try:
            seconds_of(life)
        except ValueError:
            raise api_error("JSMessageSchedulesTTLInvalidErr") from None
        if not config.allow_msg_ttl:
            raise api_error("JSMessageTTLDisabledErr")
    dest = headers.asked(hdr, headers.SCHEDULE_TARGET) or ""
    # A target that is renamed to the schedule's own subject would be removed with it, as on a NATS server.
    if dest == subject or not _is_ours(config, dest) or target.stored_subject(dest) == subject:
        raise api_error("JSMessageSchedulesTargetInvalidErr")
    if headers.asked(hdr, headers.SCHEDULE_ROLLUP) not in (None, "", _SUBJECT):
        raise api_error("JSMessageSchedulesRollupInvalidErr")
    if (headers.asked(hdr, headers.ROLLUP) or _SUBJECT).lower() != _SUBJECT:
        raise api_error("JSMessageSchedulesRollupInvalidErr")
    source = headers.asked(hdr, headers.SCHEDULE_SOURCE)
    if source and (source in (subject, dest) or not _is_ours(config, source)):
        raise api_error("JSMessageSchedulesSourceInvalidErr")


def _is_ours(config: StreamConfig, subject: str) -> bool:
    return is_subject(subject) and any(matches(mine, subject) for mine in config.subjects)


def _ended(target: Target, subject: str, hdr: bytes) -> str:
    """Return the subject whose schedule a message ends, or an empty text."""
    following = headers.asked(hdr, headers.SCHEDULE_NEXT) or ""
    scheduler = headers.asked(hdr, headers.SCHEDULER) or ""
    if not following and not scheduler:
        return ""
    if following != PURGE or scheduler == subject or not is_subject(scheduler):
        raise api_error("JSMessageSchedulesSchedulerInvalidErr")
    if not target.state.config.allow_msg_schedules:
        raise api_error("JSMessageSchedulesDisabledErr")
    if target.state.is_schedule(scheduler) is False:
        raise api_error("JSMessageSchedulesSchedulerInvalidErr")
    return scheduler
