"""The port between backends and clients: what a place that keeps streams can do, in the API's own vocabulary.

An embedded store and a NATS cluster both implement it, and clients use nothing else. The
administrative verbs go through one typed method; the hot paths have their own. All methods belong to one
event loop; `clone` returns a backend for another. Every implementation raises the errors of `errors.py`.
"""

import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from pelton.api.direct import DirectGet, DirectReply
from pelton.api.errors import PeltonError
from pelton.api.info import ConsumerInfo, PubAck
from pelton.api.keys import Key
from pelton.api.message import AckOp, Delivered, Incoming, PullRequest
from pelton.api.requests import Request
from pelton.api.tracing import Outgoing, Reading, Replacement, Settled, Tracing, Transacting, Withdrawn

R = TypeVar("R")

StrPath = str | os.PathLike[str]
Progress = Callable[[int, int], object]
"""Called with the amounts done and total."""
Leftover = Callable[[Sequence[Delivered]], Awaitable[object]]
"""Called with what was delivered to a pull that was cancelled at the same moment."""


class BackendSubscription(Protocol):
    """A subscription to messages as they are published."""

    async def next(self, timeout: float | None = None) -> Incoming | None:
        """Return the next message, or None after ``timeout`` seconds. Raises `StoreClosedError`."""

    def take(self, limit: int) -> list[Incoming]:
        """Return messages that have already arrived, at most ``limit``; does not wait."""

    async def close(self) -> None:
        """Unsubscribe; messages that have already arrived can still be taken. Idempotent."""


class BegunDeliveries(Protocol):
    """Marks of the deliveries of one stream that were begun: they outlive this process, but maybe not the machine."""

    def mark(self, seq: int, number: int) -> None:
        """Mark a delivery of a message, by its number, before it is begun. Costs next to nothing; from any thread."""

    def unmark(self, deliveries: Collection[tuple[int, int]]) -> None:
        """Forget deliveries, each a message and its number, begun or not: they are settled."""

    def numbers_by_message(self) -> Mapping[int, Collection[int]]:
        """Return the numbers of the marked deliveries, by message; of all that have the store open, or had."""


class Planning(msgspec.Struct, frozen=True, kw_only=True):
    """What callers plan with, each chosen by how a backend works.

    ``overlapping_pulls``: begin the next pull before the messages of the last one are used up, because an answer takes
    a round trip. ``consumer_timeout``: seconds to wait for a new consumer before another one is created, because its
    server may have died; None if a backend always answers. ``atomic_batches``: the messages of one `publish_batch` are
    one transaction, and batches stay in order whatever happens. ``refuses_late_acks``: an ack of a delivery that was
    replaced is refused (`AckRejectedError`). ``has_exclusive_subjects``: consumers know
    ``max_ack_pending_per_subject``. ``own_verbs``: the requests that NATS does not have and that this backend answers.
    ``read_only``: nothing can be written, which includes consumers. ``steady_time``: times to live don't end early when
    this machine's wall clock is set forward.
    """

    overlapping_pulls: bool
    consumer_timeout: float | None
    atomic_batches: bool
    refuses_late_acks: bool
    has_exclusive_subjects: bool
    own_verbs: frozenset[type[Request[Any]]]
    read_only: bool = False
    steady_time: bool = False


class Backend(Protocol):
    """Stores streams.

    ``domain_prefix`` stands in front of the subjects of buckets that lie in another JetStream domain than the connected
    servers; else it is empty. ``tracing`` is the tracer of this opening's messages and jobs, or None.
    """

    planning: Planning
    domain_prefix: str
    tracing: Tracing | None

    @property
    def restarted_at(self) -> float:
        """When a server was lost that was started anew since, in seconds since boot; -inf: never.

        It may have forgotten what it delivered in the second before.
        """

    async def call(self, request: Request[R]) -> R:
        """Execute one administrative request. Raises `ApiError`."""

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        """Store a message; returns when it is as durable as the store was opened for.

        Raises `NoStreamForSubjectError`, `ExpectationError`, `LimitError`, or another `ApiError`.
        """

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store messages in order, durable together, each acknowledged like `publish`.

        Raises the error of the first message that is refused: those before it are stored, none after it.
        """

    async def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        """Store messages in order, durable together, each answered by itself: its ack, or why it was refused.

        A refused message does not affect the others.
        """

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages by direct get, without the administrative API (ADR-31).

        Raises `MessageNotFoundError` if there is none, `BadRequestError` for a request that contradicts
        itself, `TooManyResultsError`, `DirectGetDisabledError`, `StreamNotFoundError`, `CorruptMessageError`.
        """

    async def has_message(self, stream: str, subjects: str) -> bool:
        """Whether a stream stores a message of a subject or filter. Raises `StreamNotFoundError`."""

    async def has_seen_all(self, consumer: ConsumerInfo) -> bool:
        """Whether a consumer, as it was asked, knew of all that its stream stores for it.

        On a cluster it hears of a message a moment after the message is acknowledged.
        """

    async def publish_atomic(self, messages: Sequence[Outgoing]) -> PubAck:
        """Store messages in order, all or none of them (ADR-50); all subjects must belong to one stream.

        Takes at least one message. Raises the error of the first that is refused: nothing is stored then.
        """

    async def pull(
        self, stream: str, consumer: str, request: PullRequest, leftover: Leftover | None = None
    ) -> list[Delivered]:
        """Take up to ``request.batch`` messages.

        Returns as soon as there is at least one; an empty list when the request expired or does not wait. What is
        delivered to a pull as it is cancelled is given to ``leftover``; without it, it is redelivered at once.
        Raises `ConsumerNotFoundError`, also if the consumer is deleted during the wait.
        """

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries; returns when durable. One entry per ack: None, or why it had no effect.

        A rejected ack (`AckRejectedError`) does not affect the others.
        """

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        """Publish messages and acknowledge the delivery they result from, to take effect together.

        Embedded it is one transaction: all or nothing. On a cluster the messages go first, each with a
        message id that makes retries harmless, then the ack. Raises `AckRejectedError`, and what
        `publish` raises.
        """

    async def settle_once(self, ending: Settled, stream: str, consumer: str) -> None:
        """Settle a delivery as `settle` does, unless it was settled otherwise: see `Settled`.

        Raises `AckRejectedError` then, and what `publish` raises.
        """

    async def settle_many(self, endings: Sequence[Settled], stream: str, consumer: str) -> list[PeltonError | None]:
        """Settle many deliveries of one consumer, each as `settle_once` does; returns when durable.

        One entry each: None, or why it had no effect (`AckRejectedError`, or an error of `publish`), which does not
        affect the others. Embedded they are one transaction, in order.
        """

    async def withdraw(self, stream: str, instead: Mapping[int, Replacement]) -> Withdrawn:
        """Remove messages that nobody holds, by their sequences, and store others instead of each.

        Embedded it is one transaction: nothing changes for those that a consumer waits for, or that are missing, and
        nothing at all if one of the others is refused, which raises. On a cluster the others are stored first, in
        order; a message is left if the last of them is refused because of its ``once``, and any other refusal raises.
        """

    def transaction(self, timeout: float) -> Transacting:
        """Return the caller's open transaction, or a new one that holds the writer ``timeout`` seconds.

        Raises `ConfigError` if the backend has no transactions.
        """

    def backups(self) -> "Backups":
        """Return the backups of this backend."""

    def to_embedded(self, what: str) -> "EmbeddedStore":
        """Return the backend as an embedded store; any other raises `ConfigError`, which names ``what``."""

    async def subscribe(self, subject: str, queue: str = "") -> BackendSubscription:
        """Subscribe to messages published from now on under a subject or filter, stored or not, by any process.

        Of the subscribers with the same ``queue`` one gets each message. Raises `ConfigError`.
        """

    async def send(self, subject: str, data: bytes = b"", headers: bytes | None = None, reply: str = "") -> None:
        """Send a message to subscribers, and to a stream that takes it, without waiting for an answer.

        Answers go to the subject ``reply``, if given: those of subscribers, or of the stream.
        """

    def might_reach(self, subject: str) -> bool:
        """Whether anybody may be subscribed to a subject: False only if nobody was, as of the last operation here."""

    def check_loop(self) -> None:
        """Raise `WrongLoopError` on another event loop than the one this belongs to.

        Every method except `clone` checks this itself; call it in handles that would do something else first.
        """

    async def presence(self) -> str:
        """Return a name by which others can ask whether this backend is still open (`is_gone`); empty: they cannot."""

    async def is_gone(self, presence: str) -> bool:
        """Whether the backend of this name is known to be closed, or its process to have died.

        False if that cannot be known. On a cluster also True for a client whose connection is currently lost.
        """

    async def begun_deliveries(self, stream: str) -> BegunDeliveries | None:
        """Return the marks of a stream's deliveries; None where there is no memory that outlives a process."""

    def on_end(self, told: Callable[[Exception], None]) -> None:
        """Call ``told`` on the event loop, once, when the backend has failed for good, with the error of all later
        calls.

        `close` does not count as a failure. A cluster never calls it: its connection is made again.
        """

    def clone(self) -> "Backend":
        """Return another connection to the same backend, for another thread and event loop; close it as well."""

    async def close(self) -> None:
        """Close the connection; waiting pulls end with `StoreClosedError`. Idempotent."""


class Backups(Protocol):
    """Writes backups of a backend, and reads them."""

    async def backup(self, target: StrPath, streams: Sequence[str] | None, progress: Progress | None) -> None:
        """Write the store, or the streams named, to ``target``.

        Raises `ConfigError` for a store in memory, `StoreError`, `StreamNotFoundError`.
        """

    async def restore(
        self,
        source: StrPath,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> list[str]:
        """Copy the streams of a backup, or those named, into the store; return their names there.

        ``names`` maps old names to new ones; ``key`` is the backup's. Raises `ConfigError`, `StoreError`, `ApiError`.
        """


class StoreTroubles(msgspec.Struct, frozen=True, kw_only=True):
    """What has slowed a store down, or damaged it; durations in seconds.

    ``quarantined`` messages are damaged, and never delivered, whichever process found that. ``damaged`` is how many
    damaged places any process has found, by reading, delivering or verifying, since the store was last verified without
    a problem. The rest is what this opening has met itself: syncs to disk of a second or more, waits of a second or
    more for another's transaction, and times that the log could not be folded into the file. ``replaced_by`` is the
    standby that has taken the store's place.
    """

    quarantined: int = 0
    damaged: int = 0
    slow_syncs: int = 0
    slowest_sync: float = 0.0
    writer_waits: int = 0
    longest_writer_wait: float = 0.0
    blocked_checkpoints: int = 0
    replaced_by: str = ""


class RowPortion(Protocol):
    """Messages in columns, in order, as bytes; see `pelton.storage.Portion`."""

    @property
    def messages(self) -> int:
        """How many there are; damaged ones are not among them."""

    @property
    def seqs(self) -> bytes:
        """The sequences, int64 each; all numbers are in native byte order."""

    @property
    def times(self) -> bytes:
        """The times of storing, int64 nanoseconds since the epoch each."""

    @property
    def subjects(self) -> bytes:
        """The subjects, concatenated."""

    @property
    def subject_lengths(self) -> bytes:
        """The length of each subject in bytes, int32 each."""

    @property
    def headers(self) -> list[bytes | None]:
        """The header block of each message, None without headers."""

    @property
    def payloads(self) -> bytes:
        """The payloads, concatenated."""

    @property
    def payload_lengths(self) -> bytes:
        """The length of each payload in bytes, int32 each."""

    @property
    def damaged(self) -> list[int]:
        """The sequences of damaged messages."""

    @property
    def after(self) -> int:
        """The sequence up to which everything was read."""


class RowReader(Protocol):
    """Reads one stream of a store file in columns, on one thread, which may be any; close it."""

    def read(self, first: int, last: int) -> RowPortion:
        """Return the next messages from ``first`` to at most ``last``. Raises `StreamNotFoundError`."""

    def corrupt(self, seq: int) -> PeltonError:
        """Return the error for a damaged message."""

    def close(self) -> None:
        """Close it. Idempotent."""


class CopiedStream(msgspec.Struct, frozen=True):
    """A stream in its copy, after it was compared; ``checksum`` is that of its messages."""

    name: str
    messages: int
    last_seq: int
    checksum: str


class EmbeddedStore(Backend, Protocol):
    """A backend that keeps its streams in a file which this process has open."""

    def row_reader(self, stream: str, created: str, filters: Sequence[str]) -> RowReader | None:
        """Return a reader of one stream's messages, on a connection of its own; None where there is no file to read.

        ``created`` (RFC 3339) distinguishes the stream from a later one of its name. Needs numpy and pyarrow. Raises
        `StreamNotFoundError`.
        """

    def reading(self, timeout: float) -> Reading:
        """Return SQL on a snapshot, held for at most ``timeout`` seconds.

        Raises `ConfigError` for a store in memory, which has no snapshots.
        """

    async def troubles(self) -> StoreTroubles:
        """Return what has slowed the store down, or damaged it."""

    async def copy_streams(
        self, source: StrPath, streams: Sequence[str], key: Key | None, progress: Progress
    ) -> list[CopiedStream]:
        """Copy streams of another store, in use or not, into this one, as they are at one moment; all or none.

        Every message is read again on both sides, and compared, before the copy can be seen. Raises what
        `Backups.restore` does.
        """

    async def rekey(self, key: Key) -> None:
        """Encrypt the store with another key, now. Raises `StoreSettingsError` for a plain store, `StoreBusyError`."""
