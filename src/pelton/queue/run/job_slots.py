"""The jobs of a worker on their way through its slots: waiting for one, in one, or ended and not settled yet."""

from __future__ import annotations

from collections import deque
from typing import Generic

from pelton.queue.run.core import J
from pelton.queue.run.ended_attempts import EndedAttempts
from pelton.queue.run.idle_slots import IdleSlots


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
