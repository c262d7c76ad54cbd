"""The records of locks in their bucket: keys and values.

===================================  ============================================================
key in the bucket ``pelton_locks``   holds
===================================  ============================================================
``lock.NAME``                        the holder (:class:`Holding`), with a time to live
``semaphore.NAME.N``                 the holder of slot N, the same
``line.lock.NAME.ID``                a waiter's :class:`Ticket`, with a time to live
``line.semaphore.NAME.ID``           the same
===================================  ============================================================

The fencing token is the revision of the write that took the slot. Tokens grow even if the bucket is removed and created
again (``buckets/token_floors.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from pelton.api import ConfigError
from pelton.api.build import seconds_to_ns
from pelton.api.json_values import UNREADABLE
from pelton.api.times import SECOND, Seconds
from pelton.buckets.naming import check_key

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
        """The keys of the slots."""
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
