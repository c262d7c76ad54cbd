"""The embedded Backend: streams and consumers in one SQLite file, for any number of processes.

The engine decides nothing by itself. It stages work for the shared transaction (``transactions``, ``storage``),
keeps its session valid, and wakes whoever waits: pulls of this process through signals, other processes
through the wake-up channel. Time needs no daemon: deadlines are rows, evaluated by the transactions that meet
them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

from pelton._version import VERSION
from pelton.api import (
    AckOp,
    ApiError,
    ConfigError,
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
from pelton.api.codec import names_of
from pelton.engine.delivery.pulls import Pulls
from pelton.engine.delivery.pushes import Pushes
from pelton.engine.delivery.subscription import EngineSubscription
from pelton.engine.delivery.subscriptions import Subscriptions
from pelton.engine.delivery.waiting import WaitingPulls
from pelton.engine.direct import DirectGets
from pelton.engine.door import Door
from pelton.engine.faults import public_error
from pelton.engine.keys import Key, key_bytes
from pelton.engine.maintenance.idle_batches import IdleBatches
from pelton.engine.maintenance.restoring import restore_into
from pelton.engine.maintenance.source_catch_up import SourceCatchUp
from pelton.engine.maintenance.store_watch import StoreWatch
from pelton.engine.maintenance.timekeeper import Timekeeper
from pelton.engine.maintenance.upkeep import Path, Progress, backup
from pelton.engine.pubsub.bus import Bus
from pelton.engine.session import Committed, Session, Surroundings
from pelton.engine.settings import EngineSettings
from pelton.engine.token_floor import move_after_restart
from pelton.engine.transactions.settlements import SettleWork, Settling, settle_all, settling_apart
from pelton.engine.transactions.transaction import OpenTransaction
from pelton.engine.transactions.transactions import Transactions
from pelton.engine.transactions.works import CallWork, Publishing, PublishWork
from pelton.engine.verbs.audit import Audit
from pelton.engine.verbs.table import HANDLERS, QUESTIONS, READS
from pelton.runtime import Halt, Runtime, on_thread
from pelton.storage import Committer, Database, Fault, Medium, MemoryChannel, WakeChannel

R = TypeVar("R")


class Engine:
    """A Backend on one open store; belongs to the event loop it was opened on."""

    is_remote = False
    domain_prefix = ""

    refuses_late_acks = True

    has_exclusive_subjects = True

    def __init__(self, settings: EngineSettings, runtime: Runtime) -> None:
        if not settings.memory:
            # SQLite names its log after the file itself, not after a link to it; and folders may be changed.
            settings = replace(settings, path=os.path.realpath(settings.path))
        self._settings = settings
        self._runtime = runtime
        self._clock = runtime.clock
        self._loop = asyncio.get_running_loop()
        self._waiting = WaitingPulls()
        self._closed = False
        self._keying = threading.Lock()
        # Whether something has ended this opener for good.
        self._is_over = False
        self._publishing: PublishWork | None = None
        self._settling: SettleWork | None = None
        try:
            self._db = self._database(Medium(settings.sync_file, settings.write_file))
            try:
                move_after_restart(self._db)
            except BaseException:
                self._db.close()
                raise
        except Fault as fault:
            raise public_error(fault) from None
        door = Door(self._db, self._loop)
        self._check, self.check_loop, self.check_place = door.check, door.check_loop, door.check_place
        channel = MemoryChannel if settings.memory else WakeChannel
        self._channel: MemoryChannel | WakeChannel = channel(settings.path, self.woken, self._clock.monotonic)
        self.session = self._session_on(self._db, lambda: not self._waiting.is_empty)
        self.account = self.session.registry.account
        self._idle_batches = IdleBatches(self, self._clock)
        self._direct = DirectGets(self.session)
        self._audit = Audit(self.session, self._clock.now(), VERSION)
        self._pushes = Pushes(self, self._waiting, self._channel, runtime)
        polled = self._channel.polled
        self._subscriptions = Subscriptions(self, self._pushes, self._clock, self._db.path, polled=polled)
        self._pulls = Pulls(self, self._waiting, self._channel, self._clock)
        self._committer = Committer(
            self._db,
            self,
            mode=settings.sync,
            interval=settings.interval,
            busy_timeout=settings.busy_timeout,
        )
        self._transactions = Transactions(
            self, self._db, self._committer, self._clock, busy_timeout=settings.busy_timeout
        )
        self._timekeeper = Timekeeper(self, self._clock)
        self._feeding = SourceCatchUp(self, self._clock)
        self._lookout = None if settings.memory else StoreWatch(self._loop, self._db, self.woken)

    # --- participant of the committer's transactions

    def began(self) -> None:
        self._publishing = self._settling = None
        self.session.refresh()

    def flush(self) -> None:
        self.session.flush()

    def committed(self) -> None:
        self.publish_committed(self.session.committed())

    def rolled_back(self) -> None:
        # What was staged and never ran has failed by now: nobody may join it.
        self._publishing = self._settling = None
        self.session.roll_back()
        self._timekeeper.look_again()

    def publish_committed(self, committed: Committed) -> None:
        """Let everybody learn what a transaction did, of whichever session."""
        if committed.changed:
            if committed.news:
                self._waiting.notify(committed.news)
            self._channel.wake_others()
        # What follows concerns few transactions, and every one passes here.
        for subscriber, messages in committed.deliveries:
            subscriber.receive(messages)
        if self.session.registry.consumers.pushed or self._pushes.is_pumping:
            self._pushes.look()
        if committed.deadlines:
            self._timekeeper.committed(committed.deadlines)
        if committed.has_backlog:
            self._feeding.committed()
        if committed.has_batches or self._idle_batches.is_set:
            self._idle_batches.committed()

    # --- sessions

    def _session_on(self, database: Database, has_waiters: Callable[[], bool], of: Bus | None = None) -> Session:
        random, clock = self._runtime.random, self._clock
        bus = Bus(database, self._channel, random.choice, of)
        new_id, limits = self._runtime.ids.new, self._settings.limits
        # Pulls are made of a session: how many wait is asked later.
        surroundings = Surroundings(
            clock.now, random.randrange, new_id, has_waiters, lambda consumer: self._pulls.count(consumer), limits
        )
        return Session(database, bus, surroundings)

    def _database(self, medium: Medium | None = None) -> Database:
        settings = self._settings
        path, memory, mode = settings.path, settings.memory, settings.mode
        database = Database(path, memory=memory, key=settings.key, vfs=settings.vfs, mode=mode, medium=medium)
        database.ending.tell(self._has_ended)
        return database

    def second_session(self) -> Session:
        """Open another session, on a connection of its own, for transactions that users hold open."""
        self.check_place()
        # Pulls that begin to wait while a transaction is open want to hear of it, too.
        return self._session_on(self._database(), lambda: True, self.session.bus)

    async def readable(self) -> None:
        """Wait until the store can be read; only a memory store ever cannot."""
        await self._transactions.readable()

    def transaction(self, timeout: float) -> OpenTransaction:
        """Return the transaction that the caller is in, or a new one."""
        self._check()
        return self._transactions.of_caller() or OpenTransaction(self._transactions, timeout)

    # --- the port

    async def call(self, request: Request[R]) -> R:
        """Do one administrative verb."""
        self._check()
        check_request(request)
        try:
            return await self._call(request)
        except ApiError as error:
            error.locate(**names_of(request))
            raise

    async def _call(self, request: Request[R]) -> R:
        kind = type(request)
        with self.account.counting():
            inside = self._transactions.of_caller() if kind in QUESTIONS else None
            if inside is not None and (inside.is_open or kind not in READS):
                return cast(R, await inside.look(lambda operations: HANDLERS[kind](operations.session, request)))
            if kind in READS:
                await self.readable()
                found = self.read(lambda: None if self._writes(request) else (HANDLERS[kind](self.session, request),))
                if found is not None:
                    return cast(R, found[0])
            reply: R = await self.stage(lambda: self._audit.call(request), durable=True)
            return reply

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        """Store a message; returns when it is as durable as the store was opened for."""
        future = self._loop.create_future()
        self._publish(Publishing(((subject, data, headers),), True, future))
        ack: PubAck = await future
        return ack

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store messages in order, durable together."""
        if not messages:
            return []
        future = self._loop.create_future()
        self._publish(Publishing(messages, False, future))
        acks: list[PubAck] = await future
        return acks

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages where they lie (ADR-31)."""
        self._check()
        inside = self._transactions.of_caller()
        if inside is not None and inside.is_open:
            return await inside.look(lambda operations: operations.direct_get(stream, request))
        await self.readable()
        if self._direct.is_greedy():
            await asyncio.sleep(0)
            self._check()
        reply = self._direct.fast_get(stream, request)
        if reply is None:
            reply = self.read(lambda: self._direct.look(stream, request))
        if reply is None:
            reply = await self.stage(lambda: self._direct.clean_and_look(stream, request), durable=False)
        return reply

    async def publish_atomic(self, messages: Sequence[Outgoing]) -> PubAck:
        """Store messages together or not at all, in one transaction."""
        ack: asyncio.Future[PubAck] = self._loop.create_future()
        self._publish(Publishing(messages, False, ack, self._runtime.ids.new()))
        return await ack

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries; returns when durable."""
        if not acks:
            return []
        future = self._loop.create_future()
        self._settle(Settling(stream, consumer, acks, None, future))
        answers: list[PeltonError | None] = await future
        return answers

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        """Publish messages and acknowledge a delivery in one transaction."""
        future = self._loop.create_future()
        self._settle(Settling(stream, consumer, (ack,), publishes, future))
        acks: list[PubAck] = await future
        return acks

    async def settle_many(self, endings: Sequence[Settled], stream: str, consumer: str) -> list[PeltonError | None]:
        """Publish messages and acknowledge the deliveries they result from, in one transaction."""

        def stage(some: Sequence[Settled]) -> asyncio.Future[list[PeltonError | None]]:
            future = self._loop.create_future()
            # What else is asked for in this round shares their transaction, such as the next deliveries.
            self._settle(settling_apart(stream, consumer, some, future), at_once=False)
            return future

        return await settle_all(stage, endings)

    async def pull(self, stream: str, consumer: str, request: PullRequest) -> list[Delivered]:
        """Take up to ``request.batch`` messages, waiting for the first if the request says so."""
        self._check()
        return await self._pulls.pull(stream, consumer, request)

    async def subscribe(self, subject: str, queue: str = "") -> EngineSubscription:
        """Listen to what is published from now on, by whichever process."""
        self._check()
        return await self._subscriptions.subscribe(subject, queue)

    async def send(self, subject: str, data: bytes = b"", headers: bytes | None = None) -> None:
        """Tell a message to whoever listens, and store it where a stream takes it, without an answer."""
        self._check()
        check_subject(subject)
        message = (subject, data, headers)
        await self.stage(lambda: self.session.send(message), durable=False)

    async def presence(self) -> str:
        """Return the name of this opener on the wake-up channel; empty where others cannot reach it."""
        self._check()
        return "" if self._channel.polled else self._channel.name

    async def is_gone(self, presence: str) -> bool:
        """Whether no opener of this name is on the wake-up channel."""
        self._check()
        return self._channel.is_gone(presence)

    def clone(self) -> Engine:
        """Open the same store for the event loop of the calling thread."""
        with self._keying:
            self.check_place()
            return Engine(replace(self._settings), self._runtime)

    async def rekey(self, key: Key) -> None:
        """Encrypt the store with another key; see :meth:`pelton.Jet.rekey`."""
        self.check_loop()
        new = key_bytes(key)
        if new is None:
            raise ConfigError("rekey needs a key; to decrypt a store, close it and use pelton.rekey(path, key, None)")
        # What is staged waits for the transaction: within it, that would be for itself.
        self._transactions.check_outside()
        await self._committer.quiesce()
        await self._transactions.rest()
        self._check()
        # Clones, also those that another thread is just making, need the key that the store has.
        with self._keying:
            try:
                self._db.rekey(new)
            except Fault as fault:
                raise public_error(fault) from None
            self._settings = replace(self._settings, key=new)
        self._channel.wake_others()
        await self.stage(lambda: None, durable=True)

    async def backup(self, target: Path, streams: Sequence[str] | None, progress: Progress | None) -> None:
        """Copy the store on another thread; see :meth:`pelton.Jet.backup`."""
        if self._settings.memory:
            raise ConfigError("'memory:' has no file to back up: open a file")
        self.check_loop()
        self.check_place()
        path, key = self._settings.path, self._settings.key

        def work(halt: Halt) -> None:
            backup(path, target, streams=streams, progress=self._telling(progress, halt), key=key)

        await on_thread(work)

    def _telling(self, progress: Progress | None, halt: Halt) -> Progress:
        """Return what tells ``progress`` on the loop, and ends the work when nobody waits for it any more."""

        def tell(done: int, total: int) -> None:
            halt.check()
            if progress is not None:
                self._loop.call_soon_threadsafe(progress, done, total)

        return tell

    async def restore(
        self,
        source: Path,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> list[str]:
        """Copy streams of a backup into the store, on another thread; see :meth:`pelton.Jet.restore`."""
        if self._settings.memory:
            raise ConfigError("'memory:' has no file to restore to: open a file")
        self.check_loop()
        self.check_place()
        self._transactions.check_outside()
        path, own = self._settings.path, key_bytes(self._settings.key)

        def work(halt: Halt) -> list[str]:
            told = self._telling(progress, halt)
            return restore_into(source, path, own, streams=streams, names=names, key=key, progress=told, halt=halt)

        try:
            found = await on_thread(work)
        finally:
            # Also where the caller was cancelled when it was just done.
            self._channel.wake_others()
            self.woken()
        # See it here as well, before anything is asked of it, and do what it has left to do.
        await self.stage(lambda: None, durable=True)
        self.woken()
        return found

    async def close(self) -> None:
        """Finish what was staged, tell waiting pulls, and close the store."""
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
        self._stop_timers()
        await self._committer.quiesce()
        self._waiting.notify_all()
        self._channel.close()
        self._committer.close()
        self._db.close()

    # --- staging

    def _publish(self, entry: Publishing) -> None:
        self._check()
        self._transactions.check_outside()
        if self._publishing is None:
            work = PublishWork(self.session, self._clock.now)
            work.entries.append(entry)
            if not self._committer.run_now(work):
                self._publishing = work
        else:
            self._publishing.entries.append(entry)

    def _settle(self, entry: Settling, *, at_once: bool = True) -> None:
        self._check()
        self._transactions.check_outside()
        if self._settling is None:
            work = SettleWork(self.session, self._clock.now)
            work.entries.append(entry)
            if not at_once:
                self._committer.stage(work)
            if not (at_once and self._committer.run_now(work)):
                self._settling = work
        else:
            self._settling.entries.append(entry)

    def stage(self, call: Callable[[], Any], *, durable: bool, at_once: bool = False) -> asyncio.Future[Any]:
        self._transactions.check_outside()
        future: asyncio.Future[Any] = self._loop.create_future()
        work = CallWork(future, call, durable=durable)
        try:
            if at_once:
                self._committer.run_now(work)
            else:
                self._committer.stage(work)
        except Fault as fault:
            raise public_error(fault) from None
        return future

    def read(self, call: Callable[[], R]) -> R:
        if self._transactions.is_unreadable:
            raise StoreBusyError(self._db.path, "a transaction is open in this memory store")
        try:
            with self._db.reading():
                self.session.refresh()
                return call()
        except Fault as fault:
            raise public_error(fault) from None

    def hand_back(self, stream: str, consumer: str, delivered: list[Delivered]) -> None:
        """Give back what was delivered to a pull that was cancelled in the same moment."""
        acks = [AckOp(kind="nak", seq=one.seq, consumer_seq=one.consumer_seq, token=one.token) for one in delivered]
        if acks:
            future = self._loop.create_future()
            # Whatever becomes of it, nobody waits: what cannot be given back falls due after its ack wait.
            future.add_done_callback(lambda done: done.exception())
            self._settle(Settling(stream, consumer, acks, None, future))

    def _writes(self, request: Request[Any]) -> bool:
        """Whether a read has to write: it is told of, or may meet messages whose time is over."""
        if self._audit.is_wanted:
            return True
        registry, now = self.session.registry, self._clock.now()
        named = registry.streams.get(getattr(request, "stream", "") or getattr(request, "name", ""))
        logs = [named] if named is not None else registry.streams.values()
        return any(registry.use(log).state.is_overdue(now) or registry.is_retiring(log, now) for log in logs)

    # --- other processes

    def check_outside(self) -> None:
        """Raise TransactionError in the task that holds a transaction open."""
        self._transactions.check_outside()

    def woken(self) -> None:
        """Another process has committed something."""
        if self._is_over:
            return
        self._committer.woken()
        self._waiting.notify_all()
        self._timekeeper.look_again()
        self._feeding.woken()
        if self._subscriptions and not self._transactions.is_unreadable:
            # What it said is heard by reading. What keeps us from that is met by whoever uses the store.
            with suppress(PeltonError):
                self.read(lambda: None)
                self._pushes.look()

    # --- the end

    def _has_ended(self, fault: Fault) -> None:
        """One of our connections, on whichever thread, can never be used again."""
        # A loop that is closed has nobody waiting.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, fault)

    def _end(self, fault: Fault) -> None:
        """Let everything that waits fail with what has ended this opener: nothing would wake it any more."""
        if self._is_over or self._closed:
            return
        self._is_over = True
        if self._db.ending.fault is None:
            # It was the connection of a transaction.
            self._db.ending.end(fault)
        self._stop_timers()
        self._pushes.stop()
        self._subscriptions.fail(public_error(self._db.ending.fault or fault))
        # Pulls and pumps look, and meet it.
        self._waiting.notify_all()

    def _stop_timers(self) -> None:
        if self._lookout is not None:
            self._lookout.close()
        self._idle_batches.cancel()
        self._timekeeper.close()
        self._feeding.close()
