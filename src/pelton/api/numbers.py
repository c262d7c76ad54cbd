"""Whole numbers of any size as text: ``str`` and ``int`` of Python refuse more than 4,300 digits."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import msgspec

from pelton.api.errors import ConfigError
from pelton.api.json_values import UNREADABLE


class _Counter(msgspec.Struct):
    val: str


def to_digits(value: int) -> str:
    """Return the digits of a number. Raises ConfigError unless it is an ``int``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{value!r} cannot be added to a counter: give an int")
    return format(Decimal(value), "f")


def from_digits(text: str) -> int:
    """Return the number that digits stand for. Raises ConfigError."""
    try:
        return int(Decimal(text))
    except (InvalidOperation, ValueError, OverflowError):
        raise ConfigError(f"{text[:60]!r} is no whole number") from None


def counter_value(data: bytes) -> int:
    """Return the total that a counter's message carries (ADR-49). Raises ConfigError."""
    try:
        return from_digits(msgspec.json.decode(data, type=_Counter).val)
    except UNREADABLE:
        raise ConfigError(f"{data[:60]!r} is no counter: is allow_msg_counter set on its stream?") from None
