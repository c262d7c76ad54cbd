"""Who has waited longest for the write lock, in memory that all openers of a store share.

SQLite's lock goes to whoever tries at the right moment. A process that takes it again and again can keep another from
it for seconds: the other only ever tries while the lock is held. For two threads of one process that is the rule,
because Python switches to the other thread mostly while SQLite runs, which is within a transaction.

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
