"""What a store has, as it is in its rows, and the limits and usage of whoever has it open.

**The configurations are read at once, while streams and consumers are made when they are used.** A store may have very
many streams and consumers, of which a process uses a few. So loading one decodes only what decides which subject leads
where, and which streams and consumers are to be watched without being used. Every configuration is compared with its
checksum, because it must be known at once what is damaged.

**What has changed since a version of the catalogue.** Every change of a stream or consumer increments the version
(``meta.catalogue``) and leaves a note of it in ``meta``: one of ``_KEPT``, which take turns. A process that finds a
note of each version that it has not seen reads only what these name; if one is missing (there were more, or an older
release has written), it reads everything.

**The limits and usage of an open store: NATS calls this an account.** The limits belong to this opening: requests made
through it are checked, and the limits are not kept in the store. Reservations are the ``max_bytes`` of its streams, as
on a NATS server; a stream without ``max_bytes`` reserves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from pelton.api import (
    AccountInfo,
    AccountLimits,
    ApiError,
    ConsumerConfig,
    ConsumerLimits,
    CorruptConfigError,
    StreamConfig,
    api_error,
)
from pelton.api.config import MAX_ACK_PENDING, Storage
from pelton.api.info import ApiStats
from pelton.storage import DamagedRowError, Database, integer, integers, text
from pelton.streams import StreamLog
from pelton.streams.rules import check_config

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")


class StreamDigest(msgspec.Struct, frozen=True, gc=False):
    """What matters of a stream's configuration before it is used; durations in nanoseconds."""

    subjects: tuple[str, ...] = ()
    mirror: Any = None
    sources: Any = ()
    republish: Any = None
    max_age: int = 0
    allow_msg_schedules: bool = False
    subject_delete_marker_ttl: int = 0

    @property
    def takes(self) -> bool:
        """Whether it takes messages from others."""
        return self.mirror is not None or bool(self.sources)

    @property
    def is_ticking(self) -> bool:
        """Whether time makes messages."""
        return self.allow_msg_schedules or self.subject_delete_marker_ttl > 0


class ConsumerDigest(msgspec.Struct, frozen=True, gc=False):
    """What matters of a consumer's configuration before it is used."""

    deliver_subject: str = ""
    inactive_threshold: int = 0
    direct: bool = False


_stream_digest: Final = msgspec.json.Decoder(StreamDigest).decode
_consumer_digest: Final = msgspec.json.Decoder(ConsumerDigest).decode
C = TypeVar("C", StreamConfig, ConsumerConfig)
D = TypeVar("D")
Key = tuple[str, str]
"""A consumer, by the name of its stream and its own name."""


def _checked(kind: type[C], config: object, decode: Callable[[bytes], D]) -> tuple[bytes, D]:
    raw = check_config(kind, config)
    try:
        return raw, decode(raw)
    except msgspec.MsgspecError as error:
        raise DamagedRowError(f"a configuration cannot be decoded ({error})") from error


class StreamRow(msgspec.Struct, frozen=True, gc=False):
    """The row of a stream."""

    id: int
    name: str
    raw: bytes
    created: int
    digest: StreamDigest

    @classmethod
    def of(cls, row_id: object, name: object, config: object, created: object) -> StreamRow:
        """Decode a row. Raises DamagedRowError."""
        raw, digest = _checked(StreamConfig, config, _stream_digest)
        return cls(integer(row_id), text(name), raw, integer(created), digest)


class ConsumerRow(msgspec.Struct, frozen=True, gc=False):
    """The row of a consumer of a stream."""

    id: int
    stream: str
    name: str
    raw: bytes
    created: int
    floor: int
    digest: ConsumerDigest

    @property
    def key(self) -> Key:
        return self.stream, self.name

    @classmethod
    def of(cls, row_id: object, stream: str, name: object, config: object, *numbers: object) -> ConsumerRow:
        """Decode a row. Raises DamagedRowError."""
        raw, digest = _checked(ConsumerConfig, config, _consumer_digest)
        created, floor = integers(numbers)
        return cls(integer(row_id), stream, text(name), raw, created, floor, digest)


class LazyMapping(Mapping[K, V], Generic[K, R, V]):
    """Values by key, each made of its row when it is first asked for. Raises what ``make`` raises."""

    def __init__(self, make: Callable[[R], V]) -> None:
        self._make = make
        self.rows: dict[K, R] = {}
        self.made: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = self._make(self.rows[key])
        return found

    def __iter__(self) -> Iterator[K]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: object) -> bool:
        return key in self.rows

    def values(self) -> ValuesView[V]:
        """Make and return all that can be decoded."""
        return dict(self.items()).values()

    def items(self) -> ItemsView[K, V]:
        """Do the same, with their keys."""
        found = {}
        for key in self.rows:
            with suppress(CorruptConfigError):
                found[key] = self[key]
        return found.items()

    def pop(self, key: K) -> R | None:
        self.made.pop(key, None)
        return self.rows.pop(key, None)


# --- what has changed

_KEPT: Final = 1_024
_MOST: Final = 64
_INCREMENT: Final = "UPDATE meta SET value=value+1 WHERE key='catalogue' RETURNING value"
_NOTE: Final = "SELECT value FROM meta WHERE key=?"


class Change(msgspec.Struct, frozen=True, array_like=True):
    """The row ids of streams and consumers that were created, changed or deleted."""

    streams: tuple[int, ...] = ()
    consumers: tuple[int, ...] = ()


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(tuple[int, Change]).decode


def _key(version: int) -> str:
    return f"change {version % _KEPT}"


def catalogue_version(database: Database) -> int:
    return integer(database.value("SELECT value FROM meta WHERE key='catalogue'"))


def note_change(database: Database, change: Change) -> int:
    """Increment the version, and note what has changed; return it."""
    version = integer(database.value(_INCREMENT))
    if len(change.consumers) <= _MOST:
        note = _encode((version, change)).decode()
        database.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (_key(version), note))
    return version


def changes_between(database: Database, seen: int, version: int) -> list[Change] | None:
    """Return the changes after the version ``seen``, in order; None if they are not all known."""
    if seen < 0 or not 0 < version - seen <= _KEPT:
        return None
    found = list[Change]()
    for each in range(seen + 1, version + 1):
        note: Any = database.value(_NOTE, (_key(each),))
        try:
            noted, change = _decode(text(note))
        except msgspec.DecodeError:
            return None
        if noted != each:
            return None
        found.append(change)
    return found


def most_bytes(limits: AccountLimits, storage: Storage) -> int:
    """Return how many bytes all streams of a kind of storage may have together; -1 for any number."""
    return limits.max_memory if storage == "memory" else limits.max_storage


class StoreContents(Protocol):
    """The streams and consumers in the store."""

    @property
    def streams(self) -> Mapping[str, StreamLog]: ...
    @property
    def num_consumers(self) -> int: ...
    def use(self, log: StreamLog, /) -> StreamLog: ...


class Account:
    """The limits of one opening, and the number of its API requests."""

    def __init__(self, contents: StoreContents, limits: AccountLimits) -> None:
        self._contents = contents
        self.limits = limits
        self._api = ApiStats()
        # What at least may be stored still in the open transaction: not all streams are asked for each message.
        self.room: dict[Storage, int] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count one request, and also count it as an error if it raises."""
        try:
            yield
        except ApiError:
            self._api.errors += 1
            raise
        finally:
            self._api.total += 1

    def count(self, *, is_refused: bool) -> None:
        """Count a request that was answered elsewhere."""
        self._api.errors += is_refused
        self._api.total += 1

    def info(self) -> AccountInfo:
        """Return what is used, reserved and allowed; ``api`` counts the requests of this opening."""
        contents = self._contents
        return AccountInfo(
            memory=self._stored_bytes("memory"),
            storage=self._stored_bytes("file"),
            reserved_memory=self._reserved_bytes("memory"),
            reserved_storage=self._reserved_bytes("file"),
            streams=len(contents.streams),
            consumers=contents.num_consumers,
            limits=self.limits,
            api=ApiStats(total=self._api.total, errors=self._api.errors),
        )

    @property
    def has_quota(self) -> bool:
        """Whether the bytes of all streams together are limited."""
        return self.limits.max_storage >= 0 or self.limits.max_memory >= 0

    # --- streams

    def check_number(self) -> None:
        """Refuse another stream if the limit is reached (10027); 0 is none, as on a NATS server."""
        if 0 < self.limits.max_streams <= len(self._contents.streams):
            raise api_error("JSMaximumStreamsLimitErr")

    def check_bytes(self, config: StreamConfig) -> None:
        """Refuse a ``max_bytes`` that is missing (10113) or too large (10122)."""
        limits, memory = self.limits, config.storage == "memory"
        if limits.max_bytes_required and config.max_bytes <= 0:
            raise api_error("JSStreamMaxBytesRequired", stream=config.name)
        most = limits.memory_max_stream_bytes if memory else limits.storage_max_stream_bytes
        if 0 < most < config.max_bytes:
            raise api_error("JSStreamMaxStreamBytesExceeded", stream=config.name)

    def check_reservation(self, config: StreamConfig, old: StreamConfig | None = None) -> None:
        """Refuse a reservation beyond the limit (10028, 10047); a new stream needs at least one byte."""
        before = max(old.max_bytes, 0) if old is not None else 0
        more = max(config.max_bytes - before, 0) if old is not None else max(config.max_bytes, 1)
        if 0 <= most_bytes(self.limits, config.storage) < self._reserved_bytes(config.storage) + more:
            constant = "JSMemoryResourcesExceededErr" if config.storage == "memory" else "JSStorageResourcesExceededErr"
            raise api_error(constant, stream=config.name)

    # --- consumers

    def consumer_limits(self, limits: ConsumerLimits) -> ConsumerLimits:
        """Return a stream's consumer limits, with the account's where the stream sets none."""
        most = self.limits.max_ack_pending
        if most <= 0 or limits.max_ack_pending:
            return limits
        return ConsumerLimits(inactive_threshold=limits.inactive_threshold, max_ack_pending=min(MAX_ACK_PENDING, most))

    def check_consumer(self, max_ack_pending: int, stream: str, name: str) -> None:
        """Refuse a consumer whose ``max_ack_pending`` is above the limit (10121)."""
        most = self.limits.max_ack_pending
        if 0 < most < max_ack_pending:
            raise api_error("JSConsumerMaxPendingAckExcessErrF", stream=stream, consumer=name, limit=most)

    def check_consumers(self, config: StreamConfig, others: int, name: str) -> None:
        """Refuse another consumer of a stream beyond its own limit or the account's (10026); 0 is none."""
        for most in (config.max_consumers, self.limits.max_consumers):
            if 0 < most <= others:
                raise api_error("JSMaximumConsumersLimitErr", stream=config.name, consumer=name)

    # --- use

    def check_quota(self, storage: Storage, size: int) -> None:
        """Refuse bytes that exceed the limit for all streams together (10002)."""
        most, room = most_bytes(self.limits, storage), self.room.get(storage, -1)
        if most < 0:
            return
        if room < size and (room := most - self._stored_bytes(storage)) < size:
            raise api_error("JSAccountResourcesExceededErr")
        self.room[storage] = room - size

    def _stored_bytes(self, storage: Storage) -> int:
        use, streams = self._contents.use, list(self._contents.streams.values())
        return sum(use(log).state.bytes for log in streams if log.config.storage == storage)

    def _reserved_bytes(self, storage: Storage) -> int:
        configs = (log.config for log in self._contents.streams.values())
        return sum(max(config.max_bytes, 0) for config in configs if config.storage == storage)
