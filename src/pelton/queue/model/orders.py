"""What the workers of a queue are to heed, whichever process they run in. Pure.

An order is the last message of its subject in the queue's control stream, so a worker that starts reads all that hold
first, and every worker hears of a new one within moments.
"""

from __future__ import annotations

import msgspec

from pelton.api import JobCancelledError
from pelton.queue.model.limits import JobLimit


class TenantWeight(msgspec.Struct, frozen=True):
    """How many turns a tenant has while one of weight 1 has one."""

    tenant: str
    weight: int


class Order(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One order: ``cancel`` names a job, ``pause_key`` and ``pause_job`` what is paused, if not all is.

    ``limit`` is one of the queue's limits, ``weight`` that of a tenant, and ``flows`` says that the queue has flows.
    ``over`` takes an order back.
    """

    cancel: str = ""
    pause_all: bool = False
    pause_key: str = ""
    pause_job: str = ""
    limit: JobLimit | None = None
    weight: TenantWeight | None = None
    reason: str = ""
    over: bool = False
    flows: bool = False


class Orders:
    """The orders that hold, as one worker knows them."""

    is_all_paused: bool

    def __init__(self) -> None:
        self._cancelled: dict[str, str] = {}
        self.is_all_paused = False
        self._paused_keys: set[str] = set()
        self._paused_jobs: set[str] = set()

    def heed(self, order: Order) -> None:
        """Note an order, which replaces an earlier one of its subject."""
        if order.cancel:
            self._cancelled[order.cancel] = order.reason
        if order.pause_all:
            self.is_all_paused = not order.over
        for named, paused in ((order.pause_key, self._paused_keys), (order.pause_job, self._paused_jobs)):
            if named and order.over:
                paused.discard(named)
            elif named:
                paused.add(named)

    @property
    def paused_keys(self) -> tuple[str, ...]:
        """The keys whose jobs are not to start."""
        return tuple(sorted(self._paused_keys))

    @property
    def paused_jobs(self) -> tuple[str, ...]:
        """The names of the jobs that are not to start."""
        return tuple(sorted(self._paused_jobs))

    def cancellation(self, job_id: str, key: str) -> JobCancelledError | None:
        """Return the error that ends a job if it is to be cancelled."""
        reason = self._cancelled.get(job_id)
        return None if reason is None else JobCancelledError(job_id, key, reason)

    def is_paused(self, key: str, job: str) -> bool:
        """Whether jobs of this key, or of this name, are not to start now."""
        return key in self._paused_keys or job in self._paused_jobs

    def ended(self, job_id: str) -> None:
        """Forget what was said of a job that has ended."""
        self._cancelled.pop(job_id, None)
