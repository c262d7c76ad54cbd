"""Codecs: how keys and values are encoded (ADR-54).

A codec turns keys into keys that NATS allows, and values into other bytes, when they are written, and back when they
are read. When you open a bucket, name the codec its writers used: the bucket itself does not know it. The two built-in
ones are compatible with the codecs of the same names of other NATS clients.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import reduce
from typing import Final, TypeVar

from pelton.api import ConfigError
from pelton.subjects import has_wildcard

T = TypeVar("T")
_ROOT: Final = "_root_"


class Codec:
    """Writes keys and values unchanged. In your own codec, override both directions of what it changes.

    Keys are encoded before they are checked against NATS's rules. Decoding may raise any exception: it reaches
    the reader as the cause of BucketDecodeError.
    """

    def encode_key(self, key: str) -> str:
        """Return the stored form of a key."""
        return key

    def decode_key(self, key: str) -> str:
        """Return the key of a stored form."""
        return key

    def encode_filter(self, text: str) -> str:
        """Return a filter of keys (``*``, ``>``) as a filter of stored keys.

        A codec of keys that does not override this does not support wildcards: ConfigError for a filter with one.
        """
        if type(self).encode_key is Codec.encode_key:
            return text
        if has_wildcard(text):
            raise ConfigError(
                f"filter {text!r}: {type(self).__name__} does not support wildcards: "
                "implement its encode_filter, or read all keys and filter them"
            )
        return self.encode_key(text)

    def encode_value(self, value: bytes) -> bytes:
        """Return the stored form of a value."""
        return value

    def decode_value(self, value: bytes) -> bytes:
        """Return the value of a stored form."""
        return value


class Base64Codec(Codec):
    """Each part of a key, and the value, as unpadded URL-safe base64: keys may hold any text then."""

    def encode_key(self, key: str) -> str:
        """Return the key with each of its dotted parts encoded."""
        return ".".join(_base64(part) for part in key.split("."))

    def decode_key(self, key: str) -> str:
        """Return the key of encoded parts. Raises ValueError."""
        return ".".join(_plain(part.encode()).decode() for part in key.split("."))

    def encode_filter(self, text: str) -> str:
        """Return the filter with its parts encoded; wildcards stay."""
        return ".".join(part if part in ("*", ">") else _base64(part) for part in text.split("."))

    def encode_value(self, value: bytes) -> bytes:
        """Return the value, encoded."""
        return urlsafe_b64encode(value).rstrip(b"=")

    def decode_value(self, value: bytes) -> bytes:
        """Return the value, decoded. Raises ValueError."""
        return _plain(value)


class PathCodec(Codec):
    """Keys as paths: ``/cars/car1/colour`` is written as ``_root_.cars.car1.colour``. A slash at the end is dropped."""

    def encode_key(self, key: str) -> str:
        """Return a path as a key."""
        if key.startswith("/"):
            key = f"{_ROOT}{key}"
        return key.removesuffix("/").replace("/", ".")

    def decode_key(self, key: str) -> str:
        """Return the path that a key was written from."""
        if key == _ROOT:
            return "/"
        return key.removeprefix(_ROOT if key.startswith(f"{_ROOT}.") else "").replace(".", "/")

    def encode_filter(self, text: str) -> str:
        """Return a filter of paths, such as ``/cars/*/colour``, as one of keys."""
        return self.encode_key(text)


class ChainCodec(Codec):
    """Several codecs, one after the other; back in reverse."""

    def __init__(self, *codecs: Codec) -> None:
        if not codecs:
            raise ConfigError("ChainCodec: name at least one codec")
        self._codecs = codecs

    def encode_key(self, key: str) -> str:
        """Return the key after all codecs."""
        return _through([codec.encode_key for codec in self._codecs], key)

    def decode_key(self, key: str) -> str:
        """Return the key that was written."""
        return _through([codec.decode_key for codec in reversed(self._codecs)], key)

    def encode_filter(self, text: str) -> str:
        """Return the filter after all codecs. Raises ConfigError if one of them does not support wildcards."""
        return _through([codec.encode_filter for codec in self._codecs], text)

    def encode_value(self, value: bytes) -> bytes:
        """Return the value after all codecs."""
        return _through([codec.encode_value for codec in self._codecs], value)

    def decode_value(self, value: bytes) -> bytes:
        """Return the value that was written."""
        return _through([codec.decode_value for codec in reversed(self._codecs)], value)


class SplitCodec(Codec):
    """One codec for keys, another for values; if one is left out, they are written unchanged."""

    def __init__(self, *, keys: Codec | None = None, values: Codec | None = None) -> None:
        # Bound once, so that an absent codec costs no more than a method that is not overridden.
        keys, values = keys or Codec(), values or Codec()
        self._keys, self._values = keys, values

    def encode_key(self, key: str) -> str:
        """Return the key encoded by the codec of keys."""
        return self._keys.encode_key(key)

    def decode_key(self, key: str) -> str:
        """Return the key that was written."""
        return self._keys.decode_key(key)

    def encode_filter(self, text: str) -> str:
        """Return the filter encoded by the codec of keys. Raises ConfigError if it does not support wildcards."""
        return self._keys.encode_filter(text)

    def encode_value(self, value: bytes) -> bytes:
        """Return the value encoded by the codec of values."""
        return self._values.encode_value(value)

    def decode_value(self, value: bytes) -> bytes:
        """Return the value that was written."""
        return self._values.decode_value(value)


def _base64(part: str) -> str:
    return urlsafe_b64encode(part.encode()).rstrip(b"=").decode()


def _plain(part: bytes) -> bytes:
    """Return decoded base64. Raises ValueError, also for characters that Python's decoder would skip."""
    if part.rstrip(b"=") != part or len(part) % 4 == 1:
        raise binascii.Error("not unpadded base64")
    decoded = urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    if urlsafe_b64encode(decoded).rstrip(b"=") != part:
        raise binascii.Error("not URL-safe base64")
    return decoded


def _through(steps: list[Callable[[T], T]], value: T) -> T:
    return reduce(lambda now, step: step(now), steps, value)
