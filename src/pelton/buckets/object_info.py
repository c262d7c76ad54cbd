"""What is stored of an object besides its chunks: its names, its metadata, and the records of these (ADR-20)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pelton.api import ConfigError, ObjectDamagedError, ObjectNotFoundError, PubAck, headers, rfc3339
from pelton.api.errors import brief
from pelton.api.json_values import UNREADABLE
from pelton.buckets.bucket_settings import check_bucket
from pelton.jet import AnyMessage, Stream, Streams
from pelton.jet.stream import at_leader, last_of, next_of

_DIGEST: Final = "SHA-256="
# The time of the message is used; the JSON holds Go's zero time instead.
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


def encode_info(info: ObjectInfo) -> bytes:
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


def decode_info(bucket: str, subject: str, data: bytes, *, revision: int, time_ns: int) -> ObjectInfo:
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
    return {name: [value] if isinstance(value, str) else [*value] for name, value in headers.items()}


def digest_text(digest: Any) -> str:
    return _DIGEST + urlsafe_b64encode(digest.digest()).decode()


def is_digest(written: str, digest: Any) -> bool:
    """Whether a stored digest is this one: clients differ in the case of its name, and in its padding."""
    name, _, value = written.partition("=")
    ours = digest_text(digest).removeprefix(_DIGEST)
    return name.upper() == "SHA-256" and value.rstrip("=") == ours.rstrip("=")


# --- names of object stores and objects, and the streams and subjects behind them (ADR-20)

STREAM_PREFIX: Final = "OBJ_"
# In base64, after the name of its store, it forms a subject, which may have 3,072 bytes.
_LONGEST: Final = 2048


def stream_of(bucket: str) -> str:
    """Return the name of an object store's stream. Raises ConfigError."""
    return STREAM_PREFIX + check_bucket(bucket)


def check_name(name: str) -> str:
    """Return the checked name of an object: any text of 1 to 2,048 bytes. Raises ConfigError."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{name!r} cannot name an object: give a text that is not empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{brief(name)} cannot name an object: it holds a lone surrogate, no UTF-8 form") from None
    if size > _LONGEST:
        raise ConfigError(f"{brief(name)} cannot name an object: it has {size} bytes, and {_LONGEST} are the most")
    return name


def chunk_subject(bucket: str, nuid: str) -> str:
    """Return the subject of one object's chunks, or of all with ``>``."""
    return f"$O.{bucket}.C.{nuid}"


def meta_subject(bucket: str, name: str) -> str:
    """Return the subject of an object's description."""
    return f"$O.{bucket}.M.{urlsafe_b64encode(name.encode()).decode()}"


def all_metas(bucket: str) -> str:
    """Return the filter of all descriptions."""
    return f"$O.{bucket}.M.>"


# --- the descriptions of an object store's objects, and the removal of their chunks: the basis of all operations

# As many chunks as one transaction of an embedded store removes.
_PURGED_AT_ONCE: Final = 512
_EXPECTED: Final = headers.EXPECTED_LAST_SUBJECT_SEQUENCE
ROLLED_UP: Final = {headers.ROLLUP: "sub"}


class Records:
    """The descriptions in one object store, written one by one.

    ``puts_in_flight`` is how many batches of chunks may be under way at once: a connection that is lost may change
    their order. ``ends_together``: the last chunks may go with the description; a server might store what follows a
    refused message.
    """

    puts_in_flight = 1
    ends_together = False

    def __init__(self, jet: Streams, stream: Stream, bucket: str) -> None:
        self.jet = jet
        self.stream = stream
        self.bucket = bucket

    async def find(self, name: str, *, latest: bool = False) -> ObjectInfo | None:
        """Return an object, deleted or not; None if there never was one.

        ``latest`` asks the stream's leader, not a replica. Raises ConfigError, ObjectDamagedError.
        """
        subject = meta_subject(self.bucket, check_name(name))
        if latest:
            stored = await at_leader(self.jet.backend, self.stream.name, last_by_subj=subject)
        else:
            stored = await last_of(self.stream, subject)
        if stored is None:
            return None
        return decode_info(self.bucket, name, stored.data, revision=stored.seq, time_ns=stored.time_ns)

    async def get(self, name: str, *, latest: bool = False) -> ObjectInfo:
        """Return an existing object. Raises ObjectNotFoundError, ObjectDamagedError."""
        info = await self.find(name, latest=latest)
        if info is None or info.deleted:
            raise ObjectNotFoundError(self.bucket, name)
        return info

    async def write(self, info: ObjectInfo, *, expected: int | None = None) -> ObjectInfo:
        """Describe an object, if ``expected`` is still the revision of its name. Raises WrongLastSequenceError."""
        subject = meta_subject(self.bucket, info.name)
        data = encode_info(info)
        ack = await self.jet.publish(subject, data, headers=ROLLED_UP, expected_last_subject_seq=expected)
        return self.with_revision(info, ack)

    async def move(self, new: ObjectInfo, expected: int, gone: ObjectInfo) -> ObjectInfo:
        """Describe an object under a new name, which has the revision ``expected``, and its old name as deleted.

        Raises WrongLastSequenceError.
        """
        written = await self.write(new, expected=expected)
        await self.write(gone, expected=gone.revision)
        return written

    def with_revision(self, info: ObjectInfo, ack: PubAck) -> ObjectInfo:
        """Return an object with the fields known once its description is stored."""
        return msgspec.structs.replace(info, revision=ack.seq, mtime_ns=self.jet.runtime.clock.now())

    async def purge_chunks(self, nuid: str) -> None:
        """Remove what is stored of an object."""
        await self.stream.purge(filter=chunk_subject(self.bucket, nuid))


class AtomicRecords(Records):
    """The same where a batch is one transaction: of the embedded store."""

    puts_in_flight = 4
    ends_together = True

    async def move(self, new: ObjectInfo, expected: int, gone: ObjectInfo) -> ObjectInfo:
        """Describe both names in one transaction: a crash must not leave an object with two names."""
        messages: list[AnyMessage] = [
            (meta_subject(self.bucket, info.name), encode_info(info), {**ROLLED_UP, _EXPECTED: str(revision)})
            for info, revision in ((new, expected), (gone, gone.revision))
        ]
        acks = await self.jet.publish_batch(messages)
        return self.with_revision(new, acks[0])

    async def purge_chunks(self, nuid: str) -> None:
        """Remove what is stored of an object, some of it at a time: other writers get their turn in between."""
        subject = chunk_subject(self.bucket, nuid)
        first, last = await next_of(self.stream, subject, 1), await last_of(self.stream, subject)
        if first is None or last is None:
            return
        for seq in range(first.seq + _PURGED_AT_ONCE, last.seq + 1, _PURGED_AT_ONCE):
            await self.stream.purge(filter=subject, seq=seq)
        await self.stream.purge(filter=subject)


def records_of(jet: Streams, stream: Stream, bucket: str) -> Records:
    """Return the descriptions in the object store ``bucket``, in the way of its backend."""
    return (AtomicRecords if jet.backend.planning.atomic_batches else Records)(jet, stream, bucket)
