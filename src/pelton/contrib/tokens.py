"""Any text as one token of a subject, or of a bucket's key. Pure."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

_SAFE: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-/")
_LONGEST: Final = 200


def token(text: str) -> str:
    """Return a text with unusual characters as ``=XX``, which can be read back; empty text as ``=``."""
    return "".join(chr(byte) if byte in _SAFE else f"={byte:02X}" for byte in text.encode()) or "="


def short_token(text: str) -> str:
    """Return `token` of a text, and the digest of one that is too long for a key."""
    whole = token(text)
    return whole if len(whole) <= _LONGEST else f"sha256={sha256(text.encode()).hexdigest()}"
