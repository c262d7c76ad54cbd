"""The port of a backend for transactions that a user holds open."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from pelton.api import headers
from pelton.api.errors import PeltonError
from pelton.api.info import PubAck
from pelton.api.message import AckOp


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message to publish; ``headers`` is its encoded block, or None."""

    subject: str
    data: bytes
    headers: bytes | None = None


class Settled(msgspec.Struct, frozen=True, gc=False):
    """How a delivery is settled: the messages to publish, and its ack.

    ``once`` is a filter, of which the last of the messages must be the first: a delivery that was settled otherwise has
    stored another one. A last token ``*`` stands for that of its subject. It only matters where late acks are not
    refused (`Planning`).
    """

    messages: Sequence[Outgoing]
    ack: AckOp
    once: str = ""


class Replacement(msgspec.Struct, frozen=True, gc=False):
    """What is stored instead of a message that is withdrawn; ``once`` as of `Settled`."""

    messages: Sequence[Outgoing]
    once: str = ""


class Withdrawn(msgspec.Struct, frozen=True):
    """The sequences of the messages that were withdrawn, and the acks of those that were stored instead.

    ``held`` are those that somebody holds, or may hold: an embedded store has not withdrawn them, a server cannot know.
    """

    sequences: tuple[int, ...]
    acks: tuple[PubAck, ...]
    held: tuple[int, ...]


def only_of(message: Outgoing, once: str) -> str:
    """Return the filter of which a message must be the first; see `Settled`."""
    return f"{once[:-1]}{message.subject.rpartition('.')[2]}" if once.endswith(".*") else once


def as_first(message: Outgoing, once: str) -> Outgoing:
    """Return a message that is refused if it is not the first of its filter (WrongLastSequenceError)."""
    once = only_of(message, once)
    fields = {headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}
    if once != message.subject:
        fields[headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT] = once
    if message.headers is not None and (msg_id := headers.first(message.headers, headers.MSG_ID)) is not None:
        fields[headers.MSG_ID] = msg_id
    return Outgoing(message.subject, message.data, headers.encode(fields))


class Reading(Protocol):
    """SQL on one snapshot of an embedded store, which no writer waits for."""

    async def enter(self) -> None:
        """Take the snapshot."""
        ...

    async def leave(self) -> None:
        """Let it go. Idempotent."""
        ...

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a user's SQL, which only reads, and return its rows. Raises `SqlError`, `SnapshotTimeoutError`."""
        ...


class Transacting(Protocol):
    """One open transaction.

    An operation that raises has changed nothing, and the transaction continues, unless the error says that it was
    rolled back.
    """

    async def enter(self) -> int:
        """Begin, and return 0; or if already begun set a savepoint, and return its level."""
        ...

    async def leave(self, level: int, *, keep: bool) -> None:
        """End what ``enter`` has begun: keep it, or undo it. Level 0 returns when everything is durable."""
        ...

    async def publish(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store all messages or, if one is refused, none; raises what `Backend.publish` raises."""
        ...

    async def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        """Store messages, as `Backend.publish_apart` does."""
        ...

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries, as `Backend.ack` does."""
        ...

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a user's SQL, and return its rows. Raises `SqlError`."""
        ...
