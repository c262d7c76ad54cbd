"""Whose turn it is when a worker takes jobs: the highest priority's, and sometimes that of others. Pure.

Jobs of a priority come through a channel of their own, jobs without one through the others. The highest channel that
may have jobs has the turn; after seven of its jobs, one job comes from below, where channels take turns. So of every 24
jobs at least one is of each priority, as long as there are some. Once so many have ended in a queue, it is drawn where
in its turns a worker begins: so this holds, on average, for workers that end after a job or two.

A channel that had nothing is left out for a moment. As long as no job with a priority is stored, none of their channels
is asked at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pelton.runtime import Random

BYPASS: Final = 8
"""One of so many jobs comes from below."""
_EMPTY_FOR_S: Final = 0.02
_QUIET_FOR_S: Final = 0.5
FIRST_JOBS: Final = 24
"""After so many jobs of a queue, it is drawn where in its turns a worker begins."""


class RankTurn(NamedTuple):
    """The channel to ask now, and for how many jobs at most.

    ``waits``: whether it may be waited for. ``is_below``: a higher one may have jobs.
    """

    channel: str
    most: int
    waits: bool = False
    is_below: bool = False


class RankTurns:
    """The turns of one worker. ``ranked`` are the channels of jobs with a priority, highest first, ``plain`` others.

    Times in seconds since boot.
    """

    def __init__(self, ranked: Sequence[str], plain: Sequence[str]) -> None:
        self._ranked = ranked
        self._plain = plain
        self._empty_until: dict[str, float] = {}
        self._awaited: set[str] = set()
        # Until when no job with a priority is expected, and until when that need not be checked.
        self._quiet_until = self._sure_until = 0.0
        # Jobs that came from the highest channel since the last one from below, and which of them is the lowest that
        # was the highest; when channels below had turns.
        self._owed = 0
        self._passing = 0
        self._served: dict[str, float] = dict.fromkeys((*ranked, *plain), 0)
        self._count = 0

    def draw(self, random: Random) -> None:
        """Begin anywhere in the turns."""
        self._owed = int(random.random() * BYPASS)
        self._served = {name: random.random() for name in self._served}

    def is_unsure(self, now: float) -> bool:
        """Whether to find out if there are jobs with a priority: nobody waits for them, and it is some time ago."""
        return now >= self._sure_until and len(self._awaited) < len(self._ranked)

    def learned(self, has_ranked: bool, now: float) -> None:
        """Note whether there are jobs with a priority."""
        self._sure_until = now + _QUIET_FOR_S
        self._quiet_until = 0.0 if has_ranked else self._sure_until
        self._empty_until.clear()

    def doubt(self) -> None:
        """Forget what may have changed: a job can have come at any time."""
        self._empty_until.clear()
        self._quiet_until = self._sure_until = 0.0

    def awaits(self, channel: str) -> None:
        """Note that a pull waits for the jobs of a channel: so it has none."""
        self._awaited.add(channel)

    def next(self, channel: str, wanted: int, now: float) -> RankTurn:
        """Return whose turn it is, if ``channel``, of jobs without a priority, asks; empty: none of those has any."""
        ranked = self._waiting(now)
        if not ranked:
            return RankTurn(channel, wanted, waits=True)
        top, below = ranked[0], ranked[1:]
        if channel:
            # Each of them, whoever asks: otherwise one that has nothing could use up the turns of another one.
            below += [name for name in self._plain if not self._is_empty(name, now)]
        if not below:
            self._owed = 0
            return RankTurn(top, wanted)
        # One that was itself the highest when these were taken has had its jobs, and is not owed any.
        waiting = [name for name in below if self._place(name) > self._passing]
        if waiting and self._owed >= BYPASS - 1:
            least = min(waiting, key=lambda name: self._served[name])
            return RankTurn(least, min(wanted, self._owed // (BYPASS - 1)), is_below=True)
        return RankTurn(top, max(wanted - wanted // BYPASS, 1))

    def answered(self, channel: str, found: int, now: float, *, is_below: bool = False) -> None:
        """Note how many jobs a channel had; ``is_below``: as its turn said."""
        self._awaited.discard(channel)
        if is_below:
            # One that had nothing has had its turn, too: otherwise it would have the next one as well.
            self._count += 1
            self._served[channel] = self._count
        if not found:
            self._empty_until[channel] = now + _EMPTY_FOR_S
            return
        self._empty_until.pop(channel, None)
        if channel in self._ranked:
            self._quiet_until = 0.0
        if is_below:
            self._owed = max(self._owed - found * (BYPASS - 1), 0)
        elif channel in self._ranked:
            self._passing = max(self._passing, self._place(channel)) if self._owed else self._place(channel)
            self._owed += found

    def _place(self, channel: str) -> int:
        """Return a channel's place from the highest on; those without a priority share the last one."""
        return self._ranked.index(channel) if channel in self._ranked else len(self._ranked)

    def _waiting(self, now: float) -> list[str]:
        """Return the channels of priorities that may have jobs, the highest first."""
        if now < self._quiet_until:
            return []
        return [name for name in self._ranked if name not in self._awaited and not self._is_empty(name, now)]

    def _is_empty(self, channel: str, now: float) -> bool:
        return now < self._empty_until.get(channel, 0.0)
