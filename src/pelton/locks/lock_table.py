"""The bucket that locks are kept in: its records, and how they are read, written and watched.

=================================== ============================================================
key in the bucket ``pelton_locks``  holds
=================================== ============================================================
``lock.NAME``                       the holder (:class:`Holding`), with a time to live
``semaphore.NAME.N``                the holder of slot N, the same
``line.lock.NAME.ID``               a waiter's :class:`Ticket`, with a time to live
``line.semaphore.NAME.ID``          the same
=================================== ============================================================

The fencing token is the revision of the write that took the slot. Tokens grow even if the bucket is removed and created
again (``buckets/bucket.py``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from pelton.api import (
    ConfigError,
    DirectGet,
    MessageNotFoundError,
    NoStreamForSubjectError,
    StreamNotFoundError,
    headers,
)
from pelton.api.build import seconds_to_ns
from pelton.api.json_values import UNREADABLE
from pelton.api.times import SECOND, Seconds
from pelton.buckets import make_token_bucket
from pelton.buckets.bucket_settings import check_key
from pelton.buckets.coding import OPERATION_HEADER, operation_of
from pelton.jet import Streams
from pelton.jet.message_source import OrderedReader
from pelton.jet.stream import at_leader

Kind = Literal["lock", "semaphore"]
_MOST_SLOTS: Final = 1_000


class LockRow(NamedTuple):
    """What the store holds under a key, since ``time_ns`` by its clock; ``data`` None for a marker.

    A marker means that it was released or removed, or (``is_expired``) that the store has expired it.
    """

    key: str
    revision: int
    data: bytes | None
    time_ns: int = 0
    is_expired: bool = False


class Holding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The holder of a slot: ``owner`` is the id of one acquisition, ``token`` its token (0: the revision itself).

    ``since`` is when it was acquired, by the holder's wall clock (ns), for operators to see: nothing relies on it.
    """

    owner: str
    ttl: int
    slots: int = 1
    token: int = 0
    who: str = ""
    since: int = 0


class Ticket(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A waiter, with the ``number`` of its first ticket (0: this is the first); ``presence``: see the port."""

    number: int = 0
    who: str = ""
    presence: str = ""


encode: Final = msgspec.json.Encoder().encode
_holding: Final = msgspec.json.Decoder(Holding).decode
_ticket: Final = msgspec.json.Decoder(Ticket).decode


def holding_of(data: bytes | None) -> Holding | None:
    """Return the holder of a slot; None if it is free, or the data is no holding."""
    try:
        return None if data is None else _holding(data)
    except UNREADABLE:
        return None


def ticket_of(data: bytes | None) -> Ticket | None:
    """Return a waiter's ticket; None if there is none."""
    try:
        return None if data is None else _ticket(data)
    except UNREADABLE:
        return None


@dataclass(frozen=True)
class LockSpec:
    """A lock or a semaphore: its name, its number of slots, and its time to live in seconds."""

    kind: Kind
    name: str
    slots: int
    ttl: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"

    @property
    def keys(self) -> tuple[str, ...]:
        base = f"{self.kind}.{self.name}"
        return (base,) if self.kind == "lock" else tuple(f"{base}.{slot}" for slot in range(self.slots))

    @property
    def filters(self) -> tuple[str, str]:
        """The filters of slots and tickets."""
        base = f"{self.kind}.{self.name}"
        return (base if self.kind == "lock" else f"{base}.*", f"line.{base}.*")

    def ticket(self, owner: str) -> str:
        """Return the key of a waiter's ticket."""
        return f"line.{self.kind}.{self.name}.{owner}"


def lock_spec(kind: Kind, name: str, slots: int, ttl: Seconds) -> LockSpec:
    """Return a lock or semaphore with these settings. Raises ConfigError."""
    try:
        check_key(name)
    except ConfigError:
        raise ConfigError(
            f"{name!r} cannot name a {kind}: use letters, digits and - / _ = . (no dot at its ends, no two in a row)"
        ) from None
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= _MOST_SLOTS:
        raise ConfigError(f"{kind} {name!r}: slots is {slots!r}, it can be 1 to {_MOST_SLOTS}")
    lasts = seconds_to_ns("ttl", ttl, f"{kind} {name!r}")
    if lasts < SECOND or lasts % SECOND:
        raise ConfigError(f"{kind} {name!r}: ttl is {ttl!r}: a time to live is whole seconds, at least 1")
    return LockSpec(kind, name, slots, lasts // SECOND)


# --- the bucket that locks are kept in: reads, writes, watches

T = TypeVar("T")
BUCKET: Final = "pelton_locks"
_STREAM: Final = f"KV_{BUCKET}"
_PREFIX: Final = f"$KV.{BUCKET}."
# How long the store keeps the marker of a release or expiry: unused names leave nothing behind.
_TRACE_S: Final = 60
_AGED: Final = "MaxAge"
_DELETED: Final = {OPERATION_HEADER: "DEL"}


class LockTable:
    """Keys of the bucket ``pelton_locks``, which is created when it is first needed."""

    def __init__(self, jet: Streams) -> None:
        self._jet = jet
        self._is_ready = False
        self.has_steady_time: bool = jet.backend.planning.steady_time

    async def read(self, filters: Iterable[str]) -> list[LockRow]:
        """Return the content of some keys; on a cluster a replica may answer, which lags behind."""
        request = DirectGet(multi_last=tuple(_PREFIX + text for text in filters))

        async def read() -> list[LockRow]:
            try:
                rows = (await self._jet.backend.direct_get(_STREAM, request)).messages
            except MessageNotFoundError:
                return []
            return [_row(one.subject.removeprefix(_PREFIX), one.seq, one.time_ns, one.hdrs, one.data) for one in rows]

        return await self._in_bucket(read)

    async def ask(self, key: str) -> LockRow | None:
        """Return the content of a key, from the leader."""
        with suppress(StreamNotFoundError):
            if (stored := await at_leader(self._jet.backend, _STREAM, last_by_subj=_PREFIX + key)) is not None:
                return _row(key, stored.seq, stored.time_ns, stored.hdrs, stored.data)
        return None

    async def write(self, key: str, data: bytes, expected: int | None, ttl: int) -> int:
        """Write a key if ``expected`` is its last revision (0: there is none), for ``ttl`` seconds.

        Return its revision. Raises WrongLastSequenceError.
        """

        async def write() -> int:
            return (await self._jet.publish(_PREFIX + key, data, expected_last_subject_seq=expected, ttl=ttl)).seq

        return await self._in_bucket(write)

    async def remove(self, key: str, expected: int | None = None) -> None:
        """Remove a key if ``expected`` is its last revision. Raises WrongLastSequenceError."""
        await self._jet.publish(_PREFIX + key, headers=_DELETED, expected_last_subject_seq=expected, ttl=_TRACE_S)

    async def close(self) -> None:
        await self._jet.backend.close()

    async def presence(self) -> str:
        """Return the name by which others can ask whether this backend is still open."""
        return await self._jet.backend.presence()

    async def is_gone(self, presence: str) -> bool:
        """Whether another backend is known to be gone."""
        return await self._jet.backend.is_gone(presence)

    async def watch(self, filters: Iterable[str]) -> AsyncGenerator[LockRow | None, None]:
        """Watch some keys: yields their current content, then None, then their changes."""
        subjects = [_PREFIX + text for text in filters]
        fields: dict[str, Any] = {"deliver_policy": "last_per_subject", "filter_subjects": subjects}
        reader = OrderedReader(self._jet.backend, self._jet.runtime, _STREAM, **fields)
        await self._in_bucket(reader.begin)
        async with aclosing(reader.follow()) as deliveries:
            async for one in deliveries:
                key = "" if one is None else one.subject.removeprefix(_PREFIX)
                yield None if one is None else _row(key, one.seq, one.time_ns, one.headers, one.data)

    async def _in_bucket(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Execute an operation in the bucket, creating it if necessary, even if it is removed in between."""
        if not self._is_ready:
            await self._make()
        try:
            return await operation()
        except (StreamNotFoundError, NoStreamForSubjectError):
            await self._make()
            return await operation()

    async def _make(self) -> None:
        try:
            config = (await self._jet.stream(_STREAM)).config
        except StreamNotFoundError:
            what = "locks, semaphores and who waits for them"
            await make_token_bucket(self._jet, BUCKET, limit_marker_ttl=_TRACE_S, description=what)
            config = (await self._jet.stream(_STREAM)).config
        if not config.allow_msg_ttl or not config.allow_direct:
            raise ConfigError(f"bucket {BUCKET!r} was created without limit_marker_ttl, which locks need: delete it")
        self._is_ready = True


def _row(key: str, seq: int, time_ns: int, block: bytes | None, data: bytes) -> LockRow:
    if not block or operation_of(block) == "put":
        return LockRow(key, seq, data, time_ns)
    return LockRow(key, seq, None, time_ns, headers.first(block, headers.MARKER_REASON) == _AGED)
