"""Entries: a key's value at one revision."""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

import msgspec

from pelton.api import Delivered, StoredMessage, headers, rfc3339

T = TypeVar("T")
Operation = Literal["put", "delete", "purge"]
OPERATION_HEADER: Final = "KV-Operation"
_OPERATIONS: Final[dict[str, Operation]] = {"DEL": "delete", "PURGE": "purge"}
# What a server writes when a message expired or was removed (ADR-48).
_MARKERS: Final[dict[str, Operation]] = {"MaxAge": "purge", "Purge": "purge", "Remove": "delete"}


class Entry(msgspec.Struct, Generic[T], frozen=True):
    """A key at one revision. ``time_ns`` is when it was written; ``delta`` entries of the bucket came after it.

    ``value`` is None if the ``operation`` is not ``put``, or if values were not requested.
    """

    bucket: str
    key: str
    value: T | None
    revision: int
    time_ns: int
    operation: Operation
    delta: int = 0

    @property
    def time(self) -> str:
        """When it was written, as RFC 3339 text."""
        return rfc3339(self.time_ns)


class BucketStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket's settings and size: durations in seconds, 0 for none; ``values`` are revisions.

    Limits are -1 for no limit. ``mirror`` is the bucket of which this one is a copy, ``sources`` those it takes
    keys from.
    """

    bucket: str
    values: int
    bytes: int
    """Its size in bytes."""
    history: int
    """How many revisions of a key are kept."""
    ttl: float
    """How long a value is kept."""
    limit_marker_ttl: float
    """How long markers of expired keys are kept."""
    is_compressed: bool
    """Whether values are compressed."""
    storage: str
    """`file` or `memory`."""
    replicas: int
    """How many servers keep it."""
    max_value_size: int
    """The largest value, in bytes."""
    max_bytes: int
    """The largest bucket, in bytes."""
    description: str
    """A text for people."""
    metadata: dict[str, str]
    """Texts for programs."""
    mirror: str
    sources: tuple[str, ...]


def operation_of(block: bytes | None) -> Operation:
    """Return what a message with these headers did to its key."""
    if not block:
        return "put"
    marker = headers.first(block, headers.MARKER_REASON)
    if marker is not None:
        return _MARKERS.get(marker, "purge")
    return _OPERATIONS.get(headers.first(block, OPERATION_HEADER) or "", "put")


def stored_block(message: StoredMessage | Delivered) -> bytes | None:
    """Return the header block of a message, or None."""
    block = message.headers if isinstance(message, Delivered) else message.hdrs
    return block or None
