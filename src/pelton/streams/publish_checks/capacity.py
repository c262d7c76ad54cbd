"""Whether a stream with discard new has room for a message."""

from __future__ import annotations

from pelton.api import ApiError, api_error
from pelton.api.errors import MAXIMUM_BYTES, MAXIMUM_MESSAGES, MAXIMUM_MESSAGES_PER_SUBJECT
from pelton.streams.publish_checks.target import Target


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
