"""The embedded Backend of a store that was opened only to be read: every answer is a snapshot's.

It refuses every write, and takes no lock that a writer waits for. So what time has made obsolete since the last write
is still in the rows: expired messages and inactive consumers are left out of what is read and listed, and still count
in the numbers of messages and bytes of a stream until a process that writes removes them.

A store that no process has open is read as a plain file (``storage/read_only.py``). If a process opens it meanwhile,
what was read may be torn: it is dropped, and read again by the other route.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec

from pelton.api import (
    ApiError,
    ConsumerInfo,
    DirectGet,
    DirectReply,
    MsgGet,
    Request,
    StoreBusyError,
    StoreClosedError,
    StoreReadOnlyError,
    StreamLastHeaders,
    StreamLastHeadersReply,
    api_error,
    parse_rfc3339,
)
from pelton.api.admission import check_request
from pelton.api.backend import Backups, EmbeddedStore, Planning, RowReader, StoreTroubles
from pelton.api.codec import names_of
from pelton.api.times import NEVER
from pelton.api.tracing import Tracing
from pelton.engine.bus import Bus
from pelton.engine.connections import PLANNING, EngineSettings, troubles_of
from pelton.engine.host import Door, public_error
from pelton.engine.session import Session, Surroundings
from pelton.engine.snapshots import LOOKS, SqlSnapshot, look
from pelton.engine.verbs import QUESTIONS, answer
from pelton.runtime import Runtime
from pelton.storage import BegunMarks, Fault, ReadOnlyDatabase, StreamMarks, may_run
from pelton.streams import DirectReads, StreamLog

R = TypeVar("R")


def living_answer(session: Session, request: Request[R]) -> R:
    """Answer a request that only asks. Raises ApiError."""
    if isinstance(request, MsgGet):
        return cast("R", _living_message(session, request))
    if isinstance(request, StreamLastHeaders):
        return cast("R", _living_heads(session, request))
    return answer(session, request)


def _living_message(session: Session, request: MsgGet) -> Any:
    while True:
        reply = answer(session, request)
        log, message, now = session.registry.stream(request.stream), reply.message, session.now()
        if not log.state.is_overdue(now) or not _has_expired(log, message.seq, parse_rfc3339(message.time), now):
            return reply
        if not (request.next_by_subj or request.start_time):
            raise api_error("JSNoMessageFoundErr", stream=request.stream, seq=request.seq)
        following = {"start_time": "", "next_by_subj": request.next_by_subj or ">"}
        request = msgspec.structs.replace(request, seq=message.seq + 1, **following)


def _living_heads(session: Session, request: StreamLastHeaders) -> StreamLastHeadersReply:
    while True:
        reply = answer(session, request)
        log, now = session.registry.stream(request.stream), session.now()
        if not reply.heads or not log.state.is_overdue(now):
            return reply
        living = tuple(
            head for head in reply.heads if not _has_expired(log, head.seq, log.table.time_of(head.seq), now)
        )
        if living:
            return StreamLastHeadersReply(heads=living)
        request = msgspec.structs.replace(request, after=reply.heads[-1].subject)


def living_messages(reads: DirectReads, log: StreamLog, request: DirectGet, now: int) -> DirectReply:
    """Answer a direct get. Raises ApiError, CorruptMessageError."""
    while True:
        reply = reads.read(log, request)
        if not reply.messages or not log.state.is_overdue(now):
            return reply
        living = [one for one in reply.messages if not _has_expired(log, one.seq, one.time_ns, now)]
        if living:
            return msgspec.structs.replace(reply, messages=living)
        if not (request.next_by_subj or request.start_time) or request.multi_last:
            raise api_error("JSNoMessageFoundErr", stream=log.name, seq=request.seq)
        following = {"start_time": "", "next_by_subj": request.next_by_subj or ">"}
        request = msgspec.structs.replace(request, seq=reply.messages[-1].seq + 1, **following)


def _has_expired(log: StreamLog, seq: int, ts: int | None, now: int) -> bool:
    """Whether a message is past its own TTL or its stream's ``max_age``."""
    due = log.state.timers.due_of(seq)
    if due is not None and due <= now:
        return True
    return due != NEVER and ts is not None and 0 < log.config.max_age.ns <= now - log.state.counts_from(seq, ts)


_TRIES: Final = 20
_OPENED_SO: Final = "it was opened with read_only=True"
_REOPENED: Final = "it is opened and closed again and again while it is read"


class _Bystander:
    """The other openers of the store, for one that they need not know about."""

    name = ""
    polled = True

    def is_alive(self, name: str) -> bool:
        return may_run(name)

    def wake(self, name: str) -> None:
        """Do nothing: it never writes."""


class _View:
    """A connection with its session."""

    def __init__(self, settings: EngineSettings, runtime: Runtime, loop: asyncio.AbstractEventLoop) -> None:
        self.database = ReadOnlyDatabase(settings.path, key=settings.key, vfs=settings.vfs)
        self.door = Door(self.database, loop)
        self.direct = DirectReads(settings.path)
        bus = Bus(self.database, _Bystander(), runtime.random.choice)
        surroundings = Surroundings(
            runtime.clock.now, runtime.random.randrange, runtime.ids.new, lambda: False, lambda _: 0, settings.limits
        )
        self.session = Session(self.database, bus, surroundings)


class ReadOnlyEngine:
    """A Backend that only reads; belongs to the event loop it was opened on."""

    planning: Planning = msgspec.structs.replace(PLANNING, read_only=True)
    domain_prefix = ""
    restarted_at: float = float("-inf")
    tracing: Tracing | None = None

    def __init__(self, settings: EngineSettings, runtime: Runtime) -> None:
        self._settings = msgspec.structs.replace(settings, path=os.path.realpath(settings.path))
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._is_held = False
        self._view = self._open_view()

    def _open_view(self) -> _View:
        try:
            return _View(self._settings, self._runtime, self._loop)
        except Fault as fault:
            raise public_error(fault) from None

    # --- reading

    def _read(self, call: Callable[[_View], R]) -> R:
        """Return the answer of a call, which runs on one snapshot."""
        for _ in range(_TRIES):
            view = self._current()
            try:
                with view.database.reading():
                    view.session.refresh()
                    answer = call(view)
            except Exception as error:
                if view.database.is_current:
                    raise public_error(error) from None
                continue
            if view.database.is_current:
                return answer
        raise StoreBusyError(self._settings.path, _REOPENED)

    @contextmanager
    def held(self) -> Iterator[ReadOnlyDatabase]:
        """Answer everything in the block from one snapshot, for which the store's log is kept meanwhile.

        Reads in it raise StoreBusyError once a process opens a store that nobody had open.
        """
        database = self._current().database
        try:
            with database.reading():
                self._is_held = True
                try:
                    yield database
                finally:
                    self._is_held = False
        except Fault as fault:
            raise public_error(fault) from None

    def _current(self) -> _View:
        """Return a view of what is at the path now."""
        self.check_loop()
        if self._closed:
            raise StoreClosedError(self._settings.path)
        if not self._view.database.is_inherited and not self._view.database.is_current:
            if self._is_held:
                raise StoreBusyError(self._settings.path, _REOPENED)
            self._view.database.close()
            self._view = self._open_view()
        self._view.door.check()
        return self._view

    async def call(self, request: Request[R]) -> R:
        """Handle one administrative request that only asks. Raises StoreReadOnlyError for all others."""
        self._current()
        check_request(request)
        if type(request) not in QUESTIONS | LOOKS.keys():
            self._refuse()
        # Nothing here waits, so without this, others would wait for a caller that asks again and again.
        await asyncio.sleep(0)
        try:
            if type(request) in LOOKS:
                return await self._look(request)
            return self._read(lambda view: living_answer(view.session, request))
        except ApiError as error:
            error.locate(**names_of(request))
            raise

    async def _look(self, request: Request[R]) -> R:
        for _ in range(_TRIES):
            log = self._read(lambda view: view.session.registry.stream(names_of(request)["stream"]))
            # A store at rest may just have been opened.
            with suppress(StoreBusyError):
                return await look(self.reading, log, request)
        raise StoreBusyError(self._settings.path, _REOPENED)

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages directly from the stream (ADR-31)."""
        await asyncio.sleep(0)

        def look(view: _View) -> DirectReply:
            log = view.session.registry.direct(stream)
            return living_messages(view.direct, log, request, view.session.now())

        return self._read(look)

    async def has_message(self, stream: str, subjects: str) -> bool:
        """Whether a stream stores a message of a subject or filter, though it may be past its age."""
        return self._read(lambda view: view.session.registry.stream(stream).reader.last_row_of(subjects) is not None)

    async def has_seen_all(self, consumer: ConsumerInfo) -> bool:
        """Return True: what is stored and what its consumers know of it are of one moment."""
        return True

    def reading(self, timeout: float) -> SqlSnapshot:
        self._current()
        path, key, vfs = self._settings.path, self._settings.key, self._settings.vfs
        return SqlSnapshot(lambda: ReadOnlyDatabase(path, key=key, vfs=vfs), self._runtime.clock, timeout)

    # --- refused

    def _refuse(self) -> NoReturn:
        self._current()
        raise StoreReadOnlyError(self._settings.path, _OPENED_SO)

    async def _refuse_call(self, *args: Any, **options: Any) -> NoReturn:
        self._refuse()

    def transaction(self, timeout: float) -> NoReturn:
        """Raise StoreReadOnlyError: ``jet.read()`` reads."""
        self._refuse()

    publish: Any = _refuse_call
    publish_batch: Any = _refuse_call
    publish_apart: Any = _refuse_call
    publish_atomic: Any = _refuse_call
    send: Any = _refuse_call
    # A delivery is written down, publishers have to know their subscribers, and a backup takes part in folding the log.
    pull: Any = _refuse_call
    ack: Any = _refuse_call
    settle: Any = _refuse_call
    settle_once: Any = _refuse_call
    settle_many: Any = _refuse_call
    withdraw: Any = _refuse_call
    subscribe: Any = _refuse_call
    backup: Any = _refuse_call
    restore: Any = _refuse_call
    copy_streams: Any = _refuse_call
    rekey: Any = _refuse_call

    def backups(self) -> Backups:
        """Return this store, which refuses both."""
        return self

    def row_reader(self, stream: str, created: str, filters: Sequence[str]) -> RowReader | None:
        """Return None: such a reader locks the file while it reads, which is not promised here."""
        return None

    async def troubles(self) -> StoreTroubles:
        """Return what has damaged the store; it slows nothing down itself."""
        return self._read(lambda view: troubles_of(view.database))

    # --- the rest of the port

    def to_embedded(self, what: str) -> EmbeddedStore:
        return self

    def check_loop(self) -> None:
        self._view.door.check_loop()

    async def begun_deliveries(self, stream: str) -> StreamMarks:
        found = self._read(lambda view: view.session.registry.stream(stream))
        return StreamMarks(BegunMarks(self._settings.path, folder=True), found.id)

    def might_reach(self, subject: str) -> bool:
        """Return False: nothing can be sent."""
        return False

    async def presence(self) -> str:
        """Return an empty name: others need not know of it."""
        return ""

    async def is_gone(self, presence: str) -> bool:
        """Return False: it has no part in the wake-up channel, by which that could be known."""
        return False

    def on_end(self, told: Callable[[Exception], None]) -> None:
        """Do nothing: it holds nothing that could be lost."""

    def clone(self) -> ReadOnlyEngine:
        """Open the same store for the event loop of the calling thread."""
        return ReadOnlyEngine(self._settings, self._runtime)

    async def close(self) -> None:
        if not self._closed:
            self.check_loop()
            self._closed = True
            self._view.database.close()
