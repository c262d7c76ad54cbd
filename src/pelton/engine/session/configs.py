"""Configurations of streams and consumers as they are stored: JSON that carries its own checksum.

A flipped bit may leave valid JSON that says something else, so ``crc``, the last field, is the CRC-32 of the JSON
without it. Configurations that an earlier version stored have none.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec

from pelton.api import ConsumerConfig, StreamConfig
from pelton.api.times import dec_hook, enc_hook
from pelton.storage import DamagedRowError, blob

C = TypeVar("C", StreamConfig, ConsumerConfig)

_encode: Final = msgspec.json.Encoder(enc_hook=enc_hook).encode
_decoders: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind, dec_hook=dec_hook) for kind in (StreamConfig, ConsumerConfig)
}
_BEGIN: Final = b',"crc":"'
_SEAL: Final = len(_BEGIN) + len('00000000"}')


def encode_config(config: StreamConfig | ConsumerConfig) -> bytes:
    """Return a configuration as it is stored."""
    return _sealed(_encode(config))


def decode_config(kind: type[C], stored: object) -> C:
    """Return a stored configuration. Raises DamagedRowError."""
    raw = blob(stored)
    if raw[-_SEAL:].startswith(_BEGIN) and _sealed(_plain(raw)) != raw:
        raise DamagedRowError("a configuration does not match its checksum")
    try:
        config: C = _decoders[kind].decode(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedRowError(f"a configuration cannot be decoded ({error})") from error
    return config


def mended_config(kind: type[C], stored: object) -> C | None:
    """Return what a stored configuration was before one of its bytes was changed; None if that is unknown.

    A CRC-32 tells which byte, and how: no two changes of one byte give the same sum.
    """
    raw = bytearray(blob(stored))
    for place, byte in enumerate(raw):
        for other in range(256):
            raw[place] = other
            if _sealed(_plain(raw)) == raw:
                return decode_config(kind, bytes(raw))
        raw[place] = byte
    return None


def _plain(raw: bytes | bytearray) -> bytes:
    return bytes(raw[:-_SEAL]) + b"}"


def _sealed(plain: bytes) -> bytes:
    return b'%b%b%08x"}' % (plain[:-1], _BEGIN, crc32(plain))
