"""Jobs that a limit holds back: a few wait here, under their leases, to start at once; the others are given back.

What is given back is put off until its turn is likely to come, as far as this worker can tell, so that a long line of
jobs neither goes round and round nor keeps others behind it from starting. That is not counted as an attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pelton.queue.limits.admission import LOOK_AGAIN_S
from pelton.queue.limits.slot_book import SlotJob
from pelton.queue.model.limits import WHOLE_QUEUE
from pelton.queue.model.records import PutOff

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.limits.admission import Admission, HeldBack
    from pelton.queue.model.limits import JobLimit, Orders

_LONGEST_WAIT_S: Final = 5.0
_SHORTEST_S: Final = 0.001
_SHORTEST_PUT_OFF_S: Final = 0.1
_LONGEST_PUT_OFF_S: Final = 300.0
_MOST_LINES: Final = 4096

J = TypeVar("J", bound=SlotJob)


class _Parked:
    __slots__ = ("due", "expires", "held_back", "looked")

    def __init__(self, held_back: HeldBack, now: float, lives_for: float) -> None:
        self.held_back = held_back
        self.due = now + held_back.wait
        self.expires = now + lives_for
        self.looked = now


class Parking(Generic[J]):
    """The jobs of one worker that wait for a limit; at most ``size`` at each place, or all (``keeps_all``)."""

    def __init__(
        self, queue: QueueContext, admission: Admission, orders: Orders, size: int, *, keeps_all: bool = False
    ) -> None:
        self._clock = queue.clock
        self._random = queue.runtime.random
        self._admission = admission
        self._orders = orders
        self._size = size
        self._keeps_all = keeps_all
        self._most = 4 * size + 16
        self._parked: dict[J, _Parked] = {}
        self._at: dict[str, int] = {}
        # When the next job that is given back is likely to start, by place.
        self._lines: dict[str, float] = {}
        self._lines_of = 0

    async def follow(self, start: Callable[[list[J]], None]) -> None:
        """Call ``start`` for ever, whenever jobs may start that have waited, or there is more room for others."""
        while True:
            seen = self._admission.changed.generation
            start(self.ready())
            await self._admission.changed.wait_at_most(self._clock, self._looks_in(), seen)

    def hold_back(self, job: J, held_back: HeldBack) -> PutOff | None:
        """Have a job wait here; or return for how long it is to be put off: always while the queue is paused."""
        place = held_back.place
        fits = (
            self._at.get(place, 0) < self._most_at(held_back.limit, held_back.wait) and len(self._parked) < self._most
        )
        if self._orders.is_all_paused or not (fits or self._keeps_all):
            return self._put_off(job, held_back)
        self._parked[job] = _Parked(held_back, self._clock.boottime(), job.records.lives_for())
        self._at[place] = self._at.get(place, 0) + 1
        self._admission.changed.notify()
        return None

    def remove(self, job: J) -> bool:
        """Let a job wait no longer; return whether it did."""
        parked = self._parked.pop(job, None)
        if parked is None:
            return False
        place = parked.held_back.place
        self._at[place] -= 1
        if not self._at[place]:
            del self._at[place]
        return True

    def clear(self) -> list[J]:
        """Let all jobs wait no longer, and return them."""
        jobs = list(self._parked)
        self._parked.clear()
        self._at.clear()
        return jobs

    def _most_at(self, limit: JobLimit, wait: float) -> int:
        """Return how many jobs are worth keeping here for one place."""
        if wait == inf:
            return self._size
        if wait > _LONGEST_WAIT_S or limit.rate is None:
            return 0
        return min(max(int(_LONGEST_WAIT_S * 1e9) // limit.rate.interval_ns, 1), self._size)

    def held(self) -> list[tuple[int, int, str]]:
        """Return the jobs that wait here: sequence, number of the delivery, name of the limit."""
        return [
            (job.records.delivered.seq, job.records.delivered.num_delivered, parked.held_back.limit.name)
            for job, parked in self._parked.items()
        ]

    def _put_off(self, job: J, held_back: HeldBack) -> PutOff:
        """Return for how long a job is to be given back."""
        place, now = held_back.place, self._clock.boottime()
        if self._lines_of != self._admission.limits_heard:
            # Of other limits.
            self._lines, self._lines_of = {}, self._admission.limits_heard
        if len(self._lines) > _MOST_LINES:
            self._lines = {name: at for name, at in self._lines.items() if at > now}
        between = self._admission.seconds_between(held_back)
        first = now + (0.0 if held_back.wait == inf else held_back.wait) + self._at.get(place, 0) * between
        turn = max(self._lines.get(place, 0.0), first)
        self._lines[place] = turn + between
        delay = max(turn - now, _SHORTEST_PUT_OFF_S)
        if delay > _LONGEST_PUT_OFF_S:
            # Spread, so that they do not all come back at once.
            delay = _LONGEST_PUT_OFF_S * (0.5 + self._random.random() / 2)
        # It ends when its time is over.
        delay = min(delay, max(job.records.lives_for(), _SHORTEST_S))
        return PutOff(delay, f"it waits for a limit: {describe_limit(held_back)}", limit=held_back.limit)

    def ready(self) -> list[J]:
        """Return the jobs that may start now, as far as this worker knows; they wait here no longer."""
        now = self._clock.boottime()
        for parked in self._parked.values():
            if now - parked.looked >= LOOK_AGAIN_S:
                # Should this worker have missed a change.
                parked.looked = now
                self._admission.outdated(parked.held_back.place)
        found = list[J]()
        for job, held_back in self._admission.hindrances(self._parked):
            if held_back is None or self._parked[job].expires <= now:
                found.append(job)
            else:
                self._parked[job].due = now + held_back.wait
        for job in found:
            self.remove(job)
        return found

    def starts_in(self) -> float:
        """Return in how many seconds a job may start if nothing changes; infinity if none waits, or none knows."""
        now = self._clock.boottime()
        due = min((min(parked.due, parked.expires) for parked in self._parked.values()), default=inf) - now
        return max(min([due, *map(self._admission.next_death, self._at)]), _SHORTEST_S)

    def _looks_in(self) -> float | None:
        """Return in how many seconds to look whether a job may start; None if none waits."""
        if not self._parked:
            return None
        looked = min(parked.looked for parked in self._parked.values())
        return max(min(self.starts_in(), looked + LOOK_AGAIN_S - self._clock.boottime()), _SHORTEST_S)

    def room(self) -> int | None:
        """Return how many more jobs are worth taking; None if no limit of the whole queue says."""
        room, limit = self._admission.room(), self._admission.whole
        if room is None or limit is None:
            return None
        waits = [inf] if limit.concurrency is not None else []
        waits += [0.0] if limit.rate is not None else []
        most = min(self._most_at(limit, wait) for wait in waits)
        return max(room + most - self._at.get(WHOLE_QUEUE, 0), 0)


def describe_limit(held_back: HeldBack) -> str:
    """Return a limit in words."""
    limit = held_back.limit
    jobs = f"jobs {limit.job!r}" if limit.job else "jobs"
    if held_back.wait == inf:
        what = f"{limit.concurrency} {jobs} at a time"
    else:
        assert limit.rate is not None
        what = f"{limit.rate.starts} {jobs} in {limit.rate.per:g} s"
    return f"{what}, of each key" if limit.per_key else what
