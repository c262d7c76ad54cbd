"""One attempt to acquire a lock: at once, or by waiting in line.

Design: if no one waits and a slot is free, it takes one read and one write; waiters in processes that have died do not
count. Otherwise a ticket is stored, slots and tickets are watched, and :class:`WaitQueue` decides after
every update, and at the times that it names, what to do. Nothing is polled: a waiter sleeps.

A write without an answer may have been stored: then the key is read in the background, and released.

**Which slot a waiter may take, from its own view.** A lock is one slot, a semaphore several: keys that
hold their holder. A waiter stores a ticket, its own key with a time to live that it renews, and its place in line is
the order in which tickets were first stored. When a slot is free, the first in line takes it. Those behind do not rely
on the first one to be alive. If a free slot is still free a moment later, they ask whether the first one is still
there: one whose process has died is removed at once. One that lives, or whose state is unknown, is passed after
``PATIENCE_S``, and so on; its ticket is removed then, so that it delays others only once. If it is alive after all it
stores its ticket again, under its old number. In the end only the store decides: a slot is taken by a write that
expects the last revision.

A slot is free when its key holds nothing, or a marker: released, or expired by the store's clock. It is also free when
its holder was observed not to renew it for a whole time to live, and a second more in which the store should have
expired it, by *this* waiter's own clock: then its holder has stopped (see :mod:`pelton.locks.keeper`), whatever
the store's clock does, and the expected revision makes sure of it.

A marker that comes too early is not trusted. A server that expires a key writes the marker a moment later, and
overwrites what was stored in that moment: its holder finds out when it renews. So if by the store's own times
less than a time to live has passed since the last observed write, the waiter waits for the rest by its own clock.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import msgspec

from pelton.api import ConfigError, NotFoundError, PeltonError, StoreError, WrongLastSequenceError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet.registers import Follower
from pelton.locks.keeper import HeldLease, counted_from, moment
from pelton.locks.lock_table import Holding, LockRow, LockSpec, LockTable, Ticket, encode, holding_of, ticket_of
from pelton.runtime import Runtime, Signal, within

# How long a waiter waits for each one before it to take a free slot.
PATIENCE_S: Final = 0.5
# How long a waiter has to take a free slot before others ask whether it is still there.
GLANCE_S: Final = 0.02
# How long a store may take to expire a key.
_GRACE_S: Final = 1.0
# After how long a slot in an unknown state is read again.
_LOOK_S: Final = 5.0


_NS: Final = 1_000_000_000


class PassedTicket(NamedTuple):
    """The place in line of an owner, at a revision."""

    owner: str
    revision: int


class _Free(NamedTuple):
    """A slot that can be taken from a time on; the first is the one that is free longest."""

    at: float
    key: str


@dataclass(frozen=True)
class TakeSlot:
    """Take the slot ``key``, if ``revision`` is still its last.

    ``passes``: the waiters that are passed, each with the revision of its ticket.
    """

    key: str
    revision: int
    passes: tuple[PassedTicket, ...] = ()


@dataclass(frozen=True)
class AskSlot:
    """Read the slot ``key``."""

    key: str


@dataclass(frozen=True)
class AskPresence:
    """Ask whether the backend ``presence`` of the waiter ``owner`` is gone; ``revision`` is that of its ticket."""

    owner: str
    presence: str
    revision: int


@dataclass(frozen=True)
class Wait:
    """Wait for an update, or until this second since boot."""

    until: float


@dataclass
class _Slot:
    """A slot at one revision, known since the second ``seen``; ``holder`` is None if it has none.

    If it ``is_unknown``, only the revision is known.
    """

    revision: int
    seen: float
    holder: Holding | None = None
    is_unknown: bool = False
    time_ns: int = 0
    # For how long a marker is not trusted.
    doubt: float = 0.0

    @property
    def free_at(self) -> float | None:
        """The second from which it may be taken, None if unknown."""
        if self.is_unknown:
            return None
        return self.seen + (self.holder.ttl + _GRACE_S if self.holder is not None else self.doubt)

    def doubt_about(self, marker: LockRow, now: float) -> float:
        """Return for how many seconds not to trust a marker that follows this."""
        if self.holder is None or not marker.is_expired or marker.time_ns - self.time_ns >= self.holder.ttl * _NS:
            return 0.0
        return max(0.0, self.seen + self.holder.ttl - now)


@dataclass
class _Waiter:
    number: int
    revision: int
    ends: float
    # Its owner has since had a slot: the ticket is obsolete.
    is_served: bool = False
    presence: str = ""
    # When it was last asked about without being known to be gone.
    asked: float = -math.inf


class WaitQueue:
    """The known state of slots and their waiters. Times are seconds since boot, by one clock."""

    def __init__(self, slots: Iterable[str], ticket_ttl: float, now: float) -> None:
        self.slots: dict[str, _Slot] = {key: _Slot(0, now) for key in slots}
        self._ticket_ttl = ticket_ttl
        self._waiters: dict[str, _Waiter] = {}

    def note(self, row: LockRow, now: float) -> None:
        if row.key in self.slots:
            self._note_slot(row, now)
        else:
            self._note_ticket(row, now)

    def _note_slot(self, row: LockRow, now: float) -> None:
        known = self.slots[row.key]
        if row.revision < known.revision or (row.revision == known.revision and not known.is_unknown):
            return
        holder = holding_of(row.data)
        is_unknown = row.data is not None and holder is None
        self.slots[row.key] = _Slot(row.revision, now, holder, is_unknown, row.time_ns, known.doubt_about(row, now))
        if holder is not None and holder.owner in self._waiters:
            self._waiters[holder.owner].is_served = True

    def _note_ticket(self, row: LockRow, now: float) -> None:
        owner = row.key.rpartition(".")[2]
        known = self._waiters.get(owner)
        if known is not None and row.revision <= known.revision:
            return
        ticket = ticket_of(row.data)
        if ticket is None:
            self._waiters.pop(owner, None)
        else:
            is_served = any(slot.holder is not None and slot.holder.owner == owner for slot in self.slots.values())
            number = ticket.number or row.revision
            asked = -math.inf if known is None else known.asked
            ends = now + self._ticket_ttl
            self._waiters[owner] = _Waiter(number, row.revision, ends, is_served, ticket.presence, asked)

    def note_refusal(self, key: str, last: int | None, now: float) -> None:
        """Note that a slot's last revision is ``last`` (0: it has none, None: unknown), and nothing else of it."""
        known = self.slots[key].revision
        self.slots[key] = _Slot(known if last is None else last, now, is_unknown=last != 0)

    def absent(self, key: str, now: float) -> None:
        """Note that a slot's key does not exist."""
        self.slots[key] = _Slot(0, now)

    def note_answer(self, ask: AskPresence, now: float, *, is_gone: bool) -> None:
        """Note whether a waiter is known to be gone; one that has renewed its ticket is not."""
        waiter = self._waiters.get(ask.owner)
        if waiter is None:
            return
        if is_gone and waiter.revision == ask.revision:
            del self._waiters[ask.owner]
        else:
            waiter.asked = now

    def disagreement(self, slots: int) -> int:
        """Return the number of slots that a holder uses, if it differs; otherwise 0."""
        held = (slot.holder.slots for slot in self.slots.values() if slot.holder is not None)
        return next((number for number in held if number != slots), 0)

    def position(self, me: str, now: float) -> int:
        """Return how many waiters are before ``me`` in line."""
        return len(self._ahead(me, now))

    def _ahead(self, me: str, now: float) -> list[str]:
        mine = self._waiters.get(me)
        return sorted(
            (
                owner
                for owner, waiter in self._waiters.items()
                if owner != me
                and not waiter.is_served
                and waiter.ends > now
                and (mine is None or waiter.number < mine.number)
            ),
            key=lambda owner: self._waiters[owner].number,
        )

    def decide(self, me: str, now: float, glance: float = GLANCE_S) -> TakeSlot | AskSlot | AskPresence | Wait:
        """Return the next step of ``me``, a waiter that holds nothing; ``glance``: see ``GLANCE_S``."""
        unknown = [key for key, slot in self.slots.items() if slot.is_unknown and now >= slot.seen + _LOOK_S]
        if unknown:
            return AskSlot(unknown[0])
        free = sorted(_Free(slot.free_at, key) for key, slot in self.slots.items() if slot.free_at is not None)
        ready = [slot for slot in free if slot.at <= now]
        ahead = self._ahead(me, now)
        if len(ahead) < len(ready):
            return self._take(ready[len(ahead)].key)
        wake = [slot.seen + _LOOK_S for slot in self.slots.values() if slot.is_unknown]
        wake += [slot.at for slot in free if slot.at > now]
        if ready:
            since = ready[0].at
            turn = since + PATIENCE_S * (len(ahead) - len(ready) + 1)
            if turn <= now:
                return self._take(ready[-1].key, ahead)
            doubted = self._doubtful(ahead[: len(ready)], since)
            if doubted is not None and since + glance <= now:
                return doubted
            wake.append(turn if doubted is None else since + glance)
        return Wait(min(wake, default=now + _LOOK_S))

    def _doubtful(self, owners: Iterable[str], since: float) -> AskPresence | None:
        """Return the first waiter whose turn it is and that was not asked about since then."""
        waiters = ((owner, self._waiters[owner]) for owner in owners)
        doubted = ((owner, one) for owner, one in waiters if one.presence and one.asked < since)
        return next((AskPresence(owner, one.presence, one.revision) for owner, one in doubted), None)

    def _take(self, key: str, passes: Iterable[str] = ()) -> TakeSlot:
        tickets = tuple(PassedTicket(owner, self._waiters[owner].revision) for owner in passes)
        return TakeSlot(key, self.slots[key].revision, tickets)


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
            until = min(decision.until, self._ticket_due)
            await self._news.wait_at_most(self._clock, until - self._clock.boottime(), seen)
        return None

    def _queue(self) -> WaitQueue:
        return WaitQueue(self._spec.keys, _TICKET_S, self._clock.boottime())

    def _check(self, queue: WaitQueue) -> None:
        other = queue.disagreement(self._spec.slots)
        if other:
            raise ConfigError(f"{self._spec} is held by a caller that uses {other} slots: give slots={other}")

    async def _watch(self, queue: WaitQueue) -> None:
        rows = partial(self._table.watch, self._spec.filters)
        try:
            await Follower(rows, partial(self._saw, queue), self._on_lost).follow()
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

    async def _on_lost(self, error: Exception) -> None:
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
        queue.note_answer(ask, self._clock.boottime(), is_gone=is_gone)
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
            queue.note_refusal(take.key, error.seq, self._clock.boottime())
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
