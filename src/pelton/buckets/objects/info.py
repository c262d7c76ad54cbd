"""The metadata of an object, and the JSON in which every NATS client stores it (ADR-20)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pelton.api import ObjectDamagedError, rfc3339
from pelton.api.json_values import UNREADABLE

_DIGEST: Final = "SHA-256="
# The time is that of the message; the JSON holds Go's zero time instead.
_NO_TIME: Final = "0001-01-01T00:00:00Z"


class ObjectLink(msgspec.Struct, frozen=True, omit_defaults=True):
    """The target of a link: an object, or with no ``name`` a whole object store."""

    bucket: str
    """The object store."""
    name: str = ""


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An object as it was put: ``size`` bytes in ``chunks`` parts of ``max_chunk_size``, stored under ``nuid``.

    ``mtime_ns`` is when it was last written, in wall nanoseconds since the epoch; ``revision`` is the sequence of its
    description. ``link`` is the target of a link. A deleted object has lost its other fields.
    """

    name: str
    """The object's name."""
    bucket: str
    """The object store."""
    nuid: str
    size: int = 0
    chunks: int = 0
    digest: str = ""
    """The SHA-256 of its bytes, as NATS writes it."""
    mtime_ns: int = 0
    revision: int = 0
    deleted: bool = False
    description: str = ""
    headers: dict[str, list[str]] = {}
    """Headers that were put with it."""
    metadata: dict[str, str] = {}
    """Texts for programs."""
    link: ObjectLink | None = None
    max_chunk_size: int = 0

    @property
    def mtime(self) -> str:
        """When it was last written, as RFC 3339 text."""
        return rfc3339(self.mtime_ns)


class ObjectStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An object store's settings and size: ``ttl`` in seconds, 0 for none; ``size`` in bytes, all included."""

    bucket: str
    """The object store."""
    description: str
    """A text for people."""
    size: int
    ttl: float
    max_bytes: int
    """The largest size, in bytes; -1: no limit."""
    storage: str
    """`file` or `memory`."""
    replicas: int
    """How many servers keep it."""
    sealed: bool
    """Whether nothing can be changed any more."""
    is_compressed: bool
    """Whether chunks are compressed."""
    metadata: dict[str, str]
    """Texts for programs."""


class _Options(msgspec.Struct, omit_defaults=True):
    link: ObjectLink | None = None
    max_chunk_size: int | None = None


class _Written(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The fields in the order in which the Go client writes them; those without a default are always written."""

    name: str
    description: str | None = None
    headers: dict[str, list[str]] | None = None
    metadata: dict[str, str] | None = None
    options: _Options | None = None
    bucket: str
    nuid: str
    size: int
    mtime: str
    chunks: int
    digest: str | None = None
    deleted: bool = False


class _Read(msgspec.Struct, kw_only=True):
    """The same fields, lenient for the differences between clients."""

    name: str
    description: str | None = None
    headers: dict[str, list[str] | str] | None = None
    metadata: dict[str, str] | None = None
    options: _Options | None = None
    bucket: str = ""
    nuid: str = ""
    size: int | None = None
    chunks: int | None = None
    digest: str | None = None
    deleted: bool | None = None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Read).decode


def encoded(info: ObjectInfo) -> bytes:
    """Return the JSON that describes an object."""
    options = _Options(info.link, info.max_chunk_size or None)
    return _encode(
        _Written(
            name=info.name,
            description=info.description or None,
            headers=info.headers or None,
            metadata=info.metadata or None,
            options=options if options != _Options() else None,
            bucket=info.bucket,
            nuid=info.nuid,
            size=info.size,
            mtime=_NO_TIME,
            chunks=info.chunks,
            digest=info.digest or None,
            deleted=info.deleted,
        )
    )


def decoded(bucket: str, subject: str, data: bytes, *, revision: int, time_ns: int) -> ObjectInfo:
    """Return the object of a description. Raises ObjectDamagedError."""
    try:
        read = _decode(data)
    except UNREADABLE as error:
        raise ObjectDamagedError(bucket, subject, f"its description cannot be read ({error}): put it again") from None
    options = read.options or _Options()
    return ObjectInfo(
        name=read.name,
        bucket=bucket,
        nuid=read.nuid,
        size=read.size or 0,
        chunks=read.chunks or 0,
        digest=read.digest or "",
        mtime_ns=time_ns,
        revision=revision,
        deleted=bool(read.deleted),
        description=read.description or "",
        headers=plain_headers(read.headers or {}),
        metadata=read.metadata or {},
        link=options.link,
        max_chunk_size=options.max_chunk_size or 0,
    )


def plain_headers(headers: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """Return headers with a list of values each."""
    return {name: [value] if isinstance(value, str) else [*value] for name, value in headers.items()}


def digest_text(digest: Any) -> str:
    """Return the text of a finished digest."""
    return _DIGEST + urlsafe_b64encode(digest.digest()).decode()


def is_digest(written: str, digest: Any) -> bool:
    """Whether a stored digest is this one: clients differ in the case of its name, and in its padding."""
    name, _, value = written.partition("=")
    ours = digest_text(digest).removeprefix(_DIGEST)
    return name.upper() == "SHA-256" and value.rstrip("=") == ours.rstrip("=")
