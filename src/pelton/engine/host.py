"""The interface of the engine for its parts, and what it does for all of them in the background.

**The checks before every operation: the store can be used, and this is the event loop that it was opened on.** Before a
write, also that its caller is in no transaction of its own, for whose end the write would wait.

**Copies what a transaction left of a source's messages, until nothing is left.** Published messages do not depend on
it: they are sourced in the transaction that stores them. But a new source of a large stream is copied in many
transactions, and the process that began may have died: so every process checks when it opens the store, and does its
part while it has it open.

**Checks the store and the clock once a second, for changes that wake no opener.** An opener that commits, or changes
the key, wakes the others. But nothing wakes them when the file is removed or a sync fails in another process, and an
opener without a wake-up socket cannot wake others. A fault that ends the connection is reported by
:class:`pelton.storage.ConnectionEnd`.

**One timer for the messages that time makes: markers and scheduled messages.** Correctness does not depend on it: every
read or write of a stream applies what is due first. The timer makes due messages appear while no operation touches
their stream, and wakes what waits for them in every process. Each process with the store open keeps one timer, for the
nearest deadline it knows; the process that comes second finds nothing due.

A recorded deadline may be too early: then the timer fires for nothing and is set again. When it may be too late
(another process has written, a transaction was rolled back) deadlines are read again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Final, NoReturn, Protocol, TypeVar

from pelton.api import (
    Delivered,
    NotAStoreError,
    PeltonError,
    SqlConstraintError,
    SqlError,
    SqlForbiddenError,
    StoreBusyError,
    StoreClosedError,
    StoreDescriptorsError,
    StoreError,
    StoreFailedError,
    StoreForkedError,
    StoreFullError,
    StoreGoneError,
    StoreKeyError,
    StoreReadOnlyError,
    StoreSettingsError,
    StoreStandbyError,
    StoreVersionError,
    TransactionError,
    WrongLoopError,
    api_error,
)
from pelton.api.times import NEVER
from pelton.engine.session import Committed, Session
from pelton.runtime import Clock, Home, Timer, owner, running_loop
from pelton.storage import SCHEMA_VERSION, Database, Fault, FaultKind, Refusal
from pelton.storage.damage import note_damage
from pelton.storage.user_sql import RefusalKind

_ERRORS: Final[dict[FaultKind, type[StoreError]]] = {
    "busy": StoreBusyError,
    "foreign": NotAStoreError,
    "key": StoreKeyError,
    "read_only": StoreReadOnlyError,
    "full": StoreFullError,
    "descriptors": StoreDescriptorsError,
    "closed": StoreClosedError,
    "forked": StoreForkedError,
    "failed": StoreFailedError,
    "gone": StoreGoneError,
    "settings": StoreSettingsError,
    "standby": StoreStandbyError,
    "corrupt": StoreError,
    "io": StoreError,
}

_SQL_ERRORS: Final[dict[RefusalKind, type[SqlError]]] = {
    "forbidden": SqlForbiddenError,
    "constraint": SqlConstraintError,
    "mistake": SqlError,
}


class UndoneError(Exception):
    """What a caller asked for is refused after it had begun: its transaction is rolled back, and it gets ``error``."""

    def __init__(self, error: PeltonError) -> None:
        super().__init__(str(error))
        self.error = error


def sql_error(refusal: Refusal, statement: str) -> SqlError:
    return _SQL_ERRORS[refusal.kind](refusal.reason, str(statement))


def public_error(error: Exception) -> Exception:
    """Return the public error for a storage fault; anything else unchanged."""
    if isinstance(error, UndoneError):
        return error.error
    if not isinstance(error, Fault):
        return error
    if error.kind == "newer":
        found = re.search(r"schema (\d+)", error.detail)
        return StoreVersionError(error.path, int(found[1]) if found else 0, SCHEMA_VERSION)
    if error.kind == "too_large":
        # A message of more than a gigabyte, which SQLite cannot store.
        return api_error("JSStreamMessageExceedsMaximumErr")
    if error.kind == "corrupt":
        # Every find comes through here.
        note_damage(error.path, f"SQLite: {error.detail}")
    return _ERRORS[error.kind](error.path, error.detail)


class Door:
    """Refuses calls from another event loop than ``loop``, and calls to a store that is closed, failed or inherited."""

    __slots__ = ("_db", "_home", "_loop", "entered")

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._db = database
        self._loop = loop
        self._home = Home(loop)
        # The callers that are in the block of a transaction.
        self.entered: Collection[Hashable] = ()

    def check(self) -> None:
        """Raise StoreClosedError, StoreFailedError, StoreForkedError, WrongLoopError."""
        try:
            self._db.check()
        except Fault as fault:
            raise public_error(fault) from None
        # Nearly all calls come from the store's own loop: there, this is the only check.
        if running_loop() is not self._loop and self._home.is_elsewhere:
            self._refuse()

    def check_outside(self) -> None:
        """Raise TransactionError if the caller would wait for its own transaction."""
        if self.entered and owner() in self.entered:
            raise TransactionError(
                "inside its block only operations of the transaction are possible (tx.publish, tx.ack, tx.sql, "
                "tx.bucket, tx.enqueue); all other writes wait for its end, so make them before or after the block"
            )

    def check_loop(self) -> None:
        """Raise WrongLoopError on another event loop; a closed or inherited store raises its own error later."""
        # Every step of an iteration passes here.
        if running_loop() is self._loop:
            return
        if self._home.is_elsewhere and not (self._db.is_inherited or self._db.is_closed):
            self._refuse()

    def check_place(self) -> None:
        """Raise StoreGoneError if the open store was removed, moved or replaced, or the error that ended it."""
        try:
            self._db.check_sound()
        except Fault as fault:
            raise public_error(fault) from None

    def _refuse(self) -> NoReturn:
        raise WrongLoopError(self._db.path, "that one has ended" if self._home.is_over else "")


R = TypeVar("R")


class Host(Protocol):
    """``session`` is that of shared transactions, and ``door`` has the checks before each operation. It ``is_at_rest``
    if nothing is staged, and its caller is in no transaction.

    ``stage`` runs a call in the next transaction, ``stage_quietly`` one whose result nobody waits for, and ``read`` one
    in a snapshot. ``second_session`` opens another session, on
    a connection of its own, for transactions that users hold open.
    """

    session: Session
    door: Door

    def stage(self, call: Callable[[], Any], *, durable: bool, at_once: bool = False) -> asyncio.Future[Any]: ...
    def stage_quietly(self, call: Callable[[], Any], *, durable: bool = False) -> None: ...
    def read(self, call: Callable[[], R]) -> R: ...
    async def readable(self) -> None: ...
    @property
    def is_at_rest(self) -> bool: ...
    def hand_back(self, stream: str, consumer: str, delivered: list[Delivered]) -> None: ...
    def woken(self) -> None: ...
    def second_session(self) -> Session: ...
    def publish_committed(self, committed: Committed) -> None: ...


_MORE: Final = object()


async def stage_fresh(host: Host, stream: str, call: Callable[[], Any], *, durable: bool) -> Any:
    """Run a call in a transaction in which nothing of a stream has expired: that goes before, if it is much in portions
    between which others can write.
    """

    def attempt() -> Any:
        registry = host.session.registry
        if stream in registry.streams and registry.stream(stream).advance_some(host.session.now()):
            return _MORE
        return call()

    while (found := await host.stage(attempt, durable=durable)) is _MORE:
        pass
    return found


class IdleBatches:
    """Abandons open batches that have waited too long; every transaction notifies it when it ends."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._staging = host.session.staging
        self._clock = clock
        self._due: int | None = None
        self._timer: Timer | None = None

    def on_commit(self) -> None:
        """Set the timer again after a transaction, if the nearest deadline changed."""
        due = self._staging.due
        if due == self._due:
            return
        self.cancel()
        if due is not None:
            self._due = due
            self._timer = self._clock.call_later(max(due - self._host.session.now(), 0) / 1e9, self._rings)

    def cancel(self) -> None:
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._due = self._timer = None
        # If it fails: the next message of any batch sweeps as well.
        self._host.stage_quietly(lambda: self._staging.sweep(self._host.session.now()))


_CATCH_UP_AGAIN_S: Final = 0.5
_OTHERS_S: Final = 0.1
# How long a check waits for a consumer that is paused or replays.
_SHORTEST_S: Final = 0.02
_LONGEST_S: Final = 60.0


class SourceCatchUp:
    """The catch-up of one open store."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._source_graph = host.session.registry.source_graph
        self._timer: Timer | None = None
        self._at = 0.0
        self._running = False
        self._closed = False
        self.look_again()

    def on_commit(self, committed: Committed) -> None:
        """Continue where a transaction has left messages, now or when a consumer delivers them."""
        if committed.has_backlog:
            self._go_on()
        elif committed.has_waiting:
            self.look_again()

    def woken(self) -> None:
        """Check soon: another process has written, and continues by itself unless it dies."""
        if self._source_graph.has_links:
            self.look_again(_OTHERS_S)

    def look_again(self, delay: float = 0.0) -> None:
        """Schedule a check, because another process may have left messages."""
        at = self._clock.monotonic() + delay
        if self._closed or (self._timer is not None and self._at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = self._clock.call_later(delay, self._look), at

    def _look(self) -> None:
        self._timer = None
        if self._closed or self._running:
            return
        try:
            is_behind, due = self._host.read(self._outlook)
            if is_behind:
                self._go_on()
            elif due != NEVER:
                self.look_again(min(max((due - self._host.session.now()) / 1e9, _SHORTEST_S), _LONGEST_S))
        except PeltonError:
            # Operations on the store raise this error; here, checking again is enough.
            self.look_again(_CATCH_UP_AGAIN_S)

    def _outlook(self) -> tuple[bool, int]:
        return self._source_graph.is_behind(), self._source_graph.next_due()

    def _go_on(self) -> None:
        if self._running or self._closed:
            return
        try:
            done = self._host.stage(self._source_graph.catch_up, durable=True)
        except PeltonError:
            self.look_again(_CATCH_UP_AGAIN_S)
            return
        self._running = True
        done.add_done_callback(self._on_caught_up)

    def _on_caught_up(self, done: asyncio.Future[None]) -> None:
        self._running = False
        if done.cancelled() or done.exception() is not None:
            self.look_again(_CATCH_UP_AGAIN_S)
        else:
            self.look_again()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


EVERY_S: Final = 1.0


class StoreWatch:
    """The checks of one open store, on its event loop; its clock notices jumps when it is read."""

    def __init__(self, host: Host, database: Database) -> None:
        self._loop = asyncio.get_running_loop()
        self._host = host
        self._db = database
        self._seen = -1
        # The event loop's real time and not the injected clock: it watches the outside world.
        self._timer = self._loop.call_later(EVERY_S, self._look)

    def _look(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._look)
        self._host.session.now()
        try:
            self._db.check_sound()
            with self._db.reading():
                seen = self._db.seen()
        except Fault:
            # Operations on the store raise it, if it persists.
            return
        if seen != self._seen:
            self._seen = seen
            self._host.woken()

    def close(self) -> None:
        """Stop checking."""
        self._timer.cancel()


# No wait is longer, because the wall clock may be set during it; and no wait is shorter, so that many deadlines close
# together share a transaction.
_RETRY_S: Final = 1.0


class Timekeeper:
    """The timer of one open store."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._registry = host.session.registry
        self._dues: dict[str, int] = {}
        self._timer: Timer | None = None
        self._set_for = NEVER
        self._looking: Timer | None = None
        self._closed = False
        # Deadlines may have passed while no process had the store open.
        self.look_again()

    # --- inside a transaction

    def _note_all(self) -> None:
        # A roll-up is due at once, also in streams without deadlines.
        rolling = {name: 0 for name, due in self._dues.items() if due == 0 and name in self._registry.streams}
        self._dues = rolling | self._registry.deadlines()

    def _advance_all(self) -> None:
        now = self._host.session.now()
        self._note_all()
        for stream, due in self._dues.items():
            if due <= now:
                # If there is more, its deadline is noted again.
                self._dues[stream] = NEVER
                self._registry.stream(stream).advance_some(now)

    # --- between transactions

    def on_commit(self, deadlines: Mapping[str, int]) -> None:
        """Record the deadlines of the streams that a transaction has used."""
        self._dues.update(deadlines)
        if self._dues:
            self._set(min(self._dues.values()))

    def next_due(self) -> int:
        """Return when time next makes a message, or an earlier time; ``NEVER`` if it makes none."""
        self._host.read(self._note_all)
        return min(self._dues.values(), default=NEVER)

    def look_again(self) -> None:
        """Schedule reading all deadlines, because recorded ones may no longer hold."""
        if self._looking is None and not self._closed:
            self._looking = self._clock.call_later(_SHORTEST_S, self._look_now)

    def _look_now(self) -> None:
        self._looking = None
        if self._closed:
            return
        try:
            due = self.next_due()
        except PeltonError:
            # Operations on the store raise this error; here, checking again is enough.
            self._retry()
            return
        self._set(due)

    def _act(self) -> None:
        try:
            done = self._host.stage(self._advance_all, durable=True)
        except PeltonError:
            self._retry()
        else:
            done.add_done_callback(lambda done: self._retry() if done.exception() else None)

    def _retry(self) -> None:
        if not self._closed:
            self._cancel()
            self._set_for = self._host.session.now()
            self._timer = self._clock.call_later(_RETRY_S, self._fire)

    def _set(self, due: int) -> None:
        if self._closed or (due == self._set_for and self._timer is not None):
            return
        self._cancel()
        self._set_for = due
        if due != NEVER:
            delay = (due - self._host.session.now()) / 1e9
            self._timer = self._clock.call_later(min(max(delay, _SHORTEST_S), _LONGEST_S), self._fire)

    def _fire(self) -> None:
        self._timer = None
        due, self._set_for = self._set_for, NEVER
        if self._closed:
            return
        if due <= self._host.session.now():
            self._act()
        else:
            self._set(due)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop the timer."""
        self._closed = True
        self._cancel()
        if self._looking is not None:
            self._looking.cancel()


class Background:
    """The background timers of one open store."""

    def __init__(self, host: Host, clock: Clock, database: Database) -> None:
        self.timekeeper: Timekeeper = Timekeeper(host, clock)
        self._source_catch_up = SourceCatchUp(host, clock)
        self._idle_batches = IdleBatches(host, clock)
        self._store_watch = None if database.memory else StoreWatch(host, database)

    def on_commit(self, committed: Committed) -> None:
        """Schedule the work that a transaction of any session has left."""
        if committed.deadlines:
            self.timekeeper.on_commit(committed.deadlines)
        self._source_catch_up.on_commit(committed)
        if committed.has_batches:
            self._idle_batches.on_commit()

    def rolled_back(self) -> None:
        """Read deadlines again: recorded ones may no longer hold."""
        self.timekeeper.look_again()

    def woken(self) -> None:
        """Check for due work: another process has written."""
        self.timekeeper.look_again()
        self._source_catch_up.woken()

    def close(self) -> None:
        """Stop all timers."""
        if self._store_watch is not None:
            self._store_watch.close()
        self._idle_batches.cancel()
        self.timekeeper.close()
        self._source_catch_up.close()
