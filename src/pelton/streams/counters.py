"""Counters: a stream whose subjects are numbers that only ever change by what is added (ADR-49). Pure.

A publish says ``Nats-Incr: +3`` and carries no payload; what is stored carries the new total, ``{"val":"103"}``,
and the increment that led to it, so that a stream without limits can be counted again. The total before it is
that of the subject's last message; where there is none (nothing added yet, purged) it is zero. Which streams of
the same counter have contributed what (``Nats-Counter-Sources``) is carried from each message to the next.

Numbers are as large as their digits fit a header. They are added as decimals: Python refuses to write an ``int``
of more than 4,300 digits as text.
"""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Final, NamedTuple

import msgspec

from pelton.api import ApiError, StreamConfig, api_error, headers

_NAME: Final = headers.INCREMENT.encode()
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
"""What a counter has no use for: additions never conflict."""

Sources = dict[str, dict[str, str]]


class _Value(msgspec.Struct):
    val: str


_value: Final = msgspec.json.Decoder(_Value).decode
_sources: Final = msgspec.json.Decoder(Sources).decode
_encode: Final = msgspec.json.Encoder(order="sorted").encode


class Total(NamedTuple):
    """Where a counter stands: its value, and what other streams have contributed."""

    value: Decimal = Decimal(0)
    sources: Sources = {}  # noqa: RUF012  # never changed


class Counted(NamedTuple):
    """What is stored for an increment, and where the counter stands then."""

    headers: bytes
    data: bytes
    total: Total


def check_counting(config: StreamConfig) -> str:
    """Return why a stream with this configuration cannot count; an empty text when it can."""
    if config.discard == "new":
        return "counter stream cannot use discard new"
    if config.allow_msg_ttl:
        return "counter stream cannot use message TTLs"
    if config.allow_msg_schedules:
        return "counter stream cannot use message schedules"
    return "counter stream can only use limits retention" if config.retention != "limits" else ""


def increment_of(block: bytes, data: bytes, *, counting: bool) -> str:
    """Return what a message adds, an empty text where it says nothing of it.

    Raises ApiError 10171 for what is no whole number or comes with conditions, 10168 outside a counter stream,
    10170 with a payload.
    """
    if _NAME not in block:
        return ""
    text = headers.first(block, headers.INCREMENT)
    if not text:
        return ""
    if not _NUMBER.fullmatch(text):
        raise api_error("JSMessageIncrInvalidErr")
    if not counting:
        raise api_error("JSMessageIncrDisabledErr")
    if data:
        raise api_error("JSMessageIncrPayloadErr")
    if any(headers.first(block, name) for name in _REPLACED):
        raise api_error("JSMessageIncrInvalidErr")
    return text


def total_of(block: bytes | None, data: bytes) -> Total:
    """Return where a counter stands after its last message; raises ApiError 10172 when that is no counter."""
    try:
        text = _value(data).val
        carried = headers.first(block, headers.COUNTER_SOURCES) if block is not None else None
        sources = _sources(carried) if carried and carried != "null" else {}
    except (msgspec.ValidationError, msgspec.DecodeError):
        raise api_error("JSMessageCounterBrokenErr") from None
    if not _NUMBER.fullmatch(text):
        raise api_error("JSMessageCounterBrokenErr")
    return Total(Decimal(text), sources)


def digits(value: Decimal) -> str:
    """Return a whole number as text."""
    return format(value, "f")


def counted(before: Total, block: bytes | None, increment: str) -> Counted:
    """Return what is stored for an increment; raises ApiError 10169 where there is none.

    A publisher who tells sources that cannot be read is refused with 10171: nobody could count on from there.
    """
    if not increment or block is None:
        raise api_error("JSMessageIncrMissingErr")
    after = _EXACT.add(before.value, Decimal(increment))
    data = b'{"val":"%b"}' % digits(after).encode()
    if before.sources:
        block = headers.replaced(block, headers.COUNTER_SOURCES, _encode(before.sources).decode())
        return Counted(block, data, Total(after, before.sources))
    return Counted(block, data, Total(after, _told_sources(block, data)))


class CounterOrigin(NamedTuple):
    """Where another counter is: its stream, and its subject there."""

    stream: str
    subject: str


def contributed(before: Total, block: bytes, data: bytes, origin: CounterOrigin) -> Counted:
    """Return what is stored for a message of another counter, of the stream and subject ``origin``.

    What that one has contributed up to now is replaced by its total: a message that is lost or comes twice on the
    way does no harm. Raises ApiError 10169 for a message that counts nothing, 10172 for one without a total.
    """
    if not headers.first(block, headers.INCREMENT):
        raise api_error("JSMessageIncrMissingErr")
    stream, subject = origin.stream, origin.subject
    total = total_of(None, data).value
    known = Decimal(before.sources.get(stream, {}).get(subject, "0"))
    increment = _EXACT.subtract(total, known)
    sources = {**before.sources, stream: {**before.sources.get(stream, {}), subject: digits(total)}}
    after = _EXACT.add(before.value, increment)
    block = headers.replaced(block, headers.INCREMENT, digits(increment))
    block = headers.replaced(block, headers.COUNTER_SOURCES, _encode(sources).decode())
    return Counted(block, b'{"val":"%b"}' % digits(after).encode(), Total(after, sources))


def _told_sources(block: bytes, data: bytes) -> Sources:
    try:
        return total_of(block, data).sources
    except ApiError:
        raise api_error("JSMessageIncrInvalidErr") from None
