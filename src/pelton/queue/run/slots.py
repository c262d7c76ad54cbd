"""How a worker works: its settings, and its slots.

**The slots of a worker: which jobs wait for one, have one, or have ended and are not settled yet.** A settlement costs
a transaction, however few attempts it has. So an ended job gives its slot to the next one at once, and what has ended
is settled together when no job is left to start. This is bounded by a number, because after a crash these jobs run
again, and by time. A worker with one slot runs one job after the other: each is settled before the next one starts. In
a store file one settlement follows the other, so what ends during one waits for it; on a cluster, where settlements do
not share anything, an ended job keeps its slot, and none waits.

A slot whose jobs never suspend runs one after another and needs no help; one whose job suspends leaves the rest of
the work to other slots. Which of both it is shows only afterwards. So one slot is woken, and each slot that finds
work wakes others, twice as many each time: quick jobs cost no wake-ups, and slow ones all run after a few rounds of
the event loop. No wake-up is lost: a slot looks for work and then waits, without suspending in between, and a slot that
starts work with which others could help wakes them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final, Generic

import msgspec

from pelton.queue.model.options import seconds, whole
from pelton.queue.run.leased_jobs import EndedAttempt, J

if TYPE_CHECKING:
    from pelton.api.times import Seconds


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. ``grace`` in seconds; after ``max_jobs`` it takes no more.

    ``until_empty``: until no job is left; ``until_idle``: until none can start now. ``on_error`` as for `LeasedJobs`.
    ``on_idle`` is called when none can start now, with the seconds until one may (infinity: not known); while it
    returns true, the worker looks again.
    """

    concurrency: int = 8
    until_empty: bool = False
    until_idle: bool = False
    on_error: Callable[[str, BaseException], None] | None = None
    on_idle: Callable[[float], bool] | None = None
    handle_signals: bool = True
    grace: float = 30.0
    max_jobs: int | None = None


def worker_settings(
    queue: str,
    concurrency: int,
    ends: tuple[bool, bool],
    handle_signals: bool,
    grace: Seconds,
    max_jobs: int | None,
    on_error: Callable[[str, BaseException], None] | None,
    on_idle: Callable[[float], bool] | None,
) -> WorkerSettings:
    """Return checked settings; ``ends``: until empty, until idle. Raises ConfigError."""
    until_empty, until_idle = ends
    return WorkerSettings(
        concurrency=whole(f"queue {queue!r}: concurrency", concurrency),
        until_empty=until_empty,
        until_idle=until_idle,
        on_error=on_error,
        on_idle=on_idle,
        handle_signals=handle_signals,
        grace=seconds(f"queue {queue!r}: grace", grace),
        max_jobs=None if max_jobs is None else whole(f"queue {queue!r}: max_jobs", max_jobs),
    )


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
        # When they have waited for so long that no other job should start before; infinity: there is none, or not now.
        self.due_at = inf

    def __len__(self) -> int:
        """How many have ended and wait for their settlement."""
        return len(self._ended)

    def add(self, ended: EndedAttempt[J], now: float) -> None:
        """Add one that has ended by now (seconds since boot)."""
        is_first = not self._ended
        self._ended.append(ended)
        self._number += 1
        if is_first:
            self._since = now
            self._look()

    def active(self, running: int) -> int:
        """Return how many of those that are not settled hold a slot."""
        return running - min(self._number, self._most)

    def has_room(self, running: int) -> bool:
        """Whether another job can start when ``running`` jobs are not settled."""
        return running < self._limit and running - self._number < self._concurrency

    def free(self, running: int) -> int:
        """Return how many jobs can start when ``running`` jobs are not settled."""
        return min(self._concurrency - running + self._number, self._limit - running)

    @property
    def may_settle(self) -> bool:
        """Whether there is something to settle, and now is the time."""
        return bool(self._ended) and not (self._together and self._settlements)

    def _look(self) -> None:
        self.due_at = self._since + _LONGEST_S if self.may_settle else inf

    def begin(self) -> list[EndedAttempt[J]]:
        """Return those to settle now; call :meth:`end` after that."""
        taken, self._ended = self._ended, []
        self._settlements += 1
        self._look()
        return taken

    def settled(self, count: int) -> None:
        """Note that ``count`` jobs are settled."""
        self._number -= count

    def end(self) -> None:
        """Note that a settlement is over."""
        self._settlements -= 1
        self._look()


class IdleSlots:
    """The slots of one worker that have nothing to do."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.resting: list[asyncio.Future[None]] = []
        # How many were woken and have not looked for work yet.
        self.coming = 0
        self._next = 1

    async def wait(self) -> None:
        """Return when there may be work."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self.resting.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.cancelled():
                self.coming -= 1
            elif waiter in self.resting:
                self.resting.remove(waiter)

    def wake(self, most: int) -> None:
        """Wake at most ``most`` slots, unless woken ones have not looked yet: those will wake others."""
        if self.coming or not self.resting:
            return
        count = min(most, self._next, len(self.resting))
        if count > 0:
            self._next = 2 * count
            self._wake(count)

    def wake_anew(self, most: int) -> None:
        """Wake a slot for new work; it wakes others as they are needed."""
        self._next = 1
        self.wake(most)

    def wake_all(self) -> None:
        """Wake all slots."""
        self._wake(len(self.resting))

    def _wake(self, count: int) -> None:
        while count and self.resting:
            waiter = self.resting.pop()
            if not waiter.done():
                waiter.set_result(None)
                self.coming += 1
                count -= 1


class JobSlots(Generic[J]):
    """The slots of a worker that runs ``concurrency`` jobs; ``together`` and ``exclusive`` as of its ended attempts.

    ``waiting`` jobs were taken and can start; ``running`` ones have a slot until they are settled.
    """

    def __init__(self, concurrency: int, *, together: bool, exclusive: bool) -> None:
        self.waiting: deque[J] = deque()
        self.running: dict[J, None] = {}
        self.unsettled: EndedAttempts[J] = EndedAttempts(concurrency, together=together, exclusive=exclusive)
        self.idle: IdleSlots = IdleSlots()

    @property
    def active(self) -> int:
        """How many jobs hold a slot."""
        return self.unsettled.active(len(self.running))

    def startable(self) -> int:
        """Return how many jobs can start now."""
        return min(len(self.waiting), self.unsettled.free(len(self.running)))

    def wake(self) -> None:
        """Wake a slot for jobs that have come, or that can start now."""
        self.idle.wake_anew(self.startable())
