"""The configurations of a store as they are in its rows: read at once, while streams and consumers are made when used.

A store may have very many streams and consumers, of which a process uses a few. So loading one decodes only what
decides which subject leads where, and which streams and consumers are to be watched without being used. Every
configuration is compared with its checksum, because it must be known at once what is damaged.

**What has changed since a version of the catalogue.** Every change of a stream or consumer increments the version
(``meta.catalogue``) and leaves a note of it in ``meta``: one of ``_KEPT``, which take turns. A process that finds a
note of each version that it has not seen reads only what these name; if one is missing (there were more, or an older
release has written), it reads everything.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from pelton.api import ConsumerConfig, CorruptConfigError, StreamConfig
from pelton.storage import DamagedRowError, Database, integer, integers, text
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


class StreamRow(NamedTuple):
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


class ConsumerRow(NamedTuple):
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
        """Remove a row, and what was made of it."""
        self.made.pop(key, None)
        return self.rows.pop(key, None)


# --- what has changed

_KEPT: Final = 1_024
_MOST: Final = 64
_INCREMENT: Final = "UPDATE meta SET value=value+1 WHERE key='catalogue' RETURNING value"
_NOTE: Final = "SELECT value FROM meta WHERE key=?"


class Change(NamedTuple):
    """The row ids of streams and consumers that were created, changed or deleted."""

    streams: tuple[int, ...] = ()
    consumers: tuple[int, ...] = ()


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(tuple[int, Change]).decode


def _key(version: int) -> str:
    return f"change {version % _KEPT}"


def catalogue_version(database: Database) -> int:
    """Return the present version."""
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
