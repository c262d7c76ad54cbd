"""What the workers of a queue are to heed, whichever process they run in. Pure.

An order is the last message of its subject in the queue's control stream, so a worker that starts reads all that hold
first, and every worker hears of a new one within moments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import JobCancelledError, Outgoing, headers
from pelton.queue.model.limits import JobLimit
from pelton.queue.model.naming import encode_key

if TYPE_CHECKING:
    from pelton.queue.model.naming import QueueNames

_HEARD: Final = "10m"
_MOST_ENDED: Final = 10_000
_encode: Final = msgspec.json.Encoder().encode


class TenantWeight(msgspec.Struct, frozen=True):
    """How many turns a tenant has while one of weight 1 has one."""

    tenant: str
    weight: int


class Order(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One order: ``cancel`` names a job, ``pause_key`` and ``pause_job`` what is paused, if not all is.

    ``limit`` is one of the queue's limits, ``weight`` that of a tenant, and ``flows`` says that the queue has flows.
    ``over`` takes an order back. ``ended``: the job that ``cancel`` names has ended, and only who runs it is to hear.
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
    ended: bool = False

    @property
    def pause_scopes(self) -> tuple[str, ...]:
        """What is paused of the queue, as parts of subjects."""
        return tuple(filter(None, (_of_key(self.pause_key), _of_job(self.pause_job))))


decode: Final = msgspec.json.Decoder(Order).decode


class Orders:
    """The orders that hold, as one worker knows them."""

    is_all_paused: bool

    def __init__(self) -> None:
        self._cancelled: dict[str, str] = {}
        # Those of jobs that have ended: nobody says when they can be forgotten.
        self._ended: dict[str, None] = {}
        self.is_all_paused = False
        # Whether any job, key or name is cancelled or paused.
        self.has_any = False
        self._paused_keys: set[str] = set()
        self._paused_jobs: set[str] = set()

    def heed(self, order: Order) -> None:
        """Note an order, which replaces an earlier one of its subject."""
        if order.cancel and order.over:
            self._cancelled.pop(order.cancel, None)
        elif order.cancel:
            self._cancelled[order.cancel] = order.reason
            if order.ended:
                self._ended[order.cancel] = None
            if len(self._ended) > _MOST_ENDED:
                oldest = next(iter(self._ended))
                del self._ended[oldest]
                self._cancelled.pop(oldest, None)
        if order.pause_all:
            self.is_all_paused = not order.over
        for named, paused in ((order.pause_key, self._paused_keys), (order.pause_job, self._paused_jobs)):
            if named and order.over:
                paused.discard(named)
            elif named:
                paused.add(named)
        self.has_any = bool(self._cancelled or self._paused_keys or self._paused_jobs)

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

    def pause_of(self, key: str, job: str) -> str:
        """Return the scope for which jobs of this key, or of this name, are not to start now; empty if they are."""
        if key in self._paused_keys:
            return _of_key(key)
        return _of_job(job) if job in self._paused_jobs else ""


def _of_key(key: str) -> str:
    return key and f"pause.key.{_token(key)}"


def _of_job(job: str) -> str:
    return job and f"pause.job.{_token(job)}"


def _token(text: str) -> str:
    return encode_key(text).replace(".", "%2E")


def to_cancel(names: QueueNames, job_id: str, reason: str, *, ended: bool) -> Outgoing:
    """Return the order to cancel a job; ``ended``: it has, which whoever runs it is to hear."""
    order = Order(cancel=job_id, reason=reason, ended=ended)
    block = headers.encode({headers.TTL: _HEARD}) if ended else None
    return Outgoing(names.cancel_subject(job_id), _encode(order), block)


def carried_out(names: QueueNames, job_id: str) -> Outgoing:
    """Return the message that takes back the order to cancel a job, which has ended: every worker forgets it.

    It goes by itself, so that neither the stream nor the workers keep what is over.
    """
    block = headers.encode({headers.TTL: _HEARD})
    return Outgoing(names.cancel_subject(job_id), _encode(Order(cancel=job_id, over=True)), block)
