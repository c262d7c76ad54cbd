"""Compares passwords and tokens with what is stored: plain text or a bcrypt hash. Pure, and slow for hashes.

Design: what was right for a hash is right again without bcrypt, as long as that hash is in the settings: a flood of
wrong passwords, which are slow, does not keep out those who have been in. Only a keyed hash of it is kept, in memory.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection
from typing import Final

_BCRYPT: Final = re.compile(r"\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}", re.ASCII)
# What bcrypt looks at; the rest of a longer password is not compared, by nats-server neither.
_LONGEST: Final = 72


def is_hash(stored: str) -> bool:
    """Whether a stored password is a bcrypt hash, so that comparing takes a tenth of a second or more."""
    return _BCRYPT.fullmatch(stored) is not None


def is_password(stored: str, given: str) -> bool:
    """Whether a password is the stored one; the time it takes says nothing of a plain one's characters."""
    raw = _raw(given)
    if not is_hash(stored):
        return hmac.compare_digest(_raw(stored), raw)
    # Imported when a hash is checked, because a server without hashes does not need it.
    import bcrypt

    try:
        return bcrypt.checkpw(raw[:_LONGEST], stored.encode())
    except ValueError:
        return False


class PasswordMemory:
    """Compares as :func:`is_password` does, and remembers what was right for each hash. Threads may share it.

    ``key`` is random bytes, up to 64; without them, nothing is remembered.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._right: dict[str, bytes] = {}

    def is_slow(self, stored: str, given: str) -> bool:
        """Whether comparing takes long: with a hash for which this was not right before."""
        return is_hash(stored) and not self._knows(stored, given)

    def is_password(self, stored: str, given: str) -> bool:
        """Whether a password is the stored one."""
        if self._knows(stored, given):
            return True
        is_right = is_password(stored, given)
        if is_right and self._key and is_hash(stored):
            self._right[stored] = self._digest(stored, given)
        return is_right

    def keep(self, stored: Collection[str]) -> PasswordMemory:
        """Return a memory of what was right for these hashes, for settings that have no others."""
        kept = PasswordMemory(self._key)
        kept._right = {each: digest for each, digest in list(self._right.items()) if each in stored}
        return kept

    def _knows(self, stored: str, given: str) -> bool:
        known = self._right.get(stored)
        return known is not None and hmac.compare_digest(known, self._digest(stored, given))

    def _digest(self, stored: str, given: str) -> bytes:
        return hashlib.blake2b(stored.encode() + _raw(given)[:_LONGEST], key=self._key).digest()


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
