"""Whose turn it is to write, among all openers of a store: who has waited longest, and how one waits.

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
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_S)
        return pause

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
