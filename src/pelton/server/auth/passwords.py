"""Compares passwords and tokens with what is stored: plain text or a bcrypt hash. Pure, and slow for hashes."""

from __future__ import annotations

import hmac
import re
from typing import Final

_BCRYPT: Final = re.compile(r"\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}", re.ASCII)
# What bcrypt looks at; the rest of a longer password is not compared, by nats-server neither.
_LONGEST: Final = 72


def is_hash(stored: str) -> bool:
    """Whether a stored password is a bcrypt hash, so that comparing takes a tenth of a second or more."""
    return _BCRYPT.fullmatch(stored) is not None


def is_password(stored: str, given: str) -> bool:
    """Whether a password is the stored one; the time it takes says nothing of a plain one's characters."""
    raw = given.encode("utf-8", "surrogatepass")
    if not is_hash(stored):
        return hmac.compare_digest(stored.encode("utf-8", "surrogatepass"), raw)
    # Imported when a hash is checked, because a server without hashes does not need it.
    import bcrypt

    try:
        return bcrypt.checkpw(raw[:_LONGEST], stored.encode())
    except ValueError:
        return False
