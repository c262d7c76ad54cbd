"""Whether a job that was taken starts: asked before its function is called, at each delivery.

It does not if it can't or may not run at all, was cancelled, is paused, or is the run of a schedule beside an earlier
one. A job that only waits for a limit is parked if there is room, and given back otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from pelton.queue.model.decide import PutOff
from pelton.queue.run.core import HeldJob, HeldJobs

if TYPE_CHECKING:
    from pelton.queue.limits.admission import HeldBack
    from pelton.queue.limits.parking import Parking
    from pelton.queue.model.decide import AfterAttempt
    from pelton.queue.model.orders import Orders

J = TypeVar("J", bound=HeldJob)


class StartGate(Generic[J]):
    """Decides for the jobs of one worker."""

    def __init__(self, held: HeldJobs[J], orders: Orders, parking: Parking[J]) -> None:
        self._held = held
        self._orders = orders
        self._parking = parking

    def refusal(self, job: J) -> AfterAttempt | None:
        """Return how a job ends that is not to start, whatever the limits; None if it is.

        A job of a schedule is also to be asked for with :meth:`overlap`.
        """
        # First, because this reads what the others need to know.
        decision = self._held.judge(job)
        if decision is not None:
            return decision
        if not self._orders.has_any:
            return None
        envelope = job.records.envelope
        if (cancelled := self._orders.cancellation(job.records.id, envelope.key)) is not None:
            return self._held.after(job, cancelled)
        if pause := self._orders.pause_of(envelope.key, envelope.job):
            return PutOff(None, "it is paused", pause=pause)
        return None

    async def overlap(self, job: J) -> AfterAttempt | None:
        """Return how a job of a schedule ends that is not to start beside an earlier run; None if it is."""
        return await self._held.skipped(job)

    def hold_back(self, job: J, held_back: HeldBack) -> PutOff | None:
        """Park a job that a limit holds back; or return for how long it is given back."""
        # A queue that is paused is to be left by all jobs.
        if self._orders.is_all_paused:
            return self._parking.put_off(job, held_back)
        return self._parking.take(job, held_back)
