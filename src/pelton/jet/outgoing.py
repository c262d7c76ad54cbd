"""Messages on their way out: from friendly values to what a Backend publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypedDict

from pelton.api import (
    ConfigError,
    Outgoing,
    headers,
)
from pelton.api.times import Seconds
from pelton.api.timing import ttl_text

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


class PublishOptions(TypedDict, total=False):
    """What a message is published with, beside subject and data: as :meth:`Jet.publish` says."""

    msg_id: str | None
    headers: HeaderValues | None
    expected_stream: str | None
    expected_last_msg_id: str | None
    expected_last_seq: int | None
    expected_last_subject_seq: int | None
    expected_last_subject_seq_subject: str | None
    ttl: Seconds | Literal["never"] | None


def publish_block(options: PublishOptions) -> bytes | None:
    """Return the encoded header block of a message that is published with these options."""
    if not options:
        return None
    ttl = options.get("ttl")
    asked = {
        "Nats-Msg-Id": options.get("msg_id"),
        "Nats-Expected-Stream": options.get("expected_stream"),
        "Nats-Expected-Last-Msg-Id": options.get("expected_last_msg_id"),
        "Nats-Expected-Last-Sequence": options.get("expected_last_seq"),
        "Nats-Expected-Last-Subject-Sequence": options.get("expected_last_subject_seq"),
        "Nats-Expected-Last-Subject-Sequence-Subject": options.get("expected_last_subject_seq_subject"),
        "Nats-TTL": None if ttl is None else ttl_text(ttl),
    }
    return header_block(options.get("headers"), asked)


def outgoing(subject: str, data: bytes, values: HeaderValues | None = None) -> Outgoing:
    """Return a message in the port's form."""
    return subject, data, headers.encode(values) if values else None
