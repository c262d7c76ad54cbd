"""Arguments and results in another form than JSON, with a codec that the program brings. Pure.

A job's message stays JSON: an argument or result that a codec has encoded stands in it as base64, so that names and
options are read by every program, whether it has the codec or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from pelton.api import ConfigError


class JobCodec(Protocol):
    """Turns values into bytes and back, for arguments and results: ``pelton.Jobs(codec=...)``."""

    def encode(self, value: Any, /) -> bytes:
        """Return a value as bytes; may raise any error."""
        ...

    def decode(self, data: bytes, kind: Any, /) -> Any:
        """Return the value of bytes; ``kind`` is the type that the function declares, Any if it declares none.

        Raise an error if the value is of another type.
        """
        ...


def checked_codec(codec: object) -> JobCodec | None:
    """Return a codec if it has both methods. Raises ConfigError."""
    if codec is None:
        return None
    for name in ("encode", "decode"):
        if not callable(getattr(codec, name, None)):
            raise ConfigError(f"codec is {codec!r}: give an object with encode(value) and decode(data, type)")
    return codec  # type: ignore[return-value]  # it was looked at


def encoded_with(codec: JobCodec, value: object) -> bytes:
    """Return a value as a JSON text that holds what the codec makes of it. Raises what the codec raises."""
    data = codec.encode(value)
    if not isinstance(data, bytes):
        raise TypeError(f"{codec!r} encoded to {type(data).__name__}, not to bytes")
    return msgspec.json.encode(data)


def decoded_with(codec: JobCodec, encoded: msgspec.Raw | bytes, kind: Any) -> Any:
    """Return a value that :func:`encoded_with` has encoded. Raises what the codec raises."""
    return codec.decode(msgspec.json.decode(encoded, type=bytes), kind)


def encode_each(codec: JobCodec, named: dict[str, Any], kinds: dict[str, Any]) -> bytes:
    """Return arguments as a JSON object, each checked by decoding it again. Raises what the codec raises."""
    encoded = {name: msgspec.Raw(encoded_with(codec, value)) for name, value in named.items()}
    for name, raw in encoded.items():
        decoded_with(codec, raw, kinds.get(name, Any))
    return msgspec.json.encode(encoded)


def decode_each(
    codec: JobCodec, raw: msgspec.Raw, kinds: dict[str, Any], defaults: dict[str, Callable[[], Any]]
) -> dict[str, Any]:
    """Return arguments by name. Raises TypeError for one too many or too few, and what the codec raises."""
    found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    if unknown := found.keys() - kinds.keys():
        raise TypeError(f"there is no parameter {min(unknown)!r}")
    if missing := kinds.keys() - found.keys() - defaults.keys():
        raise TypeError(f"there is no argument for {min(missing)!r}")
    return {
        name: decoded_with(codec, found[name], kind) if name in found else defaults[name]()
        for name, kind in kinds.items()
    }
