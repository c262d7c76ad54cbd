"""SQLite's write lock: whose turn it is among all openers of a store, how one waits, and the transactions that hold it.

SQLite's lock has no queue, so a connection tries again and again. Each try costs CPU and seldom comes at the right
moment, so the pauses grow; a commit of another process ends a pause early. Whoever has waited for
:data:`PRIORITY_AFTER_S` waits with priority. Of those, the one whose turn is next tries often:
the others stand back, and look again now and then.

**Claims.** SQLite's lock goes to whoever tries at the right moment. A process that takes it again and again can keep
another from it for seconds: the other only ever tries while the lock is held. For two threads of one process that is
the rule, because Python switches to the other thread mostly while SQLite runs, which is within a transaction.

So a connection that has waited for long *claims* the next turn, and all others stand back until it has had it. One
claim is kept, that of the longest wait. The claimant repeats it with each try; a claim that was not repeated for
:data:`LAPSE_S` no longer counts, so a claimant that was stopped or killed delays the others by that and no longer.

A claim is a courtesy. SQLite's own lock alone keeps transactions apart, so nothing depends on what is read here: two
that claim in the same moment, a half-written claim, or an older Pelton that knows nothing of claims, cost some
milliseconds. The times are seconds of the monotonic clock, which all processes of a machine share; a claim from a
container with another clock is not a recent one, and so is ignored.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

import apsw

from pelton.runtime import pause
from pelton.storage.database import Database
from pelton.storage.faults import Fault, translated
from pelton.storage.troubles import LONG_WAIT_S
from pelton.storage.user_sql import Refusal

FIRST_PAUSE_S: Final = 0.001
LONGEST_PAUSE_S: Final = 0.004
PRIORITY_AFTER_S: Final = 0.004


class WriterWait:
    """One wait after the other; ``patience`` (seconds) is the longest, ``since`` when the present one began."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._pause = FIRST_PAUSE_S
        self.since: float | None = None

    def missed(self, now: float, *, is_next: bool) -> float:
        """Note that the lock was not free; return how many seconds to pause. ``is_next``: nobody else had a try."""
        if self.since is None:
            self.since = now
        if self.has_priority(now):
            return FIRST_PAUSE_S if is_next else LONGEST_PAUSE_S
        current, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_S)
        return current

    def has_priority(self, now: float) -> bool:
        """Whether this wait is long enough for others to stand back."""
        return self.since is not None and now - self.since >= PRIORITY_AFTER_S

    def is_over(self, now: float) -> bool:
        """Whether it has taken longer than anyone should wait."""
        return self.since is not None and now - self.since > self._patience

    def end(self) -> None:
        """Begin anew: the lock was taken, or is no longer wanted."""
        self.since, self._pause = None, FIRST_PAUSE_S


LAPSE_S: Final = 0.02
_FORM: Final = struct.Struct("=Qdd")
SIZE: Final = _FORM.size
_NOBODY: Final = bytes(SIZE)
_number: Final = count(1)


class WriterPriority:
    """The view of one connection; ``memory`` holds the claim from ``place`` on, zeros for none."""

    def __init__(self, memory: mmap.mmap | bytearray, place: int) -> None:
        self._memory = memory
        self._place = place
        self._own = os.getpid() << 32 | next(_number) & 0xFFFFFFFF

    def is_anothers(self, now: float) -> bool:
        """Whether to stand back: another has claimed the next turn."""
        if self._memory[self._place : self._place + SIZE] == _NOBODY:
            return False
        who, _, repeated = self._found()
        return who != self._own and _is_recent(repeated, now)

    def claim(self, since: float, now: float) -> bool:
        """Claim the next turn, having waited ``since`` then; return False if another has waited for longer."""
        who, others, repeated = self._found()
        if who not in (0, self._own) and _is_recent(repeated, now) and (others, who) < (since, self._own):
            return False
        _FORM.pack_into(self._memory, self._place, self._own, since, now)
        return True

    def withdraw(self) -> None:
        """Claim it no longer."""
        if self._found()[0] == self._own:
            self._memory[self._place : self._place + SIZE] = _NOBODY

    def _found(self) -> tuple[int, float, float]:
        found: tuple[int, float, float] = _FORM.unpack_from(self._memory, self._place)
        return found


class _Claims(bytearray):
    """The claim on a memory store."""


_claims: Final[WeakValueDictionary[str, _Claims]] = WeakValueDictionary()
_guard: Final = threading.Lock()


def claims_in_memory(name: str) -> bytearray:
    """Return the claim on a memory store, which all its connections in this process share."""
    with _guard:
        return _claims.setdefault(name, _Claims(SIZE))


def _is_recent(repeated: float, now: float) -> bool:
    return abs(now - repeated) <= LAPSE_S


class WriteLock:
    """Opens the write transactions of one connection; ``busy_timeout`` (seconds) is the longest wait for others."""

    def __init__(self, database: Database, busy_timeout: float) -> None:
        self._db = database
        self._busy_timeout = busy_timeout
        self._wait = WriterWait(busy_timeout)
        claims = database.claims
        self._priority = WriterPriority(*(claims if claims is not None else (claims_in_memory(database.path), 0)))
        self._has_claimed = False

    def begin(self, now: float) -> float | None:
        """Open a transaction and return None, or return how many seconds to pause before the next try.

        ``now`` is the monotonic clock's. Raises Fault, of kind ``busy`` when the wait has taken too long.
        """
        is_next = self._is_our_turn(now)
        if is_next:
            try:
                self._db.execute("BEGIN IMMEDIATE")
            except apsw.BusyError:
                pass
            except apsw.Error as error:
                self.give_up()
                raise self._db.ending.met(error) from error
            else:
                if self._wait.since is not None:
                    self._note(now)
                    self.give_up()
                return None
        if self._wait.is_over(now):
            self._note(now)
            self.give_up()
            detail = (
                f"another process has held the write lock for {self._busy_timeout:g} s; if it is stopped or hangs, "
                "let it go on or end it, then retry"
            )
            raise Fault("busy", self._db.path, detail)
        return self._wait.missed(now, is_next=is_next)

    def is_anothers(self, now: float) -> bool:
        """Whether a try would be in vain: another connection has claimed the next turn."""
        return self._priority.is_anothers(now)

    def give_up(self) -> None:
        """Wait no longer."""
        self._wait.end()
        if self._has_claimed:
            self._has_claimed = False
            self._priority.withdraw()

    def _note(self, now: float) -> None:
        since = self._wait.since
        if since is not None and now - since >= LONG_WAIT_S:
            self._db.troubles.writer_took(now - since)

    def _is_our_turn(self, now: float) -> bool:
        since = self._wait.since
        if since is None or not self._wait.has_priority(now):
            return not self._priority.is_anothers(now)
        self._has_claimed = True
        return self._priority.claim(since, now)


# --- a write transaction with explicit begin, commit and rollback, for one that outlasts a round of the loop

_PAUSE_S = 0.00005


class Writer:
    """The write transactions of one connection; ``busy_timeout`` (seconds) is the longest wait for others."""

    def __init__(self, database: Database, busy_timeout: float) -> None:
        self._db = database
        self._lock = WriteLock(database, busy_timeout)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._db.connection.in_transaction

    def begin(self, now: float) -> float | None:
        """Open a transaction; while another connection writes, return how many seconds to pause before the next try.

        ``now`` is the event loop's time. Raises Fault.
        """
        return self._lock.begin(now)

    def give_up(self) -> None:
        """Wait for the lock no longer."""
        self._lock.give_up()

    def commit(self) -> None:
        """Commit. Raises Fault, or Refusal if a constraint of the user's tables fails: then it stays open."""
        while True:
            try:
                self._db.execute("COMMIT")
                return
            except apsw.BusyError:
                # Only possible for a memory store: another thread of this process is reading it.
                pause(_PAUSE_S)
            except apsw.ConstraintError as error:
                raise Refusal("constraint", str(error)) from error
            except apsw.Error as error:
                self._db.note(error)
                raise self._db.ending.met(error) from error

    def roll_back(self) -> None:
        """Roll back the transaction, if one is open. Raises Fault."""
        if self.is_open:
            with translated(self._db.path):
                self._db.execute("ROLLBACK")
