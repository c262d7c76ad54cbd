"""The embedded Backend: streams and consumers in one SQLite file, for any number of processes.

The engine decides nothing by itself. It stages work for the shared transaction (``transactions``, ``storage``), keeps
its session valid, and wakes waiting pulls of this process through signals, and other processes through the wake-up
channel. Time needs no daemon: deadlines are rows, evaluated by the transactions that meet them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from pelton._version import VERSION
from pelton.api import (
    AccountLimits,
    AckOp,
    ApiError,
    ConsumerInfo,
    Delivered,
    DirectGet,
    DirectReply,
    Outgoing,
    PeltonError,
    PubAck,
    PullRequest,
    Request,
    Settled,
    StoreBusyError,
)
from pelton.api.admission import check_request, check_subject
from pelton.api.backend import (
    Backups,
    CopiedStream,
    EmbeddedStore,
    Leftover,
    Progress,
    RowReader,
    StoreTroubles,
    StrPath,
)
from pelton.api.codec import names_of
from pelton.api.events import ClientInfo
from pelton.api.keys import Key
from pelton.api.message import encode_pub_ack, encode_pub_error
from pelton.api.tracing import Replacement, Tracing, Withdrawn
from pelton.consumers import is_pending
from pelton.engine.bus import Bus
from pelton.engine.connections import PLANNING, Connections, EngineSettings, troubles_of
from pelton.engine.host import Background, Door, public_error
from pelton.engine.line import Lines
from pelton.engine.pulls import Pulls
from pelton.engine.pushes import EngineSubscription, Pushes, Subscriptions
from pelton.engine.questions import Audit, Questions
from pelton.engine.session import Committed, Session
from pelton.engine.session.catalogue import Account
from pelton.engine.snapshots import SqlSnapshot, SqlSnapshots
from pelton.engine.submissions import Publishing, Settling, Submissions, settle_all, settling_apart
from pelton.engine.transactions import OpenTransaction, Transactions
from pelton.engine.verbs import withdraw
from pelton.runtime import Runtime
from pelton.storage import (
    BegunMarks,
    Committer,
    Database,
    Fault,
    MemoryChannel,
    SnapshotOnlyError,
    StreamMarks,
    WakeChannel,
)

if TYPE_CHECKING:
    # Loaded when they are used.
    from pelton.engine.archives import StreamArchives
    from pelton.engine.serving import Serving
    from pelton.engine.upkeep import OnlineMaintenance

R = TypeVar("R")


class Engine:
    """A Backend on one open store; belongs to the event loop it was opened on."""

    planning = PLANNING
    domain_prefix = ""
    restarted_at: float = float("-inf")
    tracing: Tracing | None = None

    def __init__(self, settings: EngineSettings, runtime: Runtime) -> None:
        self._connections = Connections(settings, runtime, self._end_soon, self._clock_jumped)
        settings = self._connections.settings
        self._runtime = runtime
        self._clock = runtime.clock
        self._loop = asyncio.get_running_loop()
        self._closed = False
        # Whether this opener has ended for good, and the callbacks for that.
        self._is_over = False
        self._on_end: list[Callable[[Exception], None]] = []
        self._marks: BegunMarks | None = None
        self._db = self._connections.first()
        self.door: Door = Door(self._db, self._loop)
        channel = MemoryChannel if settings.memory else WakeChannel
        self._channel: MemoryChannel | WakeChannel = channel(settings.path, self.woken, self._clock.monotonic)
        self._lines = Lines(self, self._channel, self._clock)
        self.session: Session = self._session_on(self._db, lambda: not self._lines.is_empty)
        self.account: Account = self.session.registry.account
        self._pushes = Pushes(self, self._lines, runtime)
        polled = self._channel.polled
        self._subscriptions = Subscriptions(self, self._pushes, self._clock, self._db.path, polled=polled)
        self._pulls = Pulls(self, self._lines, runtime)
        self._committer = Committer(
            self._db,
            self.session,
            mode=settings.sync,
            interval=settings.interval,
            busy_timeout=settings.busy_timeout,
            publish=self.publish_committed,
            undone=self._undone,
        )
        memory = self._channel if isinstance(self._channel, MemoryChannel) else None
        self._transactions = Transactions(
            self, self._db, self._committer, self._clock, memory, busy_timeout=settings.busy_timeout
        )
        self._submissions = Submissions(self.session, self._committer, self.door)
        self._snapshots = SqlSnapshots(self._connections, self.door, self._clock)
        audit = Audit(self.session, self.session.now(), VERSION)
        self._questions = Questions(self, self._transactions, audit, self._snapshots)
        self._background = Background(self, self._clock, self._db)

    @cached_property
    def _maintenance(self) -> OnlineMaintenance:
        from pelton.engine.upkeep import OnlineMaintenance

        return OnlineMaintenance(
            self,
            self._connections,
            self._db,
            self._committer,
            self._transactions,
            self._channel.wake_others,
            self._clock,
        )

    # --- the ends of transactions

    def _undone(self) -> None:
        self._background.rolled_back()

    def publish_committed(self, committed: Committed) -> None:
        """Publish the effects of a transaction of any session: wake pulls and processes, and deliver to subscribers."""
        if committed.changed:
            if not self._lines.is_empty and committed.news:
                self._lines.notify(committed.news)
            self._channel.wake_others()
        for subscriber, route, messages in committed.deliveries:
            subscriber.receive(route, messages)
        if self.session.registry.consumers.pushed or self._pushes.pumps:
            self._pushes.look()
        # Every transaction passes here, and few leave work.
        if committed.deadlines or committed.has_backlog or committed.has_waiting or committed.has_batches:
            self._background.on_commit(committed)

    # --- transactions

    def _session_on(self, database: Database, has_waiters: Callable[[], bool], of: Bus | None = None) -> Session:
        return self._connections.session(
            database, self._channel, has_waiters=has_waiters, waiting_pulls=self._lines.count_pulls, of=of
        )

    def second_session(self) -> Session:
        """Open another session, on a connection of its own, for transactions that users hold open."""
        self.door.check_place()
        # Pulls that begin to wait while a transaction is open must be woken by it, too.
        return self._session_on(self._connections.database(), lambda: True, self.session.bus)

    def transaction(self, timeout: float) -> OpenTransaction:
        self.door.check()
        return self._transactions.of_caller() or OpenTransaction(self._transactions, timeout)

    def stage(self, call: Callable[[], Any], *, durable: bool, at_once: bool = False) -> asyncio.Future[Any]:
        """Submit a function; return the future of its result."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._submissions.call(call, future, durable=durable, at_once=at_once)
        return future

    def stage_quietly(self, call: Callable[[], Any], *, durable: bool = False) -> None:
        """Submit a function of which nobody hears: if the store is closed or has failed, it makes no difference."""
        with suppress(PeltonError):
            self.stage(call, durable=durable).add_done_callback(lambda done: done.exception())

    def hand_back(self, stream: str, consumer: str, delivered: list[Delivered]) -> None:
        """Nak what was delivered to a pull that was cancelled at the same moment."""
        acks = [AckOp(kind="nak", seq=one.seq, consumer_seq=one.consumer_seq, token=one.token) for one in delivered]
        if acks:
            future = self._loop.create_future()
            # Ignore errors: a message that cannot be given back is redelivered after its ack wait.
            future.add_done_callback(lambda done: done.exception())
            self._submissions.settle((stream, consumer), Settling(acks, future))

    # --- the port

    def check_loop(self) -> None:
        self.door.check_loop()

    async def call(self, request: Request[R], client: ClientInfo | None = None) -> R:
        """Handle one administrative request; ``client`` is whom an audit names, if it is not this process."""
        self.door.check()
        check_request(request)
        try:
            return await self._questions.call(request, client)
        except ApiError as error:
            error.locate(**names_of(request))
            raise

    async def ask(self, request: Request[R]) -> R:
        """Answer a question of this process itself, which is not counted among those to the API, nor audited."""
        self.door.check()
        return await self._questions.ask(request)

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages directly from the stream (ADR-31)."""
        self.door.check()
        return await self._questions.direct_get(stream, request)

    def direct_get_now(self, stream: str, request: DirectGet) -> DirectReply | None:
        """Return one message read directly from the stream (ADR-31); None if that may have to wait."""
        self.door.check()
        return self._questions.direct_get_now(stream, request)

    async def has_message(self, stream: str, subjects: str) -> bool:
        """Whether a stream stores a message of a subject or filter, after what is due."""
        self.door.check()

        def look() -> bool:
            log = self.session.registry.stream(stream)
            log.advance(self.session.now())
            return log.reader.last_row_of(subjects) is not None

        await self.readable()
        with suppress(SnapshotOnlyError):
            return self.read(look)
        answer: bool = await self.stage(look, durable=False)
        return answer

    async def has_seen_all(self, consumer: ConsumerInfo) -> bool:
        """Return True: what is stored and what its consumers know of it are of one moment."""
        return True

    async def audit_answer(
        self, subject: str, request: bytes, response: bytes, client: ClientInfo, *, is_refused: bool
    ) -> None:
        """Count and audit a request to the API that a server has answered by itself."""
        self.door.check()
        await self._questions.audit_answer(subject, request, response, client, is_refused=is_refused)

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        """Store a message; return when it is as durable as the store's sync mode promises."""
        future = self._loop.create_future()
        self._submissions.publish_one(Outgoing(subject, data, headers), future)
        ack: PubAck = await future
        return ack

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        if not messages:
            return []
        future = self._loop.create_future()
        self._submissions.publish(Publishing(messages, future))
        acks: list[PubAck] = await future
        return acks

    async def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        if not messages:
            return []
        future = self._loop.create_future()
        self._submissions.publish(Publishing(messages, future, "apart"))
        answers: list[PubAck | PeltonError] = await future
        return answers

    async def publish_atomic(self, messages: Sequence[Outgoing]) -> PubAck:
        """Store messages together or not at all, in one transaction."""
        ack: asyncio.Future[PubAck] = self._loop.create_future()
        self._submissions.publish(Publishing(messages, ack, "atomic"))
        return await ack

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries; return when the acks are durable."""
        if not acks:
            return []
        future = self._loop.create_future()
        self._submissions.settle((stream, consumer), Settling(acks, future))
        answers: list[PeltonError | None] = await future
        return answers

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        """Publish messages and acknowledge a delivery in one transaction."""
        future = self._loop.create_future()
        self._submissions.settle((stream, consumer), Settling((ack,), future, publishes))
        acks: list[PubAck] = await future
        return acks

    async def settle_once(self, ending: Settled, stream: str, consumer: str) -> None:
        """Do what `settle` does: here, a late ack is refused."""
        await self.settle(ending.messages, stream, consumer, ending.ack)

    async def settle_many(self, endings: Sequence[Settled], stream: str, consumer: str) -> list[PeltonError | None]:
        """Publish messages and acknowledge the deliveries they result from, in one transaction."""

        def stage(some: Sequence[Settled]) -> asyncio.Future[list[PeltonError | None]]:
            future = self._loop.create_future()
            # Other work of this round, such as the next deliveries, shares their transaction.
            self._submissions.settle((stream, consumer), settling_apart(some, future), at_once=False)
            return future

        return await settle_all(stage, endings)

    async def withdraw(self, stream: str, instead: Mapping[int, Replacement]) -> Withdrawn:
        """Remove messages that nobody holds, and store others, in one transaction."""
        self.door.check()
        found: Withdrawn = await self.stage(lambda: withdraw(self.session, stream, instead), durable=True)
        return found

    async def pull(
        self, stream: str, consumer: str, request: PullRequest, leftover: Leftover | None = None
    ) -> list[Delivered]:
        """Take up to ``request.batch`` messages, waiting for the first if the request says so."""
        self.door.check()
        return await self._pulls.pull(stream, consumer, request, leftover)

    async def subscribe(self, subject: str, queue: str = "") -> EngineSubscription:
        """Subscribe to what any process publishes from now on."""
        self.door.check()
        return await self._subscriptions.subscribe(subject, queue)

    async def send(self, subject: str, data: bytes = b"", headers: bytes | None = None, reply: str = "") -> None:
        self.door.check()
        check_subject(subject)
        message = Outgoing(subject, data, headers)
        if not reply:
            await self.stage(lambda: self.session.send(message), durable=False)
            return
        check_subject(reply)
        if await self.stage(lambda: self.session.ask(message, reply), durable=False):
            # A stream answers for itself, when the message is stored.
            await self.send(reply, await self._answer_of(message))

    async def _answer_of(self, message: Outgoing) -> bytes:
        try:
            return encode_pub_ack(await self.publish(message.subject, message.data, message.headers))
        except ApiError as error:
            return encode_pub_error(error, "")

    def might_reach(self, subject: str) -> bool:
        """Whether anybody is subscribed to a subject, as of the last transaction of this opener."""
        return self.session.bus.has_subscriptions and self.session.bus.has_subscriber(subject)

    async def presence(self) -> str:
        """Return the name of this opener on the wake-up channel; empty if others cannot reach it."""
        self.door.check()
        return "" if self._channel.polled else self._channel.name

    async def is_gone(self, presence: str) -> bool:
        self.door.check()
        return self._channel.is_gone(presence)

    async def begun_deliveries(self, stream: str) -> StreamMarks:
        self.door.check()
        await self.readable()
        if self._marks is None:
            self._marks = BegunMarks(self._db.path, folder=not isinstance(self._channel, MemoryChannel))
            self._marks.sweep(lambda stream, seq: self.read(lambda: is_pending(self._db, stream, seq)))
        return StreamMarks(self._marks, self.read(lambda: self.session.registry.stream(stream)).id)

    def on_end(self, told: Callable[[Exception], None]) -> None:
        """Call ``told`` with the error when this opener has ended for good."""
        self._on_end.append(told)

    def next_due(self) -> int:
        """Return when time next makes a message of this store, in wall nanoseconds, or an earlier time; or NEVER."""
        self.door.check()
        return self._background.timekeeper.next_due()

    def limit(self, limits: AccountLimits) -> None:
        """Check requests by other limits from now on."""
        self._connections.limit(limits)
        self.account.limits = limits

    def serving(self) -> Serving:
        """Return what a server needs beyond the port; close it before this store."""
        from pelton.engine.serving import Serving

        return Serving(self, self._committer, self._pulls, self._pushes, self._submissions)

    def archives(self) -> StreamArchives:
        """Return the archives of the store's streams, for a server."""
        from pelton.engine.archives import StreamArchives

        return StreamArchives(self, self._connections, self._maintenance, self._clock)

    def clone(self) -> Engine:
        with self._connections.unchanged() as settings:
            self.door.check_place()
            return Engine(settings, self._runtime)

    def backups(self) -> Backups:
        return self

    def to_embedded(self, what: str) -> EmbeddedStore:
        return self

    def row_reader(self, stream: str, created: str, filters: Sequence[str]) -> RowReader | None:
        """Return a reader with a connection of its own; None for a store in memory."""
        self.door.check()
        with self._connections.unchanged() as settings:
            if settings.memory:
                return None
            self.door.check_place()
            # Loaded when it is used.
            from pelton.engine.bulk import column_reader

            return column_reader(settings, stream, created, filters)

    async def troubles(self) -> StoreTroubles:
        self.door.check()
        return troubles_of(self._db)

    async def rekey(self, key: Key) -> None:
        await self._maintenance.rekey(key)

    async def backup(self, target: StrPath, streams: Sequence[str] | None, progress: Progress | None) -> None:
        """Copy the store on another thread; see :meth:`pelton.Jet.backup`."""
        await self._maintenance.backup(target, streams, progress)

    async def restore(
        self,
        source: StrPath,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> list[str]:
        """Copy streams of a backup into the store, on another thread; see :meth:`pelton.Jet.restore`."""
        return [stream.name for stream in await self._maintenance.restore(source, streams, names, key, progress)]

    async def copy_streams(
        self, source: StrPath, streams: Sequence[str], key: Key | None, progress: Progress
    ) -> list[CopiedStream]:
        """Copy streams of another store into this one, on another thread, and compare them."""
        found = await self._maintenance.restore(source, streams, {}, key, progress)
        return [CopiedStream(*stream) for stream in found]

    async def close(self) -> None:
        """Finish staged work, end waiting pulls, and close the store."""
        if self._closed:
            return
        self.check_loop()
        self._closed = True
        if self._db.is_inherited:
            # The parent's loop, sockets and timers are not ours to stop.
            return
        await self._runtime.finish(self._let_go(), "pelton closes a store")

    async def _let_go(self) -> None:
        self._transactions.close()
        await self._pushes.close()
        await self._subscriptions.close()
        self._background.close()
        await self._committer.quiesce()
        self._lines.notify_all()
        if self._marks is not None:
            self._marks.close()
        self._channel.close()
        self._committer.close()
        self._db.close()

    # --- reading

    def reading(self, timeout: float) -> SqlSnapshot:
        return self._snapshots.take(timeout)

    async def readable(self) -> None:
        """Wait until the store can be read: a memory store cannot be read while a transaction is open."""
        while self._transactions.is_unreadable:
            await self._transactions.wait_for_end()

    @property
    def is_at_rest(self) -> bool:
        return not (self._committer.staged or self.door.entered)

    def read(self, call: Callable[[], R]) -> R:
        if self._transactions.is_unreadable:
            raise StoreBusyError(self._db.path, "a transaction is open in this memory store")
        try:
            with self._db.reading():
                self.session.refresh()
                return call()
        except Fault as fault:
            raise public_error(fault) from None

    def woken(self) -> None:
        """Load what another process has committed, and wake pulls and subscribers."""
        if self._is_over:
            return
        self._committer.woken()
        self._transactions.woken()
        self._lines.follow_others()
        self._background.woken()
        if self.session.bus.has_own and not self._transactions.is_unreadable:
            # Reading delivers what the other process published. Operations on the store raise the same errors.
            with suppress(PeltonError):
                self.read(lambda: None)
                self._pushes.look()

    # --- time

    def _clock_jumped(self) -> None:
        """Put deadlines right soon: whatever is written next does."""
        self._loop.call_soon(self._follow_clock)

    def _follow_clock(self) -> None:
        if not self._closed and not self._is_over:
            # If it can't be written, whatever is written next tells.
            self.stage_quietly(lambda: None)

    # --- the end

    def _end_soon(self, fault: Fault) -> None:
        """End this opener: one of its connections, on any thread, can never be used again."""
        # If the loop is closed, no task waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, fault)

    def _end(self, fault: Fault) -> None:
        """Let everything that waits fail with the fault that ended this opener: nothing else would wake it."""
        if self._is_over or self._closed:
            return
        self._is_over = True
        if self._db.ending.fault is None:
            # The fault came from the connection of a transaction.
            self._db.ending.end(fault)
        self._background.close()
        self._pushes.stop()
        error = public_error(self._db.ending.fault or fault)
        self._subscriptions.fail(error)
        for told in self._on_end:
            told(error)
        # Pulls and pumps check again, and get the error.
        self._lines.notify_all()
