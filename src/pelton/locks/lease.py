"""A lease, as its holder sees it: pure.

Design: A lease is a key with a time to live, written by its holder repeatedly. The store expires it by its
own clock, from when it stored the last write; the holder by its own (:class:`pelton.runtime.LeaseClock`), from *before*
it sent that write, and it stops four fifths into the time to live.

    held --- released             by its holder
      `----- lost                 another holder has it in the store, or it was not renewed in time

Both ends are final. The holder counts on both of its clocks: if a server shares its machine, the wall clock is also the
store's, and setting it forward ends a lease for all at once. A store file counts the time since boot (``steady``).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pelton.runtime import Clock, LeaseClock, LeaseShares

LeaseState = Literal["held", "released", "lost"]
_SHARES: Final = LeaseShares(renew=1 / 3, stop=0.8, again=1 / 20, longest_try=1 / 4)
# How long after its holder must have stopped the store expires a lease, as a share of the time to live.
ENDS_AFTER: Final = 1 - _SHARES.stop


class ClockReading(NamedTuple):
    """One reading of both clocks: seconds since boot, wall nanoseconds."""

    boot: float
    wall: int


def moment(clock: Clock) -> ClockReading:
    """Read both clocks."""
    return ClockReading(clock.boottime(), clock.now())


def counted_from(asked: ClockReading, answered: ClockReading) -> ClockReading:
    """Return from when a write counts that was sent and answered then: never later than the store's own word for it.

    The wall clock may have been set back in between.
    """
    return ClockReading(asked.boot, min(asked.wall, answered.wall))


class HeldLease:
    """A key held with a ``token`` since the write that made it was sent (``asked``), for ``ttl`` seconds at a time.

    ``steady``: setting the wall clock does not end it in the store.
    """

    reason: str
    revision: int

    __slots__ = ("_next_try", "_steady", "clock", "key", "reason", "revision", "state", "token", "ttl")

    def __init__(self, key: str, token: int, ttl: int, asked: ClockReading, *, steady: bool = False) -> None:
        self.key: str = key
        self.token: int = token
        self.ttl: int = ttl
        self.revision = token
        self._steady = steady
        self.clock: LeaseClock = LeaseClock(asked.boot, ttl, _SHARES, self._wall(asked))
        self.state: LeaseState = "held"
        self.reason = ""
        self._next_try = self.clock.due_at

    def _wall(self, reading: ClockReading) -> int:
        return 0 if self._steady else reading.wall

    @property
    def renew_after(self) -> float:
        """The seconds after a confirmation until it is due for renewal."""
        return self.clock.renew_after

    def is_over(self, now: ClockReading) -> bool:
        """Whether the holder must have stopped, told or not."""
        return self.state != "held" or self.clock.is_over(now.boot, self._wall(now))

    def left(self, now: ClockReading) -> float:
        """Return for how many seconds the holder may go on if it is never renewed."""
        return self.clock.left(now.boot, self._wall(now)) if self.state == "held" else 0.0

    def judge(self, now: ClockReading) -> bool:
        """Note that time is up, if it is; return whether this is news."""
        if self.state != "held" or not self.is_over(now):
            return False
        self.lose("it was not renewed in time")
        return True

    def is_due(self, now: ClockReading) -> bool:
        """Whether it must be renewed now."""
        return self.state == "held" and now.boot >= self._next_try

    def wake_at(self) -> float:
        """Return when it needs attention, in seconds since boot."""
        return min(self._next_try, self.clock.over_at)

    def try_until(self, now: ClockReading) -> float:
        """Start a renewal and return its time limit in seconds. It is not due again before :meth:`failed`."""
        self._next_try = float("inf")
        return self.clock.try_for(now.boot, self._wall(now)) if self.state == "held" else 0.0

    def renewed(self, revision: int, asked: ClockReading) -> None:
        """Note that the store has accepted a renewal sent at ``asked``."""
        self.revision = revision
        self.clock.confirm(asked.boot, self._wall(asked))
        self._next_try = self.clock.due_at

    def found(self, revision: int, now: ClockReading) -> None:
        """Note that the store holds a renewal of which no answer came: it is renewed anew, at once."""
        self.revision = revision
        self._next_try = now.boot

    def failed(self, now: ClockReading) -> None:
        """Note that nobody knows whether a renewal was taken: it is tried again soon."""
        self._next_try = now.boot + self.clock.pause

    def lose(self, reason: str) -> None:
        """End it: another holder may have the key."""
        if self.state == "held":
            self.state, self.reason = "lost", reason

    def release(self) -> None:
        """End it, released by its holder."""
        if self.state == "held":
            self.state = "released"
