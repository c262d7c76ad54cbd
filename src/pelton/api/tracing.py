"""Two ports beside a backend: for transactions that a user holds open, and for the tracer of an opening.

**The port between an opening and its tracer, which is called where something happens to messages and jobs.** A
backend whose ``tracing`` is None, as it is unless a program sets it, tells nobody, which costs one look at it.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from pelton.api import headers
from pelton.api.errors import PeltonError
from pelton.api.info import PubAck
from pelton.api.message import AckOp, Delivered


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message to publish; ``headers`` is its encoded block, or None."""

    subject: str
    data: bytes
    headers: bytes | None = None


class Settled(msgspec.Struct, frozen=True, gc=False):
    """How a delivery is settled: the messages to publish, and its ack.

    ``once`` is a filter, of which the last of the messages must be the first: a delivery that was settled otherwise has
    stored another one. A last token ``*`` stands for that of its subject. It only matters where late acks are not
    refused (`Planning`). So does ``due``, when the message is delivered anew anyway, in wall nanoseconds: if that is in
    a moment, it is left alone, and its ack is refused.
    """

    messages: Sequence[Outgoing]
    ack: AckOp
    once: str = ""
    due: int = 0


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

    async def leave(self) -> None:
        """Let it go. Idempotent."""

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a user's SQL, which only reads, and return its rows. Raises `SqlError`, `SnapshotTimeoutError`."""


class Transacting(Protocol):
    """One open transaction.

    An operation that raises has changed nothing, and the transaction continues, unless the error says that it was
    rolled back.
    """

    async def enter(self) -> int:
        """Begin, and return 0; or if already begun set a savepoint, and return its level."""

    async def leave(self, level: int, *, keep: bool) -> None:
        """End what ``enter`` has begun: keep it, or undo it. Level 0 returns when everything is durable."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store all messages or, if one is refused, none; raises what `Backend.publish` raises."""

    async def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        """Store messages, as `Backend.publish_apart` does."""

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries, as `Backend.ack` does."""

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a user's SQL, and return its rows. Raises `SqlError`."""


class SendSpan(Protocol):
    """Messages on their way into a stream; ``messages`` are as they are to be sent, with their trace's context."""

    messages: Sequence[Outgoing]

    def on_stored(self, acks: Sequence[PubAck]) -> None:
        """Note that they were acknowledged."""


class EnqueueSpan(Protocol):
    """Jobs on their way into a queue; ``meta`` is to travel with each."""

    meta: Mapping[str, str]

    def on_stored(self, ids: Sequence[str]) -> None:
        """Note that they were stored, under these ids."""


class SettleSpan(Protocol):
    """Deliveries that are being settled."""

    def on_answers(self, answers: Sequence[PeltonError | None]) -> None:
        """Note which were refused."""


class TracedJob(Protocol):
    """One attempt of a job."""

    @property
    def queue(self) -> str:
        """The name of its queue."""

    @property
    def worker(self) -> str:
        """Who runs it."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def job(self) -> str:
        """Its name."""

    @property
    def key(self) -> str:
        """The key that it works on, or empty."""

    @property
    def meta(self) -> Mapping[str, str]:
        """What travels with it."""

    @property
    def attempt(self) -> int:
        """Which attempt it is, from 1."""


class Tracing(Protocol):
    """Told of what happens to messages and jobs of one opening; what it does must not raise."""

    def sending(self, messages: Sequence[Outgoing]) -> AbstractContextManager[SendSpan]:
        """Cover a publish of one message or of many."""

    def with_context(self, message: Outgoing) -> Outgoing:
        """Return a message with the context of what runs here, which is stored later."""

    def on_received(self, delivered: Sequence[Delivered], began: int) -> None:
        """Note what a fetch has got that ``began`` at this wall time (ns); it is not empty."""

    def handed_out(self, delivered: Delivered) -> None:
        """Note a message that a program gets from an iteration, without a fetch of its own."""

    def processing(self, delivered: Delivered, *, is_new: bool) -> AbstractContextManager[None]:
        """Cover the processing of a message; ``is_new`` if it was not fetched by the program itself."""

    def settling(self, kind: str, delivered: Sequence[Delivered]) -> AbstractContextManager[SettleSpan]:
        """Cover an ack, nak or term of deliveries of one consumer."""

    def enqueuing(self, queue: str, jobs: Sequence[str]) -> AbstractContextManager[EnqueueSpan]:
        """Cover the enqueuing of jobs, given by their names."""

    def running(self, job: TracedJob, *, is_new: bool = True) -> AbstractContextManager[None]:
        """Cover an attempt of a job, where its function runs; ``is_new`` if the program has not claimed it itself."""

    def on_claimed(self, jobs: Sequence[TracedJob], began: int) -> None:
        """Note what claims have taken that ``began`` at this wall time (ns); it is not empty."""

    def settling_jobs(self, jobs: Sequence[TracedJob]) -> AbstractContextManager[None]:
        """Cover the settlement of claimed jobs; there is one at least."""

    def stepping(self, name: str) -> AbstractContextManager[None]:
        """Cover a step of the job that runs here."""
