"""A user's view of a bucket and the stream's: entries, keys and subjects, values and bytes, and codecs.

**Codecs (ADR-54).** A codec turns keys into keys that NATS allows, and values into other bytes, when they are written,
and back when they are read. When you open a bucket, name the codec its writers used: the bucket itself does not know
it. The two built-in ones are compatible with the codecs of the same names of other NATS clients.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import reduce
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from pelton.api import (
    ApiError,
    BucketDecodeError,
    ConfigError,
    Delivered,
    StoredMessage,
    StreamConfig,
    api_error,
    headers,
    rfc3339,
)
from pelton.api.arguments import check_instance, sentence
from pelton.api.errors import from_reply
from pelton.api.json_values import to_json
from pelton.buckets.bucket_settings import check_filter, check_key, key_prefix, value_limit, write_prefix
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
        """Return the path as a key."""
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
        """Return the key, encoded by the codec of keys."""
        return self._keys.encode_key(key)

    def decode_key(self, key: str) -> str:
        """Return the key that was written."""
        return self._keys.decode_key(key)

    def encode_filter(self, text: str) -> str:
        """Return the filter encoded by the codec of keys. Raises ConfigError if it does not support wildcards."""
        return self._keys.encode_filter(text)

    def encode_value(self, value: bytes) -> bytes:
        """Return the value, encoded by the codec of values."""
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


# --- entries: a key's value at one revision

Operation = Literal["put", "delete", "purge"]
OPERATION_HEADER: Final = "KV-Operation"
_OPERATIONS: Final[dict[str, Operation]] = {"DEL": "delete", "PURGE": "purge"}
# What a server writes when a message expired or was removed (ADR-48).
_MARKERS: Final[dict[str, Operation]] = {"MaxAge": "purge", "Purge": "purge", "Remove": "delete"}


class Entry(msgspec.Struct, Generic[T], frozen=True):
    """A key at one revision. ``time_ns`` is when it was written; ``delta`` entries of the bucket came after it.

    ``value`` is None if the ``operation`` is not ``put``, or if values were not requested.
    """

    bucket: str
    key: str
    value: T | None
    revision: int
    time_ns: int
    operation: Operation
    delta: int = 0

    @property
    def time(self) -> str:
        """When it was written, as RFC 3339 text."""
        return rfc3339(self.time_ns)


class BucketStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket's settings and size: durations in seconds, 0 for none; ``values`` are revisions.

    Limits are -1 for no limit. ``mirror`` is the bucket of which this one is a copy, ``sources`` those it takes
    keys from.
    """

    bucket: str
    values: int
    bytes: int
    """Its size in bytes."""
    history: int
    """How many revisions of a key are kept."""
    ttl: float
    """How long a value is kept."""
    limit_marker_ttl: float
    """How long markers of expired keys are kept."""
    is_compressed: bool
    """Whether values are compressed."""
    storage: str
    """`file` or `memory`."""
    replicas: int
    """How many servers keep it."""
    max_value_size: int
    """The largest value, in bytes."""
    max_bytes: int
    """The largest bucket, in bytes."""
    description: str
    """A text for people."""
    metadata: dict[str, str]
    """Texts for programs."""
    mirror: str
    sources: tuple[str, ...]


def operation_of(block: bytes | None) -> Operation:
    """Return what a message with these headers did to its key."""
    if not block:
        return "put"
    marker = headers.first(block, headers.MARKER_REASON)
    if marker is not None:
        return _MARKERS.get(marker, "purge")
    return _OPERATIONS.get(headers.first(block, OPERATION_HEADER) or "", "put")


def stored_block(message: StoredMessage | Delivered) -> bytes | None:
    block = message.headers if isinstance(message, Delivered) else message.hdrs
    return block or None


# --- converts between a user's view and the stream's: keys and subjects, values and bytes, entries and messages


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
        return self._prefix + self._encode_key(key)

    def target(self, key: str) -> str:
        """Return the subject a key is written under: for a mirror, the origin's subject. Raises ConfigError."""
        return self._into + self._encode_key(key)

    def _encode_key(self, key: str) -> str:
        return check_key(key if self._codec is None else self._codec.encode_key(key))

    def filters(self, texts: tuple[str, ...]) -> list[str]:
        """Return filters of keys as subjects; no filter means all keys. Raises ConfigError."""
        encoded = [text if self._codec is None else self._codec.encode_filter(text) for text in texts]
        return [self._prefix + check_filter(text) for text in encoded or (EVERYTHING,)]

    def data(self, key: str, value: Any) -> bytes:
        """Return a value as it is stored.

        Raises ConfigError if it is not of the bucket's type, or not bytes; MessageTooLargeError.
        """
        if self._decode is not None:
            value = self._encode_typed(key, value)
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

    def _encode_typed(self, key: str, value: Any) -> bytes:
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

    def entry_of(self, message: StoredMessage, key: str) -> Entry[T]:
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
