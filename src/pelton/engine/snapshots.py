"""SQL and looks on one snapshot of a store, on a connection and a thread of its own, so that no publisher waits.

The snapshot is as of the beginning of the block. While it is open, the log of the store cannot start again from its
beginning, so the block has a timeout; a statement that runs then is interrupted.

**Direct get in the engine: a fast get if one row is enough, else a read in a snapshot.** Expired messages are removed
when they are met, so a read that would meet one becomes a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from pelton.api import (
    DirectGet,
    DirectReply,
    MsgGet,
    MsgGetReply,
    Request,
    SnapshotTimeoutError,
    StoreBusyError,
    TransactionError,
    api_error,
)
from pelton.api.requests import FindMessages, SubjectTotals
from pelton.engine.connections import Connections
from pelton.engine.host import Door, public_error, sql_error
from pelton.engine.session import Session
from pelton.runtime import Clock, Halt, Timer, on_thread
from pelton.storage import DamagedRowError, Database, Fault, MessageRow, ReadOnlyDatabase, ReadSql, Refusal, translated
from pelton.streams import DirectReads, Look, StreamLog, find_messages, stored_message, subject_totals, wire_message
from pelton.subjects import has_wildcard

T = TypeVar("T")
_PAUSE_S: Final = 0.005


class SqlSnapshot:
    """One block of reads. ``opened`` opens its connection; ``timeout`` in seconds bounds how long it stays open."""

    def __init__(self, opened: Callable[[], ReadOnlyDatabase], clock: Clock, timeout: float) -> None:
        self._opened = opened
        self.clock = clock
        self._timeout = timeout
        self._deadline = 0.0
        self._timer: Timer | None = None
        self._database: ReadOnlyDatabase | None = None
        self._halt: Halt | None = None
        self._turn = asyncio.Lock()
        self._is_left = False

    async def enter(self) -> None:
        """Take the snapshot. Raises what opening the store raises."""
        self._deadline = self.clock.monotonic() + self._timeout
        self._timer = self.clock.call_later(self._timeout, self._expire)
        try:
            self._database = await self._open()
        except BaseException:
            self._timer.cancel()
            raise

    async def _open(self) -> ReadOnlyDatabase:
        return await self._on_thread(self._begin, undo=ReadOnlyDatabase.close)

    def _begin(self) -> ReadOnlyDatabase:
        database = self._opened()
        try:
            with translated(database.path):
                database.execute("BEGIN")
                # The snapshot begins with the first read.
                database.value("SELECT value FROM meta WHERE key='catalogue'")
        except BaseException:
            database.close()
            raise
        return database

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        try:
            return await self.look(lambda database: ReadSql(database, self.is_over).run(statement, bindings))
        except Refusal as refusal:
            raise sql_error(refusal, statement) from refusal

    async def look(self, work: Callable[[ReadOnlyDatabase], T]) -> T:
        """Return what ``work`` reads, which ends when ``is_over``. Raises SnapshotTimeoutError, StoreBusyError."""
        async with self._turn:
            database = self._database
            if self._deadline and self._is_late:
                raise SnapshotTimeoutError(self._timeout)
            if database is None:
                raise TransactionError("its block has not begun or is over: use it inside 'async with jet.read()'")
            try:
                return await self._on_thread(lambda: self._run(database, work))
            except Exception:
                if self._is_late:
                    raise SnapshotTimeoutError(self._timeout) from None
                raise
            finally:
                # Whoever left could not wait, or the time ran out meanwhile.
                if self._is_left or self._is_late:
                    self._shut()

    def _run(self, database: ReadOnlyDatabase, work: Callable[[ReadOnlyDatabase], T]) -> T:
        try:
            with translated(database.path):
                found = work(database)
        except Fault:
            if database.is_current:
                raise
            raise self._replaced_error(database) from None
        if not database.is_current:
            raise self._replaced_error(database)
        return found

    def _replaced_error(self, database: ReadOnlyDatabase) -> StoreBusyError:
        return StoreBusyError(database.path, "it was opened for writing, or replaced, since the block began")

    async def leave(self) -> None:
        """End the block. Idempotent."""
        self._is_left = True
        if self._timer is not None:
            self._timer.cancel()
        if self._halt is not None:
            self._halt.ask()
        async with self._turn:
            self._shut()

    def _shut(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def is_over(self) -> bool:
        """Whether whoever asked has left, or the time is over."""
        halt = self._halt
        return (halt is not None and halt.is_asked_for) or self._is_late

    @property
    def _is_late(self) -> bool:
        return self.clock.monotonic() >= self._deadline

    def _expire(self) -> None:
        # A statement that runs is interrupted, and the next one is refused; an idle snapshot ends here.
        if not self._turn.locked():
            self._shut()

    async def _on_thread(self, work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        def halting(halt: Halt) -> T:
            self._halt = halt
            return work()

        try:
            return await on_thread(halting, undo)
        except Fault as fault:
            raise public_error(fault) from None
        finally:
            self._halt = None


class CopySnapshot(SqlSnapshot):
    """One block of reads of a store in memory, on a copy of it."""

    async def _open(self) -> ReadOnlyDatabase:
        # On the event loop, between its transactions: a writer does not wait for a reader on another thread.
        while True:
            try:
                return self._begin()
            except Fault as fault:
                if fault.kind != "busy":
                    raise public_error(fault) from None
            if self._is_late:
                raise SnapshotTimeoutError(self._timeout)
            await self.clock.sleep(_PAUSE_S)


class SqlSnapshots:
    """Takes them."""

    def __init__(self, connections: Connections, door: Door, clock: Clock) -> None:
        self._connections = connections
        self._door = door
        self._clock = clock

    def take(self, timeout: float) -> SqlSnapshot:
        """Return SQL on one snapshot, open for at most ``timeout`` seconds."""
        self._door.check()
        if self._connections.settings.memory:
            return CopySnapshot(self._connections.copy_memory, self._clock, timeout)
        return SqlSnapshot(self._connections.reading, self._clock, timeout)


# --- looks through a whole stream, each on a thread and a snapshot of its own: no publisher waits for one

R = TypeVar("R")
LOOKS: Final[dict[type[Request[Any]], Callable[[Look, Any], Any]]] = dict(
    (FindMessages.answered_by(find_messages), SubjectTotals.answered_by(subject_totals))
)
"""The requests that are answered so."""
_LONGEST_S: Final = 60.0


async def look(reading: Callable[[float], SqlSnapshot], log: StreamLog, request: Request[R]) -> R:
    """Answer a request about a stream. Raises StreamNotFoundError, StoreBusyError."""

    def answer(database: Database) -> R:
        # Nothing else of what streams need is asked by a look.
        there = StreamLog(msgspec.structs.replace(log.state.env, database=database), log.id, log.config, log.created)
        try:
            there.state.load()
        except DamagedRowError:
            # It was whole before the snapshot, so it was deleted meanwhile.
            raise api_error("JSStreamNotFoundErr", stream=log.name) from None
        reply: R = LOOKS[type(request)](Look(there, snapshot.clock, snapshot.is_over), request)
        return reply

    snapshot = reading(_LONGEST_S)
    try:
        await snapshot.enter()
        return await snapshot.look(answer)
    finally:
        await snapshot.leave()


# The number of reads in a row before other tasks on the event loop may run.
_IN_A_ROW: Final = 64


class DirectGets:
    """The direct gets of one open store."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._now = session.now
        self._reads = DirectReads(session.db.path)
        self._in_a_row = 0

    def is_greedy(self) -> bool:
        """Whether to let other tasks run now: reads never wait, so a loop of reads would block the event loop."""
        self._in_a_row += 1
        if self._in_a_row < _IN_A_ROW:
            return False
        self._in_a_row = 0
        return True

    def fast_get(self, stream: str, request: DirectGet) -> DirectReply | None:
        """Return the message of a sequence, or the last of a subject; None if it needs a read in a snapshot."""
        log = self._session.registry.streams.get(stream)
        if log is None or not log.config.allow_direct or request.batch or request.multi_last:
            return None
        if request.next_by_subj or request.start_time or request.up_to_seq or request.up_to_time:
            return None
        row = self._fast_row(log, request.seq, request.last_by_subj)
        return None if row is None else DirectReply([stored_message(row)])

    def fast_message(self, request: MsgGet) -> MsgGetReply | None:
        """Return the same for a request that any stream answers."""
        log = self._session.registry.streams.get(request.stream)
        if log is None or request.next_by_subj or request.start_time or request.no_hdr:
            return None
        row = self._fast_row(log, request.seq, request.last_by_subj)
        return None if row is None else MsgGetReply(message=wire_message(row))

    def _fast_row(self, log: StreamLog, seq: int, subject: str) -> MessageRow | None:
        if log.state.is_timed or log.state.rolling or bool(seq) == bool(subject):
            return None
        version = self._session.registry.version
        if seq:
            row = log.fast_get.by_seq(seq, version)
        elif has_wildcard(subject):
            return None
        else:
            seen, last = log.state.subjects.last_uncounted(subject)
            row = log.fast_get.last_of(subject, last, seen, version)
        age = log.config.max_age.ns
        if row is not None and 0 < age <= self._now() - log.state.counts_from(row.seq, row.ts):
            return None
        return row

    def look(self, stream: str, request: DirectGet) -> DirectReply | None:
        """Answer inside a snapshot; return None if expired messages must be removed first."""
        log = self._session.registry.direct(stream)
        if log.state.is_overdue(self._now()):
            return None
        # A batch counts as many single reads.
        self._in_a_row += request.batch or len(request.multi_last)
        return self._reads.read(log, request)

    def clean_and_look(self, stream: str, request: DirectGet) -> DirectReply:
        """Answer inside a write transaction."""
        log = self._session.registry.direct(stream)
        log.advance(self._now())
        log.appender.flush()
        # This transaction may still be rolled back, so its counts are not shared with other reads.
        return DirectReads(self._session.db.path).read(log, request)
