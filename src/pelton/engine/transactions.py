"""The queue for the writer: the transactions that users of one open store hold open.

Design: a transaction takes the store's writer at its first operation, on a session of its own, and keeps it until its
block ends or it times out. Each process has one open at a time; the others queue in order of arrival. Until it ends,
this process's other work waits in the committer, which runs it as soon as the writer is free, before the next
transaction: neither starves the other. To other processes it is a writer like any other.

Reads continue: readers see the store as it was. Only a memory store has no snapshots, so there readers wait.

A commit is synced to disk with the committer's next sync, together with everything else committed by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

from pelton.api import StoreBusyError, StoreClosedError
from pelton.engine.host import Host, public_error
from pelton.engine.submissions import CallWork
from pelton.engine.transaction import OpenTransaction, Operations
from pelton.runtime import Clock, Signal, owner, within
from pelton.storage import Committer, Database, Fault, MemoryChannel


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
        self._entered: dict[Hashable, OpenTransaction] = {}
        host.door.entered = self._entered
        self._holder: OpenTransaction | None = None
        self._operations: Operations | None = None
        self._closed = False

    # --- for the engine

    def of_caller(self) -> OpenTransaction | None:
        """Return the transaction that the caller is in, or None."""
        return self._entered.get(owner()) if self._entered else None

    async def ended(self) -> None:
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

    def join(self, who: Hashable, transaction: OpenTransaction) -> None:
        """Register a transaction that ``who`` has entered."""
        self._entered[who] = transaction

    def leave(self, who: Hashable) -> None:
        """Remove the transaction that ``who`` has left."""
        self._entered.pop(who, None)

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

    def committed(self, operations: Operations) -> asyncio.Future[Any]:
        """Release the writer; the future is done when the commit is as durable as the store's sync mode promises."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._give_back()
        self._host.publish_committed(operations.session.committed())
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
