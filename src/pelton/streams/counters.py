"""Counters: streams whose subjects are numbers that change only by increments (ADR-49). Pure.

A publish has the header ``Nats-Incr: +3`` and no payload; the stored message has the new total, ``{"val":"103"}``,
and the increment that led to it, so that the totals of a stream without limits can be recomputed. The previous total
is that of the subject's last message, or zero if there is none (nothing added yet, or purged). Each message also
carries on what every source stream has contributed (``Nats-Counter-Sources``).

A number may have as many digits as fit a header. Numbers are added as decimals: Python refuses to convert an ``int``
of more than 4,300 digits to text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Final, NamedTuple

import msgspec

from pelton.api import ApiError, StreamConfig, api_error, headers
from pelton.api.json_values import UNREADABLE

_NUMBER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_EXACT: Final = Context(prec=200_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
_REPLACED: Final = (
    headers.ROLLUP,
    headers.EXPECTED_STREAM,
    headers.EXPECTED_LAST_MSG_ID,
    headers.EXPECTED_LAST_SEQUENCE,
    headers.EXPECTED_LAST_SUBJECT_SEQUENCE,
    headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
)
"""Headers that an increment must not have: additions never conflict."""

Sources = dict[str, dict[str, str]]


class _Value(msgspec.Struct):
    val: str


_value: Final = msgspec.json.Decoder(_Value).decode
_sources: Final = msgspec.json.Decoder(Sources).decode
_encode: Final = msgspec.json.Encoder(order="sorted").encode


class Total(msgspec.Struct, frozen=True):
    """A counter's value, and what other streams have contributed to it."""

    value: Decimal = Decimal(0)
    sources: Sources = {}


class Counted(NamedTuple):
    """The message to store for an increment, and the counter's total after it."""

    headers: bytes
    data: bytes
    total: Total


def check_counting(config: StreamConfig) -> str:
    """Return why a stream with this configuration cannot be a counter, an empty text if it can."""
    if config.discard == "new":
        return "counter stream cannot use discard new"
    if config.allow_msg_ttl:
        return "counter stream cannot use message TTLs"
    if config.allow_msg_schedules:
        return "counter stream cannot use message schedules"
    return "counter stream can only use limits retention" if config.retention != "limits" else ""


def increment_of(fields: Mapping[str, str], data: bytes, *, counting: bool) -> str:
    """Return the increment that the headers of a message ask for, an empty text if there is none.

    Raises ApiError 10171 if it is not a whole number or comes with conditions, 10168 outside a counter stream,
    10170 with a payload.
    """
    text = fields.get(headers.INCREMENT)
    if not text:
        return ""
    if not _NUMBER.fullmatch(text):
        raise api_error("JSMessageIncrInvalidErr")
    if not counting:
        raise api_error("JSMessageIncrDisabledErr")
    if data:
        raise api_error("JSMessageIncrPayloadErr")
    if any(fields.get(name) for name in _REPLACED):
        raise api_error("JSMessageIncrInvalidErr")
    return text


def total_of(block: bytes | None, data: bytes) -> Total:
    """Return the total in a counter's last message; raises ApiError 10172 if that message is not a counter's."""
    try:
        text = _value(data).val
        carried = headers.first_value(block, headers.COUNTER_SOURCES) if block is not None else None
        sources = _sources(carried) if carried and carried != "null" else {}
    except UNREADABLE:
        raise api_error("JSMessageCounterBrokenErr") from None
    if not _NUMBER.fullmatch(text):
        raise api_error("JSMessageCounterBrokenErr")
    return Total(Decimal(text), sources)


def digits(value: Decimal) -> str:
    """Return a whole number as text."""
    return format(value, "f")


def counted(before: Total, block: bytes | None, increment: str) -> Counted:
    """Return the message to store for an increment; raises ApiError 10169 if the increment is missing.

    Raises 10171 if the publisher sends sources that cannot be parsed: no later total could build on them.
    """
    if not increment or block is None:
        raise api_error("JSMessageIncrMissingErr")
    after = _EXACT.add(before.value, Decimal(increment))
    data = b'{"val":"%b"}' % digits(after).encode()
    if before.sources:
        block = headers.with_header(block, headers.COUNTER_SOURCES, _encode(before.sources).decode())
        return Counted(block, data, Total(after, before.sources))
    return Counted(block, data, Total(after, _told_sources(block, data)))


class CounterOrigin(msgspec.Struct, frozen=True):
    """Another counter: its stream, and its subject there."""

    stream: str
    subject: str


def contributed(before: Total, block: bytes, data: bytes, origin: CounterOrigin) -> Counted:
    """Return the message to store for a message of another counter, ``origin``.

    Its total replaces what that counter has contributed so far, so a message that is lost or arrives twice does no
    harm. Raises ApiError 10169 for a message without an increment, 10172 for one without a total.
    """
    if not headers.first_value(block, headers.INCREMENT):
        raise api_error("JSMessageIncrMissingErr")
    stream, subject = origin.stream, origin.subject
    total = total_of(None, data).value
    known = Decimal(before.sources.get(stream, {}).get(subject, "0"))
    increment = _EXACT.subtract(total, known)
    sources = {**before.sources, stream: {**before.sources.get(stream, {}), subject: digits(total)}}
    after = _EXACT.add(before.value, increment)
    block = headers.with_header(block, headers.INCREMENT, digits(increment))
    block = headers.with_header(block, headers.COUNTER_SOURCES, _encode(sources).decode())
    return Counted(block, b'{"val":"%b"}' % digits(after).encode(), Total(after, sources))


def _told_sources(block: bytes, data: bytes) -> Sources:
    try:
        return total_of(block, data).sources
    except ApiError:
        raise api_error("JSMessageIncrInvalidErr") from None
