"""The time of a lease, as its holder counts it: pure, and the same for locks, elections and jobs.

A lease is held for some seconds at a time, and confirmed repeatedly. Its holder counts from *before* it sent the
confirmed request, and stops at a share of those seconds: so it has stopped before another holder can begin,
however long answers take, provided that clocks run at about the same rate.

It counts the time since boot, which includes the machine's sleep, unlike monotonic time. If
the expiry of the lease is decided by the wall clock of this same machine, that counts too: whichever of the two
advanced more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pelton.runtime.clock import Clock

_NS: Final = 1e9


class Moment(NamedTuple):
    """One reading of both clocks: seconds since boot, wall nanoseconds (0 if the wall clock doesn't count)."""

    boot: float
    wall: int = 0


def moment(clock: Clock) -> Moment:
    """Read both clocks."""
    return Moment(clock.boottime(), clock.now())


def elapsed(since: Moment, now: Moment) -> float:
    """Return the seconds between two moments, by the clock that advanced more."""
    return max(now.boot - since.boot, (now.wall - since.wall) / _NS)


def counted_from(asked: Moment, answered: Moment) -> Moment:
    """Return the moment from which to count a write sent and answered then: never later than the store counts from.

    The wall clock may have been set back in between.
    """
    return Moment(asked.boot, min(asked.wall, answered.wall))


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
    """The time of one lease of ``duration`` seconds; ``confirmed``: when its last confirmation was requested."""

    __slots__ = ("_shares", "confirmed", "duration")

    def __init__(self, confirmed: Moment, duration: float, shares: LeaseShares) -> None:
        self.confirmed = confirmed
        self.duration = duration
        self._shares = shares

    def confirm(self, asked: Moment) -> None:
        """Note that it is confirmed by a request sent then."""
        self.confirmed = asked

    @property
    def renew_after(self) -> float:
        """The seconds after a confirmation until it must be renewed."""
        return self.duration * self._shares.renew

    @property
    def due_at(self) -> float:
        """When it must be renewed, in seconds since boot."""
        return self.confirmed.boot + self.renew_after

    @property
    def over_at(self) -> float:
        """When its holder must have stopped, in seconds since boot."""
        return self.confirmed.boot + self.duration * self._shares.stop

    @property
    def pause(self) -> float:
        """The seconds between a failed attempt and the next."""
        return self.duration * self._shares.again

    def is_due(self, now: Moment) -> bool:
        """Whether it is old enough to be renewed."""
        return now.boot >= self.due_at

    def is_over(self, now: Moment) -> bool:
        """Whether its holder must have stopped."""
        return elapsed(self.confirmed, now) >= self.duration * self._shares.stop

    def left(self, now: Moment) -> float:
        """Return for how many seconds its holder may continue if it is never renewed."""
        return max(0.0, self.duration * self._shares.stop - elapsed(self.confirmed, now))

    def try_for(self, now: Moment) -> float:
        """Return how many seconds an attempt that starts now may take; 0 if the lease is over."""
        return min(self.left(now), self.duration * self._shares.longest_try)
