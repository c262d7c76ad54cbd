"""Messages on their way out: from friendly values to what a Backend publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pelton.api import (
    ConfigError,
    Outgoing,
    headers,
)

HeaderValues = Mapping[str, str | Sequence[str]]
AnyMessage = tuple[str, bytes] | tuple[str, bytes, HeaderValues | None]
"""Subject, data, and headers where there are any."""
_LARGEST_BATCH: Final = 1000
_BATCH_HEADERS: Final = (headers.BATCH_ID, headers.BATCH_SEQUENCE, headers.BATCH_COMMIT)


def batch_of(messages: Iterable[AnyMessage]) -> list[Outgoing]:
    """Return the messages of a batch that is stored as one, in the port's form. Raises ConfigError."""
    found = [outgoing(*message) for message in messages]
    if not 1 <= len(found) <= _LARGEST_BATCH:
        raise ConfigError(f"a batch of {len(found)} messages: 1 to {_LARGEST_BATCH} are stored together or not at all")
    for _, _, block in found:
        for name in _BATCH_HEADERS if block is not None else ():
            if headers.first(block or b"", name) is not None:
                raise ConfigError(f"header {name}: publish_atomic makes the batch itself; leave it out")
    return found


def header_block(values: HeaderValues | None, asked: Mapping[str, object]) -> bytes | None:
    """Return the encoded header block of a message.

    The user's headers and the conditions that are not None.
    """
    given = {name: str(value) for name, value in asked.items() if value is not None}
    if not given and not values:
        return None
    return headers.encode({**(values or {}), **given})


def outgoing(subject: str, data: bytes, values: HeaderValues | None = None) -> Outgoing:
    """Return a message in the port's form."""
    return subject, data, headers.encode(values) if values else None
