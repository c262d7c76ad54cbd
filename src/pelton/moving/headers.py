"""The headers of a stored message, when it is published again. Pure."""

from __future__ import annotations

from typing import Final

from pelton.api import StoredMessage, headers
from pelton.streams import without_headers

# What held when it was published, and what only the server may say that stores it: where it comes from.
_DROPPED: Final = ("Nats-Expected-", headers.STREAM_SOURCE, headers.SCHEDULER, headers.SCHEDULE_NEXT)
_OURS: Final = b"\nNats-"
_EMPTY: Final = b"NATS/1.0\r\n\r\n"


def is_schedule(message: StoredMessage) -> bool:
    """Whether a message is a schedule, which stores others."""
    return bool(message.hdrs) and headers.first(message.hdrs, headers.SCHEDULE) is not None


def as_published(message: StoredMessage) -> bytes | None:
    """Return the header block to publish a message with again: without conditions that held when it was published."""
    if _OURS not in message.hdrs:
        return message.hdrs or None
    block = without_headers(message.hdrs, *_DROPPED)
    return None if block == _EMPTY else block
