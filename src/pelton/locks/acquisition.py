"""One attempt to acquire a lock: at once, or by waiting in line.

Design: if no one waits and a slot is free, it takes one read and one write; waiters in processes that have died do not
count. Otherwise a ticket is stored, slots and tickets are watched, and :mod:`pelton.locks.wait_queue` decides after
every update, and at the times that it names, what to do. Nothing is polled: a waiter sleeps.

A write without an answer may have been stored: then the key is read in the background, and released.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec

from pelton.api import ConfigError, NotFoundError, PeltonError, StoreError, WrongLastSequenceError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet.registers import Follower
from pelton.locks.keeper import HeldLease, counted_from, moment
from pelton.locks.lock_table import Holding, LockRow, LockSpec, LockTable, Ticket, encode, holding_of
from pelton.locks.wait_queue import PATIENCE_S, AskPresence, AskSlot, TakeSlot, Wait, WaitQueue
from pelton.runtime import Runtime, Signal, within

_log: Final = logging.getLogger("pelton.locks")
# How long a ticket lives, and how old it is when it is renewed.
_TICKET_S: Final = 10
_RENEW_S: Final = 3.0
_AGAIN_S: Final = 0.2
# How long a waiter that gives up waits for its ticket to be removed.
_LEAVE_S: Final = 0.2


class Got(NamedTuple):
    """A slot that was taken, and its renewal."""

    lease: HeldLease
    holding: Holding


class Acquisition:
    """One caller's attempt to get a slot.

    ``who`` describes the caller to others; ``waiting`` are the ids of all waiting acquisitions of this open store.
    """

    def __init__(self, table: LockTable, runtime: Runtime, spec: LockSpec, who: str, waiting: set[str]) -> None:
        self._table = table
        self._runtime = runtime
        self._clock = runtime.clock
        self._spec = spec
        self._who = who
        self._waiting = waiting
        self._me = runtime.ids.new()
        self._number = 0
        self._ticket_due = 0.0
        self._shown = 0
        self._news = Signal()
        self._is_complete = False
        self._failure: Exception | None = None

    async def at_once(self) -> Got | None:
        """Take a slot if one is free and no one waits for it. Raises ConfigError."""
        rows = await self._table.read(self._spec.filters)
        queue = self._queue()
        for row in rows:
            queue.note(row, self._clock.boottime())
        self._check(queue)
        while isinstance(decision := queue.decide(self._me, self._clock.boottime(), glance=0.0), AskPresence):
            await self._ask(queue, decision)
        return await self._take(queue, decision) if isinstance(decision, TakeSlot) else None

    async def in_line(self) -> Got:
        """Wait for a slot, for ever."""
        queue = self._queue()
        watching = self._runtime.spawn(self._watch(queue), "pelton-lock-watch")
        self._waiting.add(self._me)
        try:
            await self._show(queue)
            while True:
                got = await self._turn(queue)
                if got is not None:
                    self._runtime.spawn(self._leave(), "pelton-lock-leave")
                    return got
        except BaseException:
            # Not in the background: if the program is interrupted, the event loop may end with this task.
            with suppress(TimeoutError):
                await within(self._clock, _LEAVE_S, self._leave())
            raise
        finally:
            if not watching.cancelling():
                # Cancelling it a second time would interrupt its cleanup.
                watching.cancel()
            self._waiting.discard(self._me)

    async def _turn(self, queue: WaitQueue) -> Got | None:
        """Take the next step, or wait until there is one."""
        seen = self._news.generation
        if self._failure is not None:
            raise self._failure
        if self._clock.boottime() >= self._ticket_due:
            # A late renewal costs the place in line, no more.
            try:
                await self._show(queue)
            except FINAL_ERRORS:
                raise
            except StoreError as error:
                _log.info("%s: the ticket could not be renewed: %s", self._spec, error, extra={"lock": str(self._spec)})
        self._check(queue)
        decision = queue.decide(self._me, self._clock.boottime()) if self._is_complete else Wait(self._ticket_due)
        if isinstance(decision, TakeSlot):
            return await self._take(queue, decision)
        if isinstance(decision, AskSlot):
            await self._look(queue, decision.key)
        elif isinstance(decision, AskPresence):
            await self._ask(queue, decision)
        else:
            await self._sleep(min(decision.until, self._ticket_due), seen)
        return None

    async def _sleep(self, until: float, seen: int) -> None:
        await self._news.wait_at_most(self._clock, until - self._clock.boottime(), seen)

    def _queue(self) -> WaitQueue:
        return WaitQueue(self._spec.keys, _TICKET_S, self._clock.boottime())

    def _check(self, queue: WaitQueue) -> None:
        other = queue.disagreement(self._spec.slots)
        if other:
            raise ConfigError(f"{self._spec} is held by a caller that uses {other} slots: give slots={other}")

    async def _watch(self, queue: WaitQueue) -> None:
        rows = partial(self._table.watch, self._spec.filters)
        try:
            await Follower(rows, partial(self._saw, queue), self._lost).follow()
        except Exception as error:  # raised to the waiter
            self._failure = error
            self._news.notify()

    async def _saw(self, queue: WaitQueue, row: LockRow | None) -> None:
        if row is None:
            self._is_complete = True
        else:
            queue.note(row, self._clock.boottime())
            if row.key == self._spec.ticket(self._me) and row.data is None and row.revision > self._shown > 0:
                # Another waiter has passed us and removed our ticket: store it again.
                self._ticket_due = 0.0
        self._news.notify()

    async def _lost(self, error: Exception) -> None:
        # If the bucket was removed, it is created again, and watched again.
        if not isinstance(error, NotFoundError):
            raise error
        await self._clock.sleep(_AGAIN_S)

    async def _show(self, queue: WaitQueue) -> None:
        """Store the ticket, for the first time or again."""
        now = self._clock.boottime()
        self._ticket_due = now + _RENEW_S
        ticket = Ticket(number=self._number, who=self._who, presence=await self._table.presence())
        key, data = self._spec.ticket(self._me), encode(ticket)
        self._shown = revision = await self._table.write(key, data, None, _TICKET_S)
        self._number = self._number or revision
        queue.note(LockRow(key, revision, data), now)

    async def _leave(self) -> None:
        # If the ticket stays, others pass it.
        with suppress(PeltonError):
            await self._table.remove(self._spec.ticket(self._me))

    async def _ask(self, queue: WaitQueue, ask: AskPresence) -> None:
        """Find out whether a waiter before us has died; then remove its ticket, for all waiters."""
        is_gone = await self._is_gone(ask)
        queue.answered(ask, self._clock.boottime(), is_gone=is_gone)
        if is_gone:
            self._runtime.spawn(self._cross_off(ask.owner, ask.revision), "pelton-lock-cross-off")

    async def _is_gone(self, ask: AskPresence) -> bool:
        if ask.presence == await self._table.presence():
            # A waiter of this process, or of an earlier process with the same presence name.
            return ask.owner not in self._waiting
        with suppress(PeltonError, TimeoutError):
            return await within(self._clock, PATIENCE_S, self._table.is_gone(ask.presence))
        return False

    async def _cross_off(self, owner: str, revision: int) -> None:
        # A ticket that was renewed in the meantime stays.
        with suppress(PeltonError):
            await self._table.remove(self._spec.ticket(owner), revision)

    async def _look(self, queue: WaitQueue, key: str) -> None:
        row = await self._table.ask(key)
        if row is None:
            queue.absent(key, self._clock.boottime())
        else:
            queue.note(row, self._clock.boottime())

    async def _take(self, queue: WaitQueue, take: TakeSlot) -> Got | None:
        asked = moment(self._clock)
        holding = Holding(
            owner=self._me, ttl=self._spec.ttl, slots=self._spec.slots, who=self._who, since=self._clock.now()
        )
        try:
            token = await self._table.write(take.key, encode(holding), take.revision, self._spec.ttl)
        except WrongLastSequenceError as error:
            queue.refused(take.key, error.seq, self._clock.boottime())
            return None
        except BaseException:
            self._runtime.spawn(self._undo(take.key), "pelton-lock-undo")
            raise
        for ticket in take.passes:
            self._runtime.spawn(self._cross_off(ticket.owner, ticket.revision), "pelton-lock-cross-off")
        counted = counted_from(asked, moment(self._clock))
        lease = HeldLease(take.key, token, self._spec.ttl, counted, steady=self._table.has_steady_time)
        return Got(lease, msgspec.structs.replace(holding, token=token))

    async def _undo(self, key: str) -> None:
        # If it cannot be removed, it expires.
        with suppress(PeltonError):
            row = await self._table.ask(key)
            holder = None if row is None else holding_of(row.data)
            if row is not None and holder is not None and holder.owner == self._me:
                await self._table.remove(key, row.revision)
