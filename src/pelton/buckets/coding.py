"""Converts between a user's view and the stream's: keys and subjects, values and bytes, entries and messages."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from pelton.api import ApiError, BucketDecodeError, ConfigError, StoredMessage, StreamConfig, api_error
from pelton.api.arguments import check_instance, sentence
from pelton.api.errors import from_reply
from pelton.api.json_values import to_json
from pelton.buckets.codecs import Codec
from pelton.buckets.entry import Entry, operation_of
from pelton.buckets.naming import check_filter, check_key, key_prefix, write_prefix
from pelton.buckets.settings import value_limit

T = TypeVar("T")


def _decoder(bucket: str, kind: Any) -> Any:
    try:
        return msgspec.json.Decoder(kind).decode
    except (TypeError, ValueError) as error:
        raise ConfigError(f"bucket {bucket!r}: type is {kind!r}: give a type that JSON can hold ({error})") from None


EVERYTHING: Final = ">"


class Coding(Generic[T]):
    """How one opened bucket reads and writes.

    ``domain_prefix`` is the prefix of writes if the bucket is in another domain than the connection.
    """

    def __init__(
        self, bucket: str, config: StreamConfig, kind: type[T] | None, codec: Codec | None, domain_prefix: str
    ) -> None:
        self.bucket = bucket
        self._prefix = key_prefix(config)
        self._into = write_prefix(config, domain_prefix)
        self._codec = codec
        self._kind = kind
        self.configure(config)
        self._decode: Any = None if kind is None else _decoder(bucket, kind)
        if codec is not None:
            check_instance(f"bucket {bucket!r}", "codec", codec, Codec, "give a pelton.Codec, or leave it out")

    def configure(self, config: StreamConfig) -> None:
        """Apply a (changed) limit of values."""
        self._limit = value_limit(config)

    # --- on the way in

    def subject(self, key: str) -> str:
        """Return the subject a key is read under. Raises ConfigError."""
        return self._prefix + self._written(key)

    def target(self, key: str) -> str:
        """Return the subject a key is written under: for a mirror that of its origin. Raises ConfigError."""
        return self._into + self._written(key)

    def _written(self, key: str) -> str:
        return check_key(key if self._codec is None else self._codec.encode_key(key))

    def filters(self, texts: tuple[str, ...]) -> list[str]:
        """Return filters of keys as subjects; no filter means all keys. Raises ConfigError."""
        found = [text if self._codec is None else self._codec.encode_filter(text) for text in texts]
        return [self._prefix + check_filter(text) for text in found or (EVERYTHING,)]

    def data(self, key: str, value: Any) -> bytes:
        """Return a value as it is stored.

        Raises ConfigError if it is not of the bucket's type, or not bytes; MessageTooLargeError.
        """
        if self._decode is not None:
            value = self._typed(key, value)
        elif isinstance(value, bytearray | memoryview):
            value = bytes(value)
        elif not isinstance(value, bytes):
            raise ConfigError(
                f"bucket {self.bucket!r}, key {key!r}: the value is {type(value).__name__}, not bytes: "
                "encode it, or open the bucket with type="
            )
        if 0 <= self._limit < len(value):
            raise self._too_large(key, len(value))
        encoded: bytes = value if self._codec is None else self._codec.encode_value(value)
        return encoded

    def _too_large(self, key: str, size: int) -> ApiError:
        known = api_error("JSStreamMessageExceedsMaximumErr")
        text = f"bucket {self.bucket!r}, key {key!r}: the value has {size} bytes, and max_value_size is {self._limit}"
        return from_reply(known.code, known.err_code, text)

    def _typed(self, key: str, value: Any) -> bytes:
        """Return the JSON of a value, checked to be readable as the bucket's type."""
        try:
            encoded = to_json(value)
            self._decode(encoded)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            kind = getattr(self._kind, "__name__", self._kind)
            raise ConfigError(
                f"bucket {self.bucket!r}, key {key!r}: the value is no {kind}, which the bucket was opened with: "
                f"{sentence(error)}"
            ) from None
        return encoded

    # --- on the way out

    def stored(self, message: StoredMessage, key: str) -> Entry[T]:
        """Return the entry of a stored message of a key. Raises BucketDecodeError."""
        operation = operation_of(message.hdrs)
        value = self._value(message.data, key, message.seq) if operation == "put" else None
        return Entry(self.bucket, key, value, message.seq, message.time_ns, operation)

    def entry(self, subject: str, seq: int, time_ns: int, block: bytes | None, data: bytes | None) -> Entry[T]:
        """Return the entry of a message; ``data`` is None if values are omitted. Raises BucketDecodeError."""
        key = self.key(subject, seq)
        operation = operation_of(block)
        value = None if data is None or operation != "put" else self._value(data, key, seq)
        return Entry(self.bucket, key, value, seq, time_ns, operation)

    def key(self, subject: str, seq: int) -> str:
        """Return the key that is stored under a subject. Raises BucketDecodeError."""
        key = subject[len(self._prefix) :]
        if self._codec is None:
            return key
        try:
            return self._codec.decode_key(key)
        except Exception as error:
            raise BucketDecodeError(self.bucket, key, seq, f"the codec cannot decode the key: {error}") from error

    def _value(self, data: bytes, key: str, seq: int) -> Any:
        # Codecs are the user's code, and may raise anything.
        try:
            if self._codec is not None:
                data = self._codec.decode_value(data)
            return data if self._decode is None else self._decode(data)
        except Exception as error:
            raise BucketDecodeError(self.bucket, key, seq, f"its value cannot be read: {error}") from error
