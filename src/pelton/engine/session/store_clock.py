"""The time of a store: the wall clock's, except that it does not jump.

Design: Deadlines in rows are wall-clock times, but most of them mean "so long from now": ack waits, delays, times to
live. The store records by how much the wall clock is ahead of the time since boot, which never jumps, and which all
processes of a machine share. If the two no longer agree, the wall clock has jumped. Until a transaction has put the
rows right (``deadlines.py``), the time goes on as if it had not. The first process that writes does it, for all.

If the machine was started since, nothing tells how much time has passed. If its clock is behind the last use of the
store, deadlines are moved back by that, so that nothing waits longer than it was asked to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from pelton.api.times import SECOND
from pelton.engine.session.deadlines import clamp_deadlines, jumps_after, last_used, shift_deadlines, stored_ahead
from pelton.runtime import Clock, wall_ahead
from pelton.storage import Database, text
from pelton.streams import Jumps

# A clock that is off by less has not jumped: every lease has more to spare.
_CLOSE: Final = SECOND // 10


class ClockState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store knows of its clock, written at ``seen``.

    In the run ``boot`` of the machine, the wall clock is ``offset`` ahead of the time since boot. ``jumps``: of streams
    whose messages age, by row id. ``ahead``: the last sequences of streams whose last message was stored by a clock
    that was ahead, and was put right since.
    """

    boot: str = ""
    offset: int = 0
    seen: int = 0
    jumps: dict[int, Jumps] = {}
    ahead: dict[int, int] = {}


_decode: Final = msgspec.json.Decoder(ClockState).decode


def read_state(database: Database) -> ClockState:
    """Return what the store knows of its clock."""
    found = database.value("SELECT value FROM meta WHERE key='clock'")
    try:
        return ClockState() if found is None else _decode(text(found))
    except msgspec.DecodeError:
        # As if it was opened for the first time: nothing else depends on it.
        return ClockState()


class StoreClock:
    """The time of one connection. ``on_jump`` is called when this machine's wall clock is seen to have jumped."""

    def __init__(self, clock: Clock, on_jump: Callable[[], None]) -> None:
        self._clock, self._wall, self._boottime = clock, clock.now, clock.boottime
        self._on_jump = on_jump
        self._boot = clock.boot_id()
        # By how much the wall clock was ahead when it was last compared, and by how much the store's time is.
        self._mine = self._offset = wall_ahead(self._clock)

    def now(self) -> int:
        """Wall time in nanoseconds since the epoch; after a jump, until rows are put right, what it was before."""
        wall = self._wall()
        since_boot = self._boottime() * SECOND
        if -_CLOSE < wall - since_boot - self._offset < _CLOSE:
            return wall
        since_boot = round(since_boot)
        if abs(wall - since_boot - self._mine) > _CLOSE:
            self._mine = wall - since_boot
            self._on_jump()
        return since_boot + self._offset

    def load(self, state: ClockState) -> int:
        """Take over the store's time; return by how much it is ahead of what it was here."""
        before = self._offset
        if state.boot == self._boot and state.offset:
            self._offset = state.offset
        return self._offset - before

    def begin(self, database: Database) -> None:
        """Compare the clock with the store's when the store is opened, and put rows right."""
        with database.reading():
            if self._is_known(read_state(database)):
                return
        with database.writing():
            state = read_state(database)
            if self._is_known(state):
                return
            now, is_same = self._wall(), bool(self._boot) and state.boot == self._boot
            by = self._mine - state.offset if is_same else 0
            # Nothing was written later than now.
            by += min(now - max(state.seen, last_used(database, state.ahead)) - by, 0)
            self._move(database, state, by if abs(by) > _CLOSE else 0)
            clamp_deadlines(database, now)

    def _is_known(self, state: ClockState) -> bool:
        if not self._boot or state.boot != self._boot:
            return False
        return abs(self._mine - state.offset) <= _CLOSE and state.seen <= self._wall() + _CLOSE

    def settle(self, database: Database) -> bool:
        """If the clock has jumped, put rows right, in a write transaction; return whether it did."""
        if -_CLOSE < self._wall() - self._boottime() * SECOND - self._offset < _CLOSE:
            return False
        self._mine = wall_ahead(self._clock)
        by = self._mine - self._offset
        if abs(by) <= _CLOSE:
            # The process stood still between the readings.
            return False
        self._move(database, read_state(database), by)
        return True

    def _move(self, database: Database, state: ClockState, by: int) -> None:
        now = self._wall()
        if by:
            shift_deadlines(database, by, now)
        jumps = jumps_after(database, state.jumps, by) if by else state.jumps
        ahead = stored_ahead(database, now)
        written = msgspec.json.encode(ClockState(self._boot, self._mine, now, jumps, ahead)).decode()
        database.execute("INSERT OR REPLACE INTO meta VALUES('clock', ?)", (written,))
        # All processes load it, and everything else.
        database.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")
        self._offset = self._mine
