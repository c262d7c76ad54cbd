"""The attempts of a worker that have ended and are not settled yet, and how many more may end before they are. Pure.

Design: a settlement costs a transaction, however few attempts it has. So an ended job gives its slot to the next one at
once, and what has ended is settled together when no job is left to start. This is bounded by a number, because after a
crash these jobs run again, and by time. A worker with one slot runs one job after the other: each is settled before the
next one starts. In a store file one settlement follows the other, so what ends during one waits for it; on a cluster,
where settlements do not share anything, an ended job keeps its slot, and none waits.
"""

from __future__ import annotations

from typing import Final, Generic

from pelton.queue.run.core import EndedAttempt, J

_SHARE: Final = 7
_MOST: Final = 448
# In an exclusive queue, where nobody else can have what shares its key with a job that is held.
_KEYED_SHARE: Final = 5
_MOST_KEYED: Final = 320
_LONGEST_S: Final = 0.01


class EndedAttempts(Generic[J]):
    """The ended attempts of a worker with ``concurrency`` slots; ``together``: settlements share a transaction.

    ``exclusive``: the queue has keys.
    """

    def __init__(self, concurrency: int, *, together: bool, exclusive: bool) -> None:
        self._together = together
        # How many ended attempts may be without a slot.
        share, most = (_KEYED_SHARE, _MOST_KEYED) if exclusive else (_SHARE, _MOST)
        self._most = min(share * concurrency, most) if together and concurrency > 1 else 0
        self._limit = concurrency + self._most
        self._concurrency = concurrency
        self._ended: list[EndedAttempt[J]] = []
        # Those that are being settled, too.
        self._number = 0
        self._settlements = 0
        # When the first of them has ended, in seconds since boot.
        self._since = 0.0

    def __len__(self) -> int:
        """How many have ended and wait for their settlement."""
        return len(self._ended)

    def add(self, ended: EndedAttempt[J], now: float) -> None:
        """Add one that has ended by now (seconds since boot)."""
        if not self._ended:
            self._since = now
        self._ended.append(ended)
        self._number += 1

    def active(self, running: int) -> int:
        """Return how many of those that are not settled hold a slot."""
        return running - min(self._number, self._most)

    def free(self, running: int) -> int:
        """Return how many jobs can start when so many are not settled."""
        return min(self._concurrency - running + self._number, self._limit - running)

    @property
    def may_settle(self) -> bool:
        """Whether there is something to settle, and now is the time."""
        return bool(self._ended) and not (self._together and self._settlements)

    def is_due(self, now: float) -> bool:
        """Whether they have waited for so long that no other job should start before."""
        return self.may_settle and now - self._since >= _LONGEST_S

    def begin(self) -> list[EndedAttempt[J]]:
        """Return those to settle now; call :meth:`end` after that."""
        taken, self._ended = self._ended, []
        self._settlements += 1
        return taken

    def settled(self, count: int) -> None:
        """Note that so many are over."""
        self._number -= count

    def end(self) -> None:
        """Note that a settlement is over."""
        self._settlements -= 1
