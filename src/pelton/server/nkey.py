"""NATS's text form of ed25519 public keys, and signatures by them. Pure.

An nkey is base32 of a prefix byte, whose first letter says what the key is for, 32 bytes of the key, and a CRC-16.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import Final, Literal

KeyRole = Literal["user", "account", "operator", "server", "curve"]

_PREFIXES: Final[dict[int, KeyRole]] = {
    20 << 3: "user",
    0: "account",
    14 << 3: "operator",
    13 << 3: "server",
    23 << 3: "curve",
}
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64


def server_key(key: bytes) -> str:
    """Return the public key of a server as a text."""
    raw = bytes([13 << 3]) + key
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def role_of(nkey: str) -> KeyRole | None:
    """Return what a public key is for; None if the text is no public key."""
    raw = _decoded(nkey)
    return None if raw is None else _PREFIXES.get(raw[0])


def is_signed(nkey: str, signed: bytes, signature: bytes) -> bool:
    """Whether ``signature`` is the key's for these bytes. False for what is no key or no signature."""
    # Imported when a signature is checked, because a server without nkeys and JWTs does not need it.
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    raw = _decoded(nkey)
    if raw is None or len(signature) != _SIGNATURE_BYTES:
        return False
    try:
        VerifyKey(raw[1:]).verify(signed, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


def base64_bytes(text: str) -> bytes | None:
    """Return the bytes of base64 in either alphabet, with or without padding; None if it is none."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


@lru_cache(maxsize=1024)
def _decoded(nkey: str) -> bytes | None:
    """Return the prefix and the key; None if the text is no public key."""
    try:
        raw = base64.b32decode(nkey + "=" * (-len(nkey) % 8))
    except (binascii.Error, ValueError):
        return None
    if len(raw) != 1 + _KEY_BYTES + 2 or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        return None
    return raw[:-2]
