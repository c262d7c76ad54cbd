"""What a payload looks like to a person: JSON, text, or bytes in hexadecimal. Pure."""

from __future__ import annotations

import json
from typing import Final, Literal, NamedTuple

SHOWN: Final = 16_384
"""How many bytes of a payload are shown."""
_LINE: Final = 16
_ALLOWED: Final = "\n\t"


class Shown(NamedTuple):
    """A payload as text, and whether all of it is there."""

    kind: Literal["JSON", "text", "hex"]
    text: str
    is_whole: bool


def shown(data: bytes, limit: int = SHOWN) -> Shown:
    """Return a payload for a person: one that is cut is never JSON, and hex shows at most a quarter of ``limit``."""
    is_whole = len(data) <= limit
    text = _text(data[:limit], is_whole)
    if text is None:
        part = data[: limit // 4]
        return Shown("hex", _hex(part), len(part) == len(data))
    if is_whole and text[:1] in ("{", "["):
        try:
            return Shown("JSON", json.dumps(json.loads(text), indent=2, ensure_ascii=False), True)
        except (ValueError, RecursionError):
            pass
    return Shown("text", text, is_whole)


def _text(data: bytes, is_whole: bool) -> str | None:
    """Return bytes as text that can be printed; None if they are none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # A character may be cut at the end.
        if is_whole or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    return text if all(char.isprintable() or char in _ALLOWED for char in text) else None


def _hex(data: bytes) -> str:
    lines = []
    for begin in range(0, len(data), _LINE):
        part = data[begin : begin + _LINE]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{begin:08x}  {part.hex(' '):<{_LINE * 3 - 1}}  {seen}")
    return "\n".join(lines)
