"""The queue for the writer: the transactions that users of one open store hold open.

Design: a transaction takes the store's writer at its first operation, on a session of its own, and keeps it until its
block ends or it times out. Each process has one open at a time; the others queue in order of arrival. Until it ends,
this process's other work waits in the committer, which runs it as soon as the writer is free, before the next
transaction: neither starves the other. To other processes it is a writer like any other.

Reads continue: readers see the store as it was. Only a memory store has no snapshots, so there readers wait.

A commit is synced to disk with the committer's next sync, together with everything else committed by then.

**One transaction that its user holds open, from the beginning of its block to the end.** The states, and what moves it
from one to the next::

    entered --first operation--> open      waits for the writer and takes it, the timeout begins to run
    open --the block ends--> committed     durable before the block is left
    open --the block raises--> rolled back
    open --it times out, the store closes, an operation fails half way--> lost
    lost --the block ends--> rolled back   and the block raises the cause
    entered --the block ends--> over       without operations, nothing happens

An operation runs from beginning to end without letting other tasks run. If it is refused, it has changed nothing, and
the block may continue; any other error leaves an unknown state, so the transaction is lost at once and the writer is
released. Nested blocks are savepoints, which must be left in the order in which they nest. A transaction belongs to
the task that entered it.

**The operations of a transaction that its user holds open, on a session of its own.** The session has its own
connection and registry, as another process would: uncommitted changes are visible only through it. The effects of the
commit reach others through the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from pelton.api import (
    AckOp,
    ConfigError,
    DirectGet,
    DirectReply,
    Outgoing,
    PeltonError,
    PubAck,
    StoreBusyError,
    StoreClosedError,
    TransactionError,
    TransactionTimeoutError,
)
from pelton.consumers import Settlement
from pelton.engine.host import Host, public_error, sql_error
from pelton.engine.session import Session, SessionMark
from pelton.engine.snapshots import DirectGets
from pelton.engine.submissions import CallWork, all_stored, make_ready, store, store_plain
from pelton.runtime import Caller, Clock, Signal, Timer, owner, within
from pelton.storage import (
    Committer,
    Database,
    Fault,
    MemoryChannel,
    PlacedSums,
    Refusal,
    UserSql,
    Writer,
    as_fault,
    placed_sums,
    translated,
)
from pelton.storage.user_sql import Bindings
from pelton.streams import Packed, is_bare, is_member

_headers_of: Final = attrgetter("headers")


class _OpenSettlement(msgspec.Struct, frozen=True):
    """Acks of one consumer that were checked, and are not written yet."""

    stream: str
    consumer: str
    settlement: Settlement


class Operations:
    """Runs the operations of one transaction at a time. ``is_late`` returns whether it has exceeded its timeout.

    ``busy_timeout`` (seconds) bounds the wait for the writer.
    """

    def __init__(self, session: Session, is_late: Callable[[], bool], busy_timeout: float) -> None:
        self.session = session
        self.db: Database = session.db
        self.writer: Writer = Writer(self.db, busy_timeout)
        self._direct = DirectGets(session)
        self._sql = UserSql(self.db, is_late)
        self._settling: _OpenSettlement | None = None

    def began(self) -> None:
        """Load what others have written: the transaction was just opened."""
        self.db.fold_on_commit(True)
        self.session.began()

    def publish(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Append all messages, or none; acks wait on if these go to another stream, which does not depend on them."""
        settling = self._settling
        stored = store_plain(self.session, messages, apart_from="" if settling is None else settling.stream)
        if stored is not None:
            return stored
        if any(map(is_member, map(_headers_of, messages))):
            raise ConfigError("headers Nats-Batch-*: a transaction is stored as one without them; leave them out")
        self._settle_up()
        if len(messages) <= 1 or self._is_sure(messages):
            return all_stored(store(self.session, messages, "until refused"))
        mark = self.mark()
        try:
            acks = all_stored(store(self.session, messages, "until refused"))
        except PeltonError:
            self.go_back(mark)
            raise
        self.keep(mark)
        return acks

    def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        """Append messages, each answered by itself."""
        self._settle_up()
        return store(self.session, messages, "apart")

    def load(self, packed: Packed, sums: PlacedSums) -> None:
        """Append messages without headers, or none."""
        registry = self.session.registry
        logs = registry.routes.find_all(packed.subjects)
        log = logs.pop() if len(logs) == 1 else None
        if log is None or not registry.use(log).appender.takes_packed or self.session.bus.has_subscriptions:
            self.publish(packed.messages())
            self.flush()
            return
        self._settle_up()
        now = self.session.now()
        make_ready(self.session, log, now)
        log.appender.append_packed(packed, now, sums)

    def _is_sure(self, messages: Sequence[Outgoing]) -> bool:
        """Whether none of these messages can be refused."""
        registry = self.session.registry
        logs = registry.routes.find_all({message.subject for message in messages})
        plain = all(log and registry.use(log).appender.is_plain for log in logs)
        return plain and all(is_bare(message.headers) for message in messages)

    def ack(self, stream: str, name: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries; acks of one consumer that follow each other are written together.

        The rest of the transaction depends on them, so an ack without effect, harmless by itself, is refused here.
        """
        settling = self._settling
        if settling is None or (settling.stream, settling.consumer) != (stream, name):
            self._settle_up()
            registry = self.session.registry
            settlement = registry.settlement(registry.consumer(stream, name), self.session.now())
            settling = self._settling = _OpenSettlement(stream, name, settlement)
        return settling.settlement.take(acks)

    def _settle_up(self) -> None:
        if self._settling is not None:
            self._settling.settlement.write()
            self._settling = None

    def flush(self) -> None:
        """Write what the transaction holds in memory."""
        self._settle_up()
        self.session.flush()

    def sql(self, statement: str, bindings: Bindings) -> list[tuple[Any, ...]]:
        return self._sql.run(statement, bindings)

    def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages directly from the stream."""
        return self._direct.clean_and_look(stream, request)

    def roll_back(self) -> None:
        """Roll back the whole transaction."""
        self._settling = None
        self.session.roll_back()
        self.writer.roll_back()

    # --- going back within a transaction

    def mark(self) -> SessionMark:
        """Set a savepoint."""
        self._settle_up()
        return self.session.mark()

    def keep(self, mark: SessionMark) -> None:
        """Release a savepoint, and keep what was done since."""
        self.session.keep(mark)

    def go_back(self, mark: SessionMark) -> None:
        """Roll back to a savepoint, and release it."""
        self._settling = None
        self.session.go_back(mark)


P = ParamSpec("P")
T = TypeVar("T")


class OpenTransaction:
    """A transaction of one owner; ``timeout`` (seconds) bounds how long it holds the writer."""

    def __init__(self, writers: Transactions, timeout: float) -> None:
        self._writers = writers
        self._timeout = timeout
        self._owner: Caller | None = None
        self._marks: list[SessionMark | None] = []
        self._operations: Operations | None = None
        self._loss: PeltonError | None = None
        self._timer: Timer | None = None
        self._deadline = 0.0

    # --- the block

    async def enter(self) -> int:
        """Begin the block, or a nested one; return its level."""
        if self._owner is None:
            self._writers.check()
            self._owner = Caller()
            self._writers.entered[self._owner.identity] = self
            self._marks.append(None)
            return 0
        operations = await self._open_operations()
        self._marks.append(self._do(operations.mark))
        return len(self._marks) - 1

    async def leave(self, level: int, *, keep: bool) -> None:
        """End the block of this level."""
        owner = self._check_owner()
        if level != len(self._marks) - 1:
            self.abandon(TransactionError("it was rolled back, because a block within it was still open at its end"))
            del self._marks[level + 1 :]
        mark = self._marks.pop()
        if mark is not None:
            self._leave_inner(mark, keep=keep)
            return
        self._writers.entered.pop(owner.identity, None)
        if not keep:
            self._end()
            return
        if self._operations is not None and self._loss is None and self.is_late:
            self._expire()
        if self._loss is not None:
            raise self._loss
        if self._operations is not None:
            await self._commit(self._operations)

    def _leave_inner(self, mark: SessionMark, *, keep: bool) -> None:
        operations = self._operations
        if self._loss is not None or operations is None:
            if keep and self._loss is not None:
                raise self._loss
            return
        self._do(operations.keep if keep else operations.go_back, mark)

    async def _commit(self, operations: Operations) -> None:
        try:
            with translated(operations.db.path):
                operations.flush()
                self._writers.prepare_commit(operations)
                operations.writer.commit()
        except Refusal as refusal:
            self._end()
            raise TransactionError(f"it was rolled back, because its commit was refused: {refusal.reason}") from refusal
        except BaseException as error:
            self._end()
            if isinstance(error, Exception) and (public := public_error(error)) is not error:
                raise public from error
            raise
        self._stop_clock()
        self._operations = None
        # It is committed: cancelling the wait for the disk does not roll it back.
        synced = self._writers.end_commit(operations)
        if synced.done():
            synced.result()
        else:
            await asyncio.shield(synced)

    def _end(self) -> None:
        """Roll back, and release the writer."""
        operations, self._operations = self._operations, None
        self._stop_clock()
        if operations is not None:
            try:
                operations.roll_back()
            finally:
                self._writers.rolled_back()

    # --- time

    @property
    def is_late(self) -> bool:
        """Whether it has held the writer for too long."""
        return self._writers.clock.monotonic() >= self._deadline

    def _expire(self) -> None:
        self.abandon(TransactionTimeoutError(self._timeout))

    def abandon(self, loss: PeltonError) -> None:
        """Roll back now; the block raises ``loss``."""
        if self._loss is None:
            self._loss = loss
            self._end()

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- operations

    async def publish(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        operations = self._current_operations() or await self._open_operations()
        return self._do(operations.publish, messages)

    async def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        operations = await self._open_operations()
        return self._do(operations.publish_apart, messages)

    async def load(self, messages: Packed | Sequence[Outgoing], sums: PlacedSums = placed_sums) -> None:
        """Store many messages, or none, without holding them in memory.

        The commit does not checkpoint the log: that happens when the store is closed, or when others write.
        """
        operations = await self._open_operations()
        operations.db.fold_on_commit(False)
        if isinstance(messages, Packed):
            self._do(operations.load, messages, sums)
            return
        self._do(operations.publish, messages)
        self._do(operations.flush)

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        operations = self._current_operations() or await self._open_operations()
        return self._do(operations.ack, stream, consumer, acks) if acks else []

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        operations = await self._open_operations()
        try:
            return self._do(operations.sql, statement, bindings)
        except Refusal as refusal:
            raise sql_error(refusal, statement) from refusal

    @property
    def is_open(self) -> bool:
        """Whether it holds the writer."""
        return self._operations is not None

    async def look(self, call: Callable[[Operations], T]) -> T:
        """Read the store with the changes of the transaction."""
        operations = await self._open_operations()
        self._do(operations.flush)
        return self._do(call, operations)

    # --- one operation

    async def _open_operations(self) -> Operations:
        """Return the operations of the open transaction, opening it first if this is the first operation."""
        operations = self._current_operations()
        if operations is None:
            operations = self._operations = await self._writers.take(self)
            self._deadline = self._writers.clock.monotonic() + self._timeout
            self._timer = self._writers.clock.call_later(self._timeout, self._expire)
            self._do(operations.began)
        return operations

    def _current_operations(self) -> Operations | None:
        """Return the operations if the transaction is open; raise if its caller may not use it."""
        if self._owner is None or not self._marks or not self._owner.calls_again:
            self._check_owner()
        if self._operations is not None and self._writers.clock.monotonic() >= self._deadline:
            self._expire()
        if self._loss is not None:
            raise self._loss
        self._writers.check()
        return self._operations

    def _check_owner(self) -> Caller:
        if not self._marks or self._owner is None:
            raise TransactionError("its block has not begun or is over: use it inside 'async with'")
        if not self._owner.calls_again:
            # After a fork, the owner's identity may differ: report the fork rather than a foreign task.
            self._writers.check()
            raise TransactionError(
                "it belongs to the task that opened it: await its operations there, one after another "
                "(publish_batch stores many messages at once)"
            )
        return self._owner

    def _do(self, call: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
        """Do an operation; an error that is not a refusal loses the transaction."""
        operations = self._operations
        assert operations is not None
        try:
            return call(*values, **named)
        except BaseException as error:
            if operations.writer.is_open and isinstance(error, (PeltonError, Refusal)):
                raise
            told = self._lose(error, operations.db.path)
            if told is error:
                raise
            raise told from error

    def _lose(self, error: BaseException, path: str) -> BaseException:
        """Roll back after an error, and return the error to raise from the block."""
        if self.is_late:
            self._expire()
        fault = as_fault(error, path)
        shown = error.reason if isinstance(error, Refusal) else fault
        self.abandon(TransactionError(f"it was rolled back after an error: {shown}"))
        if not isinstance(fault, Exception):
            return error
        assert self._loss is not None
        known = not isinstance(error, Refusal) and not isinstance(self._loss, TransactionTimeoutError)
        return public_error(fault) if known else self._loss


class Transactions:
    """The transactions of one engine. ``busy_timeout`` (seconds) bounds the wait for the writer."""

    def __init__(
        self,
        host: Host,
        database: Database,
        committer: Committer,
        clock: Clock,
        memory: MemoryChannel | None,
        *,
        busy_timeout: float,
    ) -> None:
        self._host = host
        # Of a memory store, which nobody can read while a transaction of any opener is open.
        self._memory = memory
        self._db = database
        self._committer = committer
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._busy_timeout = busy_timeout
        self._turn = asyncio.Lock()
        self._queued = 0
        self._ended = Signal()
        # Those that have entered a block, by their owners.
        self.entered: dict[Hashable, OpenTransaction] = {}
        host.door.entered = self.entered
        self._holder: OpenTransaction | None = None
        self._operations: Operations | None = None
        self._closed = False

    # --- for the engine

    def of_caller(self) -> OpenTransaction | None:
        return self.entered.get(owner()) if self.entered else None

    async def wait_for_end(self) -> None:
        """Wait until a transaction ends, of any opener."""
        await self._ended.wait(self._ended.generation)

    @property
    def is_unreadable(self) -> bool:
        """Whether readers have to wait."""
        return self._memory is not None and self._memory.is_held

    def woken(self) -> None:
        """Let readers look again: another opener may have ended its transaction."""
        self._ended.notify()

    async def rest(self) -> None:
        """Wait for the open transaction, and close the second connection until the next transaction."""
        self._host.door.check_outside()
        async with self._turn:
            if self._operations is not None:
                self._operations.db.close()
                self._operations = None

    def close(self) -> None:
        """Roll back the open transaction."""
        self._closed = True
        if self._holder is not None:
            self._holder.abandon(StoreClosedError(self._db.path))
        if self._operations is not None:
            self._operations.writer.give_up()
            self._operations.db.close()
        if self._memory is not None:
            self._memory.hold(False)

    # --- for a transaction

    def check(self) -> None:
        """Raise an error if the store cannot be used."""
        try:
            self._db.check()
        except Fault as fault:
            raise public_error(fault) from None
        if self._closed:
            raise StoreClosedError(self._db.path)

    async def take(self, transaction: OpenTransaction) -> Operations:
        """Wait for the writer; return the operations on which the transaction is open now."""
        # Otherwise, a loop of transactions would never let other tasks run.
        await asyncio.sleep(0)
        try:
            operations = await self._begun_at_once()
            if operations is None:
                operations = await within(self.clock, self._busy_timeout, self._begun_in_turn())
        except TimeoutError:
            reason = f"a transaction waited {self._busy_timeout:g} s for other writers"
            raise StoreBusyError(self._db.path, reason) from None
        self._holder = transaction
        if self._memory is not None:
            self._memory.hold(True)
        self._committer.hold()
        return operations

    async def _begun_at_once(self) -> Operations | None:
        """Return the operations if nothing has to be waited for, which is usual and takes no timer; else None."""
        if self._turn.locked() or self._queued:
            return None
        # This does not wait.
        await self._turn.acquire()
        has_begun = False
        try:
            has_begun = self._try_to_begin() is None
        finally:
            if not has_begun:
                self._turn.release()
        return self._operations if has_begun else None

    async def _begun_in_turn(self) -> Operations:
        self._queued += 1
        try:
            await self._turn.acquire()
        finally:
            self._queued -= 1
        try:
            while True:
                pause = self._try_to_begin()
                if pause is None:
                    break
                await asyncio.sleep(pause)
        except BaseException:
            if self._operations is not None:
                self._operations.writer.give_up()
            self._turn.release()
            raise
        assert self._operations is not None, "they have begun"
        return self._operations

    def _try_to_begin(self) -> float | None:
        """Take the writer; return how long to wait, in seconds, while another process has it, else None."""
        self.check()
        try:
            if self._operations is None:
                self._operations = Operations(self._host.second_session(), self._is_late, self._busy_timeout)
            return self._operations.writer.begin(self._loop.time())
        except Fault as fault:
            raise public_error(fault) from fault

    def _is_late(self) -> bool:
        return self._holder is not None and self._holder.is_late

    def prepare_commit(self, operations: Operations) -> None:
        """Let the committer make room in the log before a commit."""
        self._committer.prepare_commit(operations.db.log_bytes)

    def end_commit(self, operations: Operations) -> asyncio.Future[Any]:
        """Release the writer; the future is done when the commit is as durable as the store's sync mode promises."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._give_back()
        self._host.publish_committed(operations.session.take_effects())
        self._committer.let_go(CallWork(future, _nothing, durable=True))
        if not future.done():
            # If the caller is cancelled, nothing else reads the result.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def rolled_back(self) -> None:
        """Release the writer after a rollback."""
        self._give_back()
        self._committer.let_go()

    def _give_back(self) -> None:
        self._holder = None
        self._turn.release()
        if self._memory is not None:
            self._memory.hold(False)
            self._host.woken()


def _nothing() -> None:
    return None
