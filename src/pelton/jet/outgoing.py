"""Turns a user's values into the messages that a backend publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypedDict, cast

from pelton.api import (
    ConfigError,
    Outgoing,
    headers,
)
from pelton.api.arguments import check_known, check_text, check_whole, items_of, message_of
from pelton.api.times import Seconds
from pelton.api.timing import ttl_text

HeaderValues = Mapping[str, str | Sequence[str]]
AnyMessage = tuple[str, bytes] | tuple[str, bytes, HeaderValues | None]
"""Subject, data, and headers if there are any."""
_MESSAGES: Final = "(subject, data) or (subject, data, headers)"
_LARGEST_BATCH: Final = 1000
_BATCH_HEADERS: Final = (headers.BATCH_ID, headers.BATCH_SEQUENCE, headers.BATCH_COMMIT)
_TEXTS: Final = {
    "msg_id": headers.MSG_ID,
    "expected_stream": headers.EXPECTED_STREAM,
    "expected_last_msg_id": headers.EXPECTED_LAST_MSG_ID,
    "expected_last_subject_seq_subject": headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
}
_NUMBERS: Final = {
    "expected_last_seq": headers.EXPECTED_LAST_SEQUENCE,
    "expected_last_subject_seq": headers.EXPECTED_LAST_SUBJECT_SEQUENCE,
}


def batch_of(messages: Iterable[AnyMessage]) -> list[Outgoing]:
    """Return the messages of a batch that is stored as one, in the port's form. Raises ConfigError."""
    found = all_outgoing(messages)
    if not 1 <= len(found) <= _LARGEST_BATCH:
        raise ConfigError(f"a batch of {len(found)} messages: 1 to {_LARGEST_BATCH} are stored together or not at all")
    for message in found:
        for name in _BATCH_HEADERS if message.headers is not None else ():
            if headers.first(message.headers or b"", name) is not None:
                raise ConfigError(f"header {name}: publish_atomic makes the batch itself; leave it out")
    return found


def all_outgoing(messages: Iterable[AnyMessage]) -> list[Outgoing]:
    """Return the messages of a batch in the port's form. Raises ConfigError, which names the one that is wrong."""
    given = items_of("a batch", "messages", messages, _MESSAGES)
    try:
        return [outgoing(*message) for message in given]
    except (TypeError, ConfigError):
        for number, message in enumerate(given):
            _check_member(number, message)
        raise


def _check_member(number: int, message: object) -> None:
    where = f"message {number} of the batch"
    if not isinstance(message, Sequence) or isinstance(message, str | bytes) or len(message) not in (2, 3):
        raise ConfigError(f"{where} is {message!r}: give {_MESSAGES}")
    try:
        outgoing(*message)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def header_block(values: HeaderValues | None, asked: Mapping[str, object]) -> bytes | None:
    """Return the encoded header block of a message.

    The user's headers and the conditions that are not None.
    """
    given = {name: str(value) for name, value in asked.items() if value is not None}
    if not given:
        return headers.encode(values) if values else None
    return headers.encode({**headers.as_lists(values), **given} if values else given)


class PublishOptions(TypedDict, total=False):
    """Options of a message beside subject and data: see :meth:`Jet.publish`."""

    msg_id: str | None
    headers: HeaderValues | None
    expected_stream: str | None
    expected_last_msg_id: str | None
    expected_last_seq: int | None
    expected_last_subject_seq: int | None
    expected_last_subject_seq_subject: str | None
    ttl: Seconds | Literal["never"] | None


def publish_block(options: PublishOptions) -> bytes | None:
    """Return the encoded header block of a message that is published with these options. Raises ConfigError."""
    values: HeaderValues | None = None
    asked: dict[str, object] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in _TEXTS:
            check_text("publish", name, value)
            asked[_TEXTS[name]] = value
        elif name in _NUMBERS:
            check_whole("publish", name, value, None)
            asked[_NUMBERS[name]] = value
        elif name == "ttl":
            asked[headers.TTL] = ttl_text(cast(Seconds, value))
        elif name == "headers":
            values = cast(HeaderValues, value)
        else:
            check_known("publish", (name,), PublishOptions.__annotations__)
    return header_block(values, asked) if asked or values else None


def outgoing(subject: str, data: bytes, values: HeaderValues | None = None) -> Outgoing:
    """Return a message in the port's form. Raises ConfigError."""
    if type(subject) is not str or type(data) is not bytes:
        subject, data = message_of(subject, data)
    return Outgoing(subject, data, headers.encode(values) if values else None)
