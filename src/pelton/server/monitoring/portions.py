"""Reports as JSON in parts: what there can be very many of is encoded some at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import msgspec


class JsonList:
    """A list of JSON that is encoded as it grows, and kept in parts: copying 40 MB takes long."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def extend(self, items: Iterable[Any]) -> None:
        """Add values, none of which holds a list of this kind."""
        if text := msgspec.json.encode(list(items))[1:-1]:
            self._parts.append(b",%b" % text if self._parts else text)

    def append(self, item: dict[str, Any]) -> None:
        """Add a value that may hold such lists."""
        if self._parts:
            self._parts.append(b",")
        self._parts += json_parts(item)

    def __iter__(self) -> Iterator[bytes]:
        return chain((b"[",), self._parts, (b"]",))


def json_parts(value: Any) -> Iterator[bytes]:
    """Encode a value, which may be such a list, or hold some in its mappings."""
    if isinstance(value, JsonList):
        yield from value
    elif isinstance(value, dict) and any(isinstance(each, dict | JsonList) for each in value.values()):
        for mark, (name, each) in zip(chain((b"{",), repeat(b",")), value.items(), strict=False):
            yield b"%b%b:" % (mark, msgspec.json.encode(name))
            yield from json_parts(each)
        yield b"}"
    else:
        yield msgspec.json.encode(value)
