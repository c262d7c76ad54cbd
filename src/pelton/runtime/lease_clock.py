"""The time of a lease, as its holder counts it: pure, and the same for locks, elections and jobs.

A lease is held for some seconds at a time, and confirmed again and again. Its holder counts from *before* it asked for
the confirmation it was given, and stops at a share of those seconds: so it has stopped before anybody else can begin,
however long answers take, as long as a second is about a second everywhere.

What counts is the time since boot, in which the machine's sleep is included: monotonic time stands still meanwhile. If
the lease's end is judged by the wall clock of this same machine, that counts as well, and of the two the one on which
more has passed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pelton.runtime.clock import Clock

_NS: Final = 1e9


class Moment(NamedTuple):
    """One reading of both clocks: seconds since boot, wall nanoseconds (0 wherever the wall clock doesn't count)."""

    boot: float
    wall: int = 0


def moment(clock: Clock) -> Moment:
    """Read both clocks."""
    return Moment(clock.boottime(), clock.now())


def elapsed(since: Moment, now: Moment) -> float:
    """Return the seconds between two moments, by the clock on which more have passed."""
    return max(now.boot - since.boot, (now.wall - since.wall) / _NS)


def counted_from(asked: Moment, answered: Moment) -> Moment:
    """Return from when a write counts that was sent and answered then: never later than the store's own word for it.

    The wall clock may have been set back in between.
    """
    return Moment(asked.boot, min(asked.wall, answered.wall))


class LeaseShares(NamedTuple):
    """When what is due, as shares of a lease's duration.

    ``renew``: its age when it is renewed; ``stop``: its age when its holder must have stopped; ``again``: the pause
    after a try that failed; ``longest_try``: how long a try may take.
    """

    renew: float
    stop: float
    again: float
    longest_try: float


class LeaseClock:
    """The time of one lease of ``duration`` seconds; ``confirmed``: when what confirmed it last was asked for."""

    __slots__ = ("_shares", "confirmed", "duration")

    def __init__(self, confirmed: Moment, duration: float, shares: LeaseShares) -> None:
        self.confirmed = confirmed
        self.duration = duration
        self._shares = shares

    def confirm(self, asked: Moment) -> None:
        """Note that it is confirmed, as was asked for then."""
        self.confirmed = asked

    @property
    def renew_after(self) -> float:
        """How many seconds after it was confirmed it is to be renewed."""
        return self.duration * self._shares.renew

    @property
    def due_at(self) -> float:
        """The second since boot from which on it is to be renewed."""
        return self.confirmed.boot + self.renew_after

    @property
    def over_at(self) -> float:
        """The second since boot from which on its holder must have stopped."""
        return self.confirmed.boot + self.duration * self._shares.stop

    @property
    def pause(self) -> float:
        """How many seconds after a try that failed there is to be another."""
        return self.duration * self._shares.again

    def is_due(self, now: Moment) -> bool:
        """Whether it is old enough to be renewed."""
        return now.boot >= self.due_at

    def is_over(self, now: Moment) -> bool:
        """Whether its holder must have stopped, told or not."""
        return elapsed(self.confirmed, now) >= self.duration * self._shares.stop

    def left(self, now: Moment) -> float:
        """Return for how many seconds its holder may go on if it is never renewed."""
        return max(0.0, self.duration * self._shares.stop - elapsed(self.confirmed, now))

    def try_for(self, now: Moment) -> float:
        """Return for how many seconds at most a try that begins now may go on; 0 when it is over."""
        return min(self.left(now), self.duration * self._shares.longest_try)
