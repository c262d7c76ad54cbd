"""Whether a stream that discards new messages has room for one."""

from __future__ import annotations

from typing import Protocol

from pelton.api import ApiError, StreamConfig, api_error
from pelton.api.errors import MAXIMUM_BYTES, MAXIMUM_MESSAGES, MAXIMUM_MESSAGES_PER_SUBJECT
from pelton.storage import Row

Data = bytes
"""Within :class:`Stream` the name ``bytes`` is taken."""


class Stream(Protocol):
    """What must be known of the stream."""

    config: StreamConfig
    msgs: int
    bytes: int
    dirty: bool

    def flush(self) -> None: ...
    def size_of(self, subject: str, hdr: Data | None, data: Data) -> int: ...
    def subject_row(self, subject: str) -> list[int]: ...
    def next_row_of(self, seq: int, subject_filter: str) -> Row | None: ...


def check_room(stream: Stream, subject: str, size: int, *, replaces: bool) -> None:
    """Refuse what does not fit (10077), for the limit per subject first where it is the reason.

    What ``replaces`` others of its subject meets no limit per subject; where it needs more room than there is
    before they go, it is refused like any, as on a NATS server.
    """
    config = stream.config
    full = _is_full(stream, subject)
    if full and config.discard_new_per_subject and not replaces:
        raise _no_room(MAXIMUM_MESSAGES_PER_SUBJECT)
    if not (0 < config.max_msgs <= stream.msgs or 0 < config.max_bytes < stream.bytes + size):
        return
    if config.max_msgs_per_subject > 0 and stream.dirty:
        # What newer messages of the same subjects have replaced still counts until it is trimmed.
        stream.flush()
        full = _is_full(stream, subject)
    if 0 < config.max_msgs <= stream.msgs and not full:
        raise _no_room(MAXIMUM_MESSAGES)
    if 0 < config.max_bytes < stream.bytes + size and not (full and _makes_room(stream, subject, size)):
        raise _no_room(MAXIMUM_BYTES)


def _is_full(stream: Stream, subject: str) -> bool:
    limit = stream.config.max_msgs_per_subject
    return limit > 0 and stream.subject_row(subject)[2] >= limit


def _makes_room(stream: Stream, subject: str, size: int) -> bool:
    """Whether the oldest message of a full subject makes room for one of ``size`` bytes."""
    row = stream.next_row_of(stream.subject_row(subject)[0], subject)
    if row is None:
        return False
    _, _, _, hdr, data, _ = row
    return size <= stream.size_of(subject, hdr, data)


def _no_room(text: str) -> ApiError:
    return api_error("JSStreamStoreFailedF", err=text)
