"""Values of command line arguments: durations, sizes, headers, payloads."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Final

_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w|y)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_FACTORS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_STANDARD: Final = "-"


def duration(text: str) -> float:
    """Return the seconds of a text such as ``90``, ``1h30m``, ``500ms`` or ``7d``."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _PARTS.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write it as 90, 1h30m, 500ms or 7d")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def size(text: str) -> int:
    """Return the bytes of a text such as ``1024``, ``64K`` or ``10GiB``; -1 is no limit."""
    if text == "-1":
        return -1
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 1024, 64K or 10GiB")
    return int(float(found[1]) * _FACTORS[found[2].upper()])


def count(text: str) -> int:
    """Return a whole number above 0."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def header(text: str) -> tuple[str, str]:
    """Return the name and the value of a header such as ``Name: value``."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no header: write it as 'Name: value'")
    return name.strip(), value.strip()


def payload_of(text: str | None) -> bytes:
    """Return the payload that an argument gives; without one, or for ``-``, standard input."""
    if text is None or text == _STANDARD:
        return sys.stdin.buffer.read()
    return text.encode()
