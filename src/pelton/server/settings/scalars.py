r"""Scalars of a NATS configuration: what a bare word means, sizes, escapes, and durations. Pure.

A bare word is an integer (``4222``), a size (``64K``: 1000, ``64KB``, ``64Ki``, ``64KiB``: 1024), a float, a boolean
(``true yes on``, ``false no off``), a time (``2016-05-04T18:53:41Z``), or else a string. A word that begins like a
number and is none, such as ``1.5MB``, is refused, as nats-server refuses it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

Scalar = str | int | float | bool | datetime

_INT64: Final = range(-(1 << 63), 1 << 63)
_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_SIZE: Final = re.compile(r"(-?[0-9]+)([kmgtpe])(i?b?)", re.IGNORECASE | re.ASCII)
_INTEGER: Final = re.compile(r"-?[0-9]+", re.ASCII)
# An exponent is JSON's; nats-server has none.
_FLOAT: Final = re.compile(r"-?[0-9]+(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-][0-9]+)", re.ASCII)
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)
_ADDRESS: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9.]*(:[0-9]*)?", re.ASCII)
_NUMERIC: Final = re.compile(r"-|\.|[0-9]+[.-]", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
# The first five are nats-server's; the others are JSON's.
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f"}

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_UNIT_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def scalar_of(word: str) -> Scalar:
    """Return the value of a bare word. Raises ValueError with the reason, for example for ``1.5MB``."""
    if (known := _BOOLEANS.get(word.lower())) is not None:
        return known
    if _INTEGER.fullmatch(word):
        return _in_range(int(word), word) if len(word) < 32 else _in_range(1 << 63, word)
    if size := _SIZE.fullmatch(word):
        base = 1024 if size[3] else 1000
        return _in_range(int(size[1][:32]) * base ** _POWERS[size[2].lower()], word)
    if _FLOAT.fullmatch(word):
        return float(word)
    if _TIME.fullmatch(word):
        return datetime.strptime(word, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    if _NUMERIC.match(word) and not _ADDRESS.fullmatch(word):
        raise ValueError(f"{word!r} begins like a number and is none: write it in quotes")
    return word


def unescape(text: str) -> str:
    r"""Return a text with its escapes (``\xXX \uXXXX \t \n \r \" \\ \/ \b \f``) replaced. Raises ValueError."""
    if "\\" not in text:
        return text
    # Escapes with \x are bytes of UTF-8, so the pieces are joined as bytes.
    pieces, end = bytearray(), 0
    for found in _ESCAPE.finditer(text):
        pieces += text[end : found.start()].encode("utf-8", "surrogatepass")
        pieces += _replacement(found)
        end = found.end()
    pieces += text[end:].encode("utf-8", "surrogatepass")
    return _joined(pieces)


def _replacement(found: re.Match[str]) -> bytes:
    if found[1]:
        return bytes([int(found[1], 16)])
    if found[2]:
        return chr(int(found[2], 16)).encode("utf-8", "surrogatepass")
    if (char := _ESCAPED.get(found[3])) is None:
        raise ValueError(f"invalid escape '\\{found[3]}': write \\xXX, \\t, \\n, \\r, \\\" or \\\\")
    return char.encode()


def _joined(pieces: bytearray) -> str:
    try:
        # A pair of \u surrogates is one character, as in JSON.
        return pieces.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("the escapes are not UTF-8") from None


def duration_ns(text: str) -> int:
    """Return the nanoseconds of a duration such as ``1h30m``, ``1.5s`` or ``250ms``. Raises ValueError."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    parts = list(_UNIT_PART.finditer(rest))
    if not parts or "".join(part[0] for part in parts) != rest or len(rest) > 100:
        raise ValueError(f"{text!r} is no duration: write for example 250ms, 1.5s or 1h30m")
    total = sum(_part_ns(part[1], _UNITS[part[2]]) for part in parts)
    return sign * _in_range(total, text)


def _part_ns(number: str, unit: int) -> int:
    whole, _, fraction = number.partition(".")
    exact = int(whole or "0") * unit
    return exact + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)


def _in_range(value: int, word: str) -> int:
    if value not in _INT64:
        raise ValueError(f"{word!r} is out of range: integers have 64 bits")
    return value
