"""The time of a lease, as its holder counts it: pure, and the same for locks, elections and jobs.

A lease is held for some seconds at a time and renewed again and again. Its holder counts from *before* it asked for a
renewal, and stops at a share of those seconds. So it has stopped before another holder can begin, however long answers
take, as long as a second is about a second everywhere.

The time since boot counts, which includes the machine's sleep: monotonic time stands still while it sleeps. If the end
of a lease is judged by the wall clock of this same machine, that is given as well, and the clock on which more time has
passed decides.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_NS: Final = 1e9


class LeaseShares(NamedTuple):
    """The times of a lease, as shares of its duration.

    ``renew``: its age when it is renewed; ``stop``: its age when its holder must have stopped; ``again``: the pause
    after a failed attempt; ``longest_try``: how long an attempt may take.
    """

    renew: float
    stop: float
    again: float
    longest_try: float


class LeaseClock:
    """The time of one lease of ``duration`` seconds; ``confirmed``: when what confirmed it last was asked for.

    Times are seconds since boot, and wall nanoseconds where the wall clock counts: then always.
    """

    confirmed: float

    # One is made for each job.
    __slots__ = ("_shares", "_wall", "confirmed", "duration")

    def __init__(self, asked: float, duration: float, shares: LeaseShares, wall: int = 0) -> None:
        self.confirmed = asked
        self.duration: float = duration
        self._shares = shares
        self._wall = wall

    def confirm(self, asked: float, wall: int = 0) -> None:
        """Note that it is confirmed by a request sent then."""
        self.confirmed, self._wall = asked, wall

    @property
    def renew_after(self) -> float:
        """The seconds after a confirmation until it must be renewed."""
        return self.duration * self._shares.renew

    @property
    def due_at(self) -> float:
        """The second since boot from which on it is to be renewed."""
        return self.confirmed + self.renew_after

    @property
    def over_at(self) -> float:
        """The second since boot from which on its holder must have stopped."""
        return self.confirmed + self.duration * self._shares.stop

    @property
    def pause(self) -> float:
        """The seconds between a failed attempt and the next."""
        return self.duration * self._shares.again

    def is_due(self, now: float) -> bool:
        """Whether it is old enough to be renewed."""
        return now >= self.due_at

    def is_over(self, now: float, wall: int = 0) -> bool:
        """Whether its holder must have stopped, told or not."""
        return self._age(now, wall) >= self.duration * self._shares.stop

    def left(self, now: float, wall: int = 0) -> float:
        """Return for how many seconds its holder may go on if it is never renewed."""
        return max(0.0, self.duration * self._shares.stop - self._age(now, wall))

    def try_for(self, now: float, wall: int = 0) -> float:
        """Return for how many seconds at most a try that begins now may go on; 0 when it is over."""
        return min(self.left(now, wall), self.duration * self._shares.longest_try)

    def _age(self, now: float, wall: int) -> float:
        return max(now - self.confirmed, (wall - self._wall) / _NS)
