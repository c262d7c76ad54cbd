"""A lease, as its holder sees it: pure.

Design: A lease is a key with a time to live, written by its holder again and again. The store judges its end by its
own clock, from when it stored the last write; the holder by its own, from *before* it sent that write, and it stops
four fifths into the time to live: so it has stopped before anybody else can begin, however long replies take, as long
as a second is about a second everywhere.

    held --- released             by its holder
      `----- lost                 the store says that another has it, or it was not renewed in time

Both ends are for good. Of the holder's two clocks the one counts on which more has passed: the time since boot,
sleep included, and the wall clock: where all share one machine that is also the store's, so that setting it forward
ends a lease for everybody at once.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pelton.runtime import Clock

LeaseState = Literal["held", "released", "lost"]
# Shares of the time to live: its age when it is renewed, the pause after a try that failed, the longest try, and the
# age at which its holder must have stopped.
_RENEW_AFTER: Final = 1 / 3
_AGAIN: Final = 1 / 20
_TRY: Final = 1 / 4
_STOP: Final = 0.8
# How long after its holder must have stopped the store ends a lease, as a share of the time to live.
ENDS_AFTER: Final = 1 - _STOP
_NS: Final = 1e9


class ClockReading(NamedTuple):
    """One reading of both clocks: seconds since boot, wall nanoseconds."""

    boot: float
    wall: int


def moment(clock: Clock) -> ClockReading:
    """Read both clocks."""
    return ClockReading(clock.boottime(), clock.now())


def elapsed(since: ClockReading, now: ClockReading) -> float:
    """Return the seconds between two moments, by the clock on which more have passed."""
    return max(now.boot - since.boot, (now.wall - since.wall) / _NS)


def counted_from(asked: ClockReading, answered: ClockReading) -> ClockReading:
    """Return from when a write counts that was sent and answered then: never later than the store's own word for it.

    The wall clock may have been set back in between.
    """
    return ClockReading(asked.boot, min(asked.wall, answered.wall))


class HeldLease:
    """A key held with a ``token`` since the write that made it was sent (``asked``), for ``ttl`` seconds at a time."""

    __slots__ = ("_next_try", "confirmed", "key", "reason", "revision", "state", "token", "ttl")

    def __init__(self, key: str, token: int, ttl: int, asked: ClockReading) -> None:
        self.key = key
        self.token = token
        self.ttl = ttl
        self.revision = token
        self.confirmed = asked
        self.state: LeaseState = "held"
        self.reason = ""
        self._next_try = asked.boot + self.renew_after

    @property
    def renew_after(self) -> float:
        """How many seconds after it was confirmed it is due to be renewed."""
        return self.ttl * _RENEW_AFTER

    def is_over(self, now: ClockReading) -> bool:
        """Whether the holder must have stopped, told or not."""
        return self.state != "held" or elapsed(self.confirmed, now) >= self.ttl * _STOP

    def left(self, now: ClockReading) -> float:
        """Return for how many seconds the holder may go on if it is never renewed."""
        return max(0.0, self.ttl * _STOP - elapsed(self.confirmed, now)) if self.state == "held" else 0.0

    def judge(self, now: ClockReading) -> bool:
        """Note that time is up, if it is; return whether this is news."""
        if self.state != "held" or not self.is_over(now):
            return False
        self.lose("it was not renewed in time")
        return True

    def is_due(self, now: ClockReading) -> bool:
        """Whether it is to be renewed now."""
        return self.state == "held" and now.boot >= self._next_try

    def wake_at(self) -> float:
        """Return the second since boot at which something is to be done about it."""
        return min(self._next_try, self.confirmed.boot + self.ttl * _STOP)

    def try_until(self, now: ClockReading) -> float:
        """Begin to renew it: return for how many seconds at most. It is not due again before :meth:`failed`."""
        self._next_try = float("inf")
        return min(self.left(now), self.ttl * _TRY)

    def renewed(self, revision: int, asked: ClockReading) -> None:
        """Note that the store has taken a renewal that was sent at ``asked``."""
        self.revision = revision
        self.confirmed = asked
        self._next_try = asked.boot + self.renew_after

    def found(self, revision: int, now: ClockReading) -> None:
        """Note that the store holds a renewal of which no answer came: it is renewed anew, at once."""
        self.revision = revision
        self._next_try = now.boot

    def failed(self, now: ClockReading) -> None:
        """Note that nobody knows whether a renewal was taken: it is tried again soon."""
        self._next_try = now.boot + self.ttl * _AGAIN

    def lose(self, reason: str) -> None:
        """End it: somebody else may hold the key."""
        if self.state == "held":
            self.state, self.reason = "lost", reason

    def release(self) -> None:
        """End it by its holder's will."""
        if self.state == "held":
            self.state = "released"
