"""Adding headers to a block and removing them, without decoding it."""

from __future__ import annotations

from typing import Final

_EMPTY: Final = b"NATS/1.0\r\n\r\n"


def with_header(block: bytes | None, name: str, value: str) -> bytes:
    """Return a block with one header appended."""
    return (block or _EMPTY)[:-2] + f"{name}: {value}\r\n\r\n".encode()


def without_headers(block: bytes | None, *names: str) -> bytes:
    """Return a block without the headers of these names; a name that ends in ``-`` is a prefix."""
    if not block:
        return _EMPTY
    opening, *lines = block[:-4].split(b"\r\n")
    doomed = tuple(f"{name}" if name.endswith("-") else f"{name}:" for name in names)
    prefixes = tuple(text.encode() for text in doomed)
    kept = [line for line in lines if not line.startswith(prefixes)]
    return b"\r\n".join([opening, *kept, b"", b""])
