"""Whole numbers of any size as text: ``str`` and ``int`` of Python refuse more than 4,300 digits."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from pelton.api.errors import ConfigError
from pelton.api.json_values import UNREADABLE

_GO_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]*)", re.ASCII)
_INT64: Final = range(-(1 << 63), 1 << 63)


class _Counter(msgspec.Struct):
    val: str


def go_integer(text: str) -> int:
    """Return a number as Go's ``strconv.Atoi`` reads it. Raises ValueError in its words."""
    found = _GO_INTEGER.fullmatch(text)
    if found is None or not text[-1:].isdigit():
        raise ValueError("invalid syntax")
    # So many digits are out of range already.
    value = int(f"{found[1]}0{found[2][:20]}")
    if value not in _INT64:
        raise ValueError("value out of range")
    return value


def is_level(required: str | None, level: int) -> bool:
    """Whether an API ``level`` is that which a header requires (ADR-44); an empty text requires none."""
    try:
        return not required or go_integer(required) <= level
    except ValueError:
        return False


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
