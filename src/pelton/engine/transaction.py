"""One transaction that its user holds open, from its block's beginning to its end.

The states, and what moves it from one to the next::

    entered --first operation--> open      the writer is waited for and taken, the time begins to run
    open --the block ends--> committed     durable before the block is left
    open --the block raises--> rolled back
    open --its time is over, the store closes, an operation fails half way--> lost
    lost --the block ends--> rolled back   and the block raises what happened
    entered --the block ends--> over       nothing was asked for, nothing done

An operation runs from its beginning to its end without letting others run. One that is refused has changed nothing, so
that the block may go on; any other error leaves nobody knows what, so the transaction is lost at once, and the writer
free. Blocks within the block are savepoints, left in the order in which they nest. A transaction belongs to the task
that entered it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from pelton.api import (
    AckOp,
    ConfigError,
    Outgoing,
    PeltonError,
    PubAck,
    SqlConstraintError,
    SqlError,
    SqlForbiddenError,
    TransactionError,
    TransactionTimeoutError,
)
from pelton.engine.faults import public_error
from pelton.engine.room import Mark, Room
from pelton.runtime import Clock, Timer, owner
from pelton.storage import PlacedSums, Refusal, as_fault, placed_sums, translated
from pelton.storage.user_sql import RefusalKind
from pelton.streams import Packed, is_member

T = TypeVar("T")
_SQL_ERRORS: Final[dict[RefusalKind, type[SqlError]]] = {
    "forbidden": SqlForbiddenError,
    "constraint": SqlConstraintError,
    "mistake": SqlError,
}


class Writers(Protocol):
    """Who gives the writer out."""

    clock: Clock

    def check(self) -> None: ...
    def join(self, who: Hashable, transaction: Transaction) -> None: ...
    def leave(self, who: Hashable) -> None: ...
    async def take(self, transaction: Transaction) -> Room: ...
    def prepare_commit(self, room: Room) -> None: ...
    def committed(self, room: Room) -> asyncio.Future[Any]: ...
    def rolled_back(self) -> None: ...


class Transaction:
    """A transaction of one owner; ``timeout`` (seconds) bounds how long it holds the writer."""

    def __init__(self, writers: Writers, timeout: float) -> None:
        self._writers = writers
        self._timeout = timeout
        self._owner: Hashable | None = None
        self._marks: list[Mark | None] = []
        self._room: Room | None = None
        self._loss: PeltonError | None = None
        self._timer: Timer | None = None
        self._deadline = 0.0

    # --- the block

    async def enter(self) -> int:
        """Begin the block, or one within it; return its level."""
        if self._owner is None:
            self._writers.check()
            self._owner = owner()
            self._writers.join(self._owner, self)
            self._marks.append(None)
            return 0
        room = await self._opened()
        self._marks.append(self._done(room.mark))
        return len(self._marks) - 1

    async def leave(self, level: int, *, keep: bool) -> None:
        """End the block of a level."""
        self._check_owner()
        if level != len(self._marks) - 1:
            self.abandon(TransactionError("it was rolled back, because a block within it was still open at its end"))
            del self._marks[level + 1 :]
        mark = self._marks.pop()
        if mark is not None:
            self._leave_inner(mark, keep=keep)
            return
        self._writers.leave(self._owner)
        if not keep:
            self._end()
            return
        if self._room is not None and self._loss is None and self.is_late:
            self._expire()
        if self._loss is not None:
            raise self._loss
        if self._room is not None:
            await self._commit(self._room)

    def _leave_inner(self, mark: Mark, *, keep: bool) -> None:
        room = self._room
        if self._loss is not None or room is None:
            if keep and self._loss is not None:
                raise self._loss
            return
        self._done(lambda: room.keep(mark) if keep else room.go_back(mark))

    async def _commit(self, room: Room) -> None:
        try:
            with translated(room.db.path):
                room.flush()
                self._writers.prepare_commit(room)
                room.writer.commit()
        except Refusal as refusal:
            self._end()
            raise TransactionError(f"it was rolled back, because its commit was refused: {refusal.reason}") from refusal
        except BaseException as error:
            self._end()
            if isinstance(error, Exception) and (public := public_error(error)) is not error:
                raise public from error
            raise
        self._stop_clock()
        self._room = None
        # It is committed: cancelling the wait for the disk does not undo it.
        await asyncio.shield(self._writers.committed(room))

    def _end(self) -> None:
        """Undo all, and give the writer back."""
        room, self._room = self._room, None
        self._stop_clock()
        if room is not None:
            try:
                room.roll_back()
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
        """Lose it: it is rolled back now, and its block raises ``loss``."""
        if self._loss is None:
            self._loss = loss
            self._end()

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- operations

    async def publish(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store all messages, or none."""
        if any(is_member(block) for _, _, block in messages):
            raise ConfigError("headers Nats-Batch-*: a transaction is stored as one without them; leave them out")
        room = await self._opened()
        return self._done(lambda: room.publish(messages))

    async def load(self, messages: Packed | Sequence[Outgoing], sums: PlacedSums = placed_sums) -> None:
        """Store many messages, or none, and hold none of them in memory.

        The log is folded into the file when the store is closed, or when others write: not by the commit.
        """
        room = await self._opened()
        room.db.fold_on_commit(False)
        if isinstance(messages, Packed):
            self._done(lambda: room.load(messages, sums))
            return
        self._done(lambda: room.publish(messages))
        self._done(room.flush)

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries; one entry an ack: None, or why it had no effect."""
        room = await self._opened()
        return self._done(lambda: room.ack(stream, consumer, acks)) if acks else []

    async def sql(self, statement: str, bindings: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a user's SQL."""
        room = await self._opened()
        try:
            return self._done(lambda: room.sql(statement, bindings))
        except Refusal as refusal:
            raise _SQL_ERRORS[refusal.kind](refusal.reason, str(statement)) from refusal

    @property
    def is_open(self) -> bool:
        """Whether it holds the writer."""
        return self._room is not None

    async def look(self, call: Callable[[Room], T]) -> T:
        """Read the store as the transaction has made it."""
        room = await self._opened()
        self._done(room.flush)
        return self._done(lambda: call(room))

    # --- one operation

    async def _opened(self) -> Room:
        """Return the room of the open transaction, opening it first if this is the first operation."""
        self._check()
        if self._room is None:
            room = await self._writers.take(self)
            self._room = room
            self._deadline = self._writers.clock.monotonic() + self._timeout
            self._timer = self._writers.clock.call_later(self._timeout, self._expire)
            self._done(room.began)
        return self._room

    def _check(self) -> None:
        self._check_owner()
        if self._room is not None and self.is_late:
            self._expire()
        if self._loss is not None:
            raise self._loss
        self._writers.check()

    def _check_owner(self) -> None:
        if not self._marks or self._owner is None:
            raise TransactionError("its block has not begun or is over: use it inside 'async with'")
        if owner() != self._owner:
            # After a fork nobody is who he was.
            self._writers.check()
            raise TransactionError(
                "it belongs to the task that opened it: await its operations there, one after another "
                "(publish_batch stores many messages at once)"
            )

    def _done(self, call: Callable[[], T]) -> T:
        """Do an operation; what is neither done nor refused takes the transaction along."""
        room = self._room
        assert room is not None
        try:
            return call()
        except BaseException as error:
            if room.writer.is_open and isinstance(error, (PeltonError, Refusal)):
                raise
            told = self._lost(error, room.db.path)
            if told is error:
                raise
            raise told from error

    def _lost(self, error: BaseException, path: str) -> BaseException:
        """Give up after an error, and return what the block is told."""
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
