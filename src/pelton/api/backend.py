"""The port between backends and clients: what a place that keeps streams can do, in the API's own vocabulary.

An embedded store and a NATS cluster both implement it, and everything above is written against it alone. The
administrative verbs go through one typed method; the hot paths have their own. All methods belong to one
event loop; `clone` gives a backend for another. Every implementation fails with the errors of `errors.py`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from pelton.api.direct import DirectGet, DirectReply
from pelton.api.errors import PeltonError
from pelton.api.info import PubAck
from pelton.api.keys import Key
from pelton.api.message import AckOp, Delivered, Incoming, PullRequest
from pelton.api.requests import Request
from pelton.api.transacting import Outgoing, Settled, Transacting

R = TypeVar("R")

StrPath = str | os.PathLike[str]
Progress = Callable[[int, int], object]
"""Is called with how much of how much is done."""


class BackendSubscription(Protocol):
    """What is published while one listens."""

    async def next(self, timeout: float | None = None) -> Incoming | None:
        """Return the next message; None when none came within ``timeout`` seconds. Raises `StoreClosedError`."""
        ...

    def take(self, limit: int) -> list[Incoming]:
        """Return what has come already, at most ``limit`` messages; does not wait."""
        ...

    async def close(self) -> None:
        """Stop listening; what has come already can still be taken. Idempotent."""
        ...


class Planning(msgspec.Struct, frozen=True, kw_only=True):
    """What callers plan with, each chosen by how a backend works.

    ``overlapping_pulls``: begin the next pull before the messages of the last one are used up, because an answer takes
    a round trip. ``consumer_timeout``: seconds to wait for a new consumer before another one is created, because its
    server may have died; None if a backend always answers. ``atomic_batches``: the messages of one `publish_batch` are
    one transaction, and batches stay in order whatever happens. ``own_verbs``: the requests that NATS does not have
    and that this backend answers.
    """

    overlapping_pulls: bool
    consumer_timeout: float | None
    atomic_batches: bool
    own_verbs: frozenset[type[Request[Any]]]


class Backend(Protocol):
    """A place that keeps streams.

    ``refuses_late_acks`` says whether an ack of a delivery that was replaced is refused (`AckRejectedError`),
    ``has_exclusive_subjects`` whether consumers know ``max_ack_pending_per_subject``. ``domain_prefix`` stands in front
    of the subjects of buckets that lie in another JetStream domain than the connected servers; else it is empty.
    """

    refuses_late_acks: bool
    planning: Planning
    has_exclusive_subjects: bool
    domain_prefix: str

    async def call(self, request: Request[R]) -> R:
        """Do one administrative verb; raises `ApiError`."""
        ...

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        """Store a message; returns when it is as durable as the store was opened for.

        Raises `NoStreamForSubjectError`, `ExpectationError`, `LimitError`, or another `ApiError`.
        """
        ...

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store messages in order, durable together, each acknowledged like `publish`.

        Raises the error of the first message that is refused: those before it are stored, none after it.
        """
        ...

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages where they lie, aside from the administrative verbs (ADR-31).

        Raises `MessageNotFoundError` where none is found at all, `BadRequestError` for a request that contradicts
        itself, `TooManyResultsError`, `DirectGetDisabledError`, `StreamNotFoundError`, `CorruptMessageError`.
        """
        ...

    async def publish_atomic(self, messages: Sequence[Outgoing]) -> PubAck:
        """Store messages in order, all or none of them (ADR-50); the streams' subjects must all be one stream's.

        There is at least one message. Raises the error of the first that is refused: nothing is stored then.
        """
        ...

    async def pull(self, stream: str, consumer: str, request: PullRequest) -> list[Delivered]:
        """Take up to ``request.batch`` messages.

        Returns as soon as there is at least one; an empty list when the request expired or does not wait.
        Raises `ConsumerNotFoundError`, also for a consumer that is deleted meanwhile.
        """
        ...

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries; returns when durable. One entry an ack: None, or why it had no effect.

        A rejected ack (`AckRejectedError`) never hinders its neighbours.
        """
        ...

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        """Publish messages and acknowledge the delivery they result from, to take effect together.

        Embedded it is one transaction: all or nothing. On a cluster the messages go first, each with a
        message id that makes repeating them harmless, then the ack. Raises `AckRejectedError`, or as
        `publish`.
        """
        ...

    async def settle_many(self, endings: Sequence[Settled], stream: str, consumer: str) -> list[PeltonError | None]:
        """Settle many deliveries of one consumer, each as `settle` does; returns when durable.

        One entry each: None, or why it had no effect (`AckRejectedError`, or as `publish`), which never hinders its
        neighbours. Embedded they are one transaction, in order.
        """
        ...

    def transaction(self, timeout: float) -> Transacting:
        """Return the transaction that the caller has open, or a new one that holds the writer ``timeout`` seconds.

        Raises `ConfigError` where there are none.
        """
        ...

    def backups(self) -> "Backups":
        """Return what makes backups of what is kept here."""
        ...

    def embedded(self, what: str) -> "EmbeddedStore":
        """Return what only an embedded store can do; anywhere else raises `ConfigError`, which names ``what``."""
        ...

    async def subscribe(self, subject: str, queue: str = "") -> BackendSubscription:
        """Listen to what is published under a subject or filter from now on, stored or not, by whoever.

        Of those with the same ``queue`` each message is told to one. Raises `ConfigError`.
        """
        ...

    async def send(self, subject: str, data: bytes = b"", headers: bytes | None = None) -> None:
        """Tell a message to whoever listens, and to a stream that takes it, without waiting for an answer."""
        ...

    def check_loop(self) -> None:
        """Raise `WrongLoopError` on another event loop than the one this belongs to.

        Every method does so by itself, except `clone`; this is for handles that would do something else first.
        """
        ...

    async def presence(self) -> str:
        """Return a name by which others can ask whether this opening is still there (`is_gone`); empty: they cannot."""
        ...

    async def is_gone(self, presence: str) -> bool:
        """Whether the opening of this name is known to be closed, or its process to have died.

        False where that cannot be known. On a cluster also True for a client whose connection is lost just now.
        """
        ...

    def on_end(self, told: Callable[[Exception], None]) -> None:
        """Call ``told`` on the event loop, once, when nothing brings this back, with the error that all meets then.

        That is not the end that `close` makes. A cluster has no other: its connection is made again.
        """
        ...

    def clone(self) -> "Backend":
        """Another connection to the same place, for another thread and event loop; close it as well."""
        ...

    async def close(self) -> None:
        """Let go of the connection; waiting pulls end with `StoreClosedError`. Idempotent."""
        ...


class Backups(Protocol):
    """Writes backups of a backend, and reads them."""

    async def backup(self, target: StrPath, streams: Sequence[str] | None, progress: Progress | None) -> None:
        """Write the store, or the streams named, to ``target``.

        Raises `ConfigError` where there is nothing that lasts, `StoreError`, `StreamNotFoundError`.
        """
        ...

    async def restore(
        self,
        source: StrPath,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> list[str]:
        """Copy the streams of a backup, or those named, into the store; return their names there.

        ``names`` are old ones to new ones; ``key`` is the backup's. Raises `ConfigError`, `StoreError`, `ApiError`.
        """
        ...


class EmbeddedStore(Backend, Protocol):
    """A backend that keeps its streams in a file which this process has open."""

    async def rekey(self, key: Key) -> None:
        """Encrypt the store with another key, now. Raises `StoreSettingsError` for a plain one, `StoreBusyError`."""
        ...
