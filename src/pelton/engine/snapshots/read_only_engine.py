"""The embedded Backend of a store that was opened only to be read: every answer is a snapshot, every write is refused.

It takes no lock that a writer waits for, and writes nothing. So what time has made obsolete since the last write is
still in the rows: expired messages and inactive consumers are left out of what is read and listed, and still count in
the numbers of messages and bytes of a stream until a process that writes removes them.

A store that no process has open is read as a plain file (``storage/read_only.py``). If a process opens it meanwhile,
what was read may be torn: it is dropped, and read again by the other route.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NoReturn, TypeVar

import msgspec

from pelton.api import (
    AckOp,
    ApiError,
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
    StoreClosedError,
    StoreReadOnlyError,
)
from pelton.api.admission import check_request
from pelton.api.backend import Backups, EmbeddedStore, Leftover, Planning, Progress, RowReader, StoreTroubles, StrPath
from pelton.api.codec import names_of
from pelton.api.keys import Key
from pelton.api.tracing import Tracing
from pelton.engine.door import Door
from pelton.engine.faults import public_error
from pelton.engine.pubsub.bus import Bus
from pelton.engine.session import Session, Surroundings
from pelton.engine.settings import PLANNING, EngineSettings
from pelton.engine.snapshots.living import living_answer, living_messages
from pelton.engine.snapshots.sql_snapshot import SqlSnapshot
from pelton.engine.troubles import troubles_of
from pelton.engine.verbs.table import QUESTIONS
from pelton.runtime import Runtime
from pelton.storage import BegunMarks, Fault, ReadOnlyDatabase, StreamMarks, may_run
from pelton.streams import DirectReads

R = TypeVar("R")
_TRIES: Final = 20
_OPENED_SO: Final = "it was opened with read_only=True"


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
    refuses_late_acks = True
    has_exclusive_subjects = True
    tracing: Tracing | None = None

    def __init__(self, settings: EngineSettings, runtime: Runtime) -> None:
        self._settings = replace(settings, path=os.path.realpath(settings.path))
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._view = self._opened()

    def _opened(self) -> _View:
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
        raise StoreBusyError(self._settings.path, "it is opened and closed again and again while it is read")

    def _current(self) -> _View:
        """Return a view of what is at the path now."""
        self.check_loop()
        if self._closed:
            raise StoreClosedError(self._settings.path)
        if not self._view.database.is_inherited and not self._view.database.is_current:
            self._view.database.close()
            self._view = self._opened()
        self._view.door.check()
        return self._view

    async def call(self, request: Request[R]) -> R:
        """Handle one administrative request that only asks. Raises StoreReadOnlyError for all others."""
        self._current()
        check_request(request)
        if type(request) not in QUESTIONS:
            self._refuse()
        # Nothing here waits, so without this, others would wait for a caller that asks again and again.
        await asyncio.sleep(0)
        try:
            return self._read(lambda view: living_answer(view.session, request))
        except ApiError as error:
            error.locate(**names_of(request))
            raise

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages directly from the stream (ADR-31)."""
        await asyncio.sleep(0)

        def look(view: _View) -> DirectReply:
            log = view.session.registry.direct(stream)
            return living_messages(view.direct, log, request, view.session.now())

        return self._read(look)

    def reading(self, timeout: float) -> SqlSnapshot:
        """Return SQL on one snapshot, open for at most ``timeout`` seconds."""
        self._current()
        settings = self._settings
        opened = lambda: ReadOnlyDatabase(settings.path, key=settings.key, vfs=settings.vfs)  # noqa: E731
        return SqlSnapshot(opened, self._runtime.clock, timeout)

    # --- refused

    def _refuse(self) -> NoReturn:
        self._current()
        raise StoreReadOnlyError(self._settings.path, _OPENED_SO)

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        """Raise StoreReadOnlyError."""
        self._refuse()

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Raise StoreReadOnlyError."""
        self._refuse()

    async def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        """Raise StoreReadOnlyError."""
        self._refuse()

    async def publish_atomic(self, messages: Sequence[Outgoing]) -> PubAck:
        """Raise StoreReadOnlyError."""
        self._refuse()

    async def pull(
        self, stream: str, consumer: str, request: PullRequest, leftover: Leftover | None = None
    ) -> list[Delivered]:
        """Raise StoreReadOnlyError: a delivery is written down."""
        self._refuse()

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Raise StoreReadOnlyError."""
        self._refuse()

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        """Raise StoreReadOnlyError."""
        self._refuse()

    async def settle_many(self, endings: Sequence[Settled], stream: str, consumer: str) -> list[PeltonError | None]:
        """Raise StoreReadOnlyError."""
        self._refuse()

    def transaction(self, timeout: float) -> NoReturn:
        """Raise StoreReadOnlyError: ``jet.read()`` reads."""
        self._refuse()

    async def subscribe(self, subject: str, queue: str = "") -> NoReturn:
        """Raise StoreReadOnlyError: publishers have to know their subscribers."""
        self._refuse()

    async def send(self, subject: str, data: bytes = b"", headers: bytes | None = None, reply: str = "") -> None:
        """Raise StoreReadOnlyError."""
        self._refuse()

    def backups(self) -> Backups:
        """Return this store, which refuses both."""
        return self

    async def backup(self, target: StrPath, streams: Sequence[str] | None, progress: Progress | None) -> None:
        """Raise StoreReadOnlyError: a backup takes part in folding the log."""
        self._refuse()

    async def restore(
        self,
        source: StrPath,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> list[str]:
        """Raise StoreReadOnlyError."""
        self._refuse()

    def row_reader(self, stream: str, created: str, filters: Sequence[str]) -> RowReader | None:
        """Return None: such a reader locks the file while it reads, which is not promised here."""
        return None

    async def troubles(self) -> StoreTroubles:
        """Return what has damaged the store; it slows nothing down itself."""
        return self._read(lambda view: troubles_of(view.database))

    async def rekey(self, key: Key) -> None:
        """Raise StoreReadOnlyError."""
        self._refuse()

    # --- the rest of the port

    def embedded(self, what: str) -> EmbeddedStore:
        """Return this store, which is a file of its own."""
        return self

    def check_loop(self) -> None:
        """Raise WrongLoopError on another event loop."""
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
        """Close the connection. Idempotent."""
        if not self._closed:
            self.check_loop()
            self._closed = True
            self._view.database.close()
