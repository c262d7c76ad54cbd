"""Cancelling jobs and pausing what is not to start, from any process.

Design: A job that nobody holds is cancelled on the spot. In a store file its message is withdrawn and its outcome
stored in one transaction. On a cluster the outcome is stored on condition that the job has none, and then its message
is removed: the first outcome counts, because workers store theirs under the same condition. A job that runs is ended
by the worker that holds it, which hears of an order (``model/orders.py``); should that worker die, the next one does
it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import (
    ConsumerNotFoundError,
    ConsumerPause,
    rfc3339,
)
from pelton.queue.control.withdrawal import Withdrawal
from pelton.queue.limits.recall import Recall
from pelton.queue.model.checks import checked_id, checked_text
from pelton.queue.model.naming import encode_key
from pelton.queue.model.orders import Order
from pelton.queue.model.states import ENDINGS

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.inspect.views import JobViews
    from pelton.queue.model.states import JobInfo, Outcome

_encode: Final = msgspec.json.Encoder().encode
_FOR_EVER_NS: Final = 100 * 365 * 86_400 * 10**9
_TRIES: Final = 20
_ALL: Final = "pause.all"


class Steering:
    """Steers the jobs of one queue, and finds out what became of them."""

    def __init__(self, queue: QueueContext, views: JobViews) -> None:
        self._queue = queue
        self._views = views
        self._withdrawal = Withdrawal(queue)
        self._recall = Recall(queue)

    async def get(self, job_id: str) -> JobInfo:
        """Return a job by its id. Raises JobNotFoundError, ConfigError."""
        return await self._views.get(job_id)

    async def outcome(self, job_id: str, limit: float | None) -> Outcome | None:
        """Wait until a job has ended, for ``limit`` seconds at most; None if it has not ended by then."""
        return await self._views.outcome(job_id, limit)

    async def cancel(self, job_id: str, *, reason: str = "") -> bool:
        """Cancel a job; return False if it had ended otherwise. Raises JobNotFoundError, ConfigError."""
        checked_id(self._queue.name, job_id)
        for _ in range(_TRIES):
            info = await self._views.get(job_id)
            if info.state in ENDINGS:
                return info.state == "cancelled"
            if info.state == "running":
                await self._withdrawal.tell(job_id, reason)
                return True
            stored = await self._views.stored(job_id)
            if stored is not None and await self._withdrawal.cancel(stored, info, reason):
                return True
            # A worker has taken it, or it fell due.
        await self._withdrawal.tell(job_id, reason)
        return True

    async def pause(self, key: str | None, job: str | None) -> None:
        """Start no more jobs, of a key or a name if given, until :meth:`resume`."""
        await self._pause(key, job, over=False)

    async def resume(self, key: str | None, job: str | None) -> None:
        """Start jobs again that :meth:`pause` has held up."""
        await self._pause(key, job, over=True)

    async def _pause(self, key: str | None, job: str | None, *, over: bool) -> None:
        if key is not None:
            encode_key(key)
            await self._pause_some(Order(pause_key=key, over=over))
        if job is not None:
            name = checked_text(f"queue {self._queue.name!r}: job", job)
            await self._pause_some(Order(pause_job=name, over=over))
        if key is None and job is None:
            # The consumers stop everybody who takes jobs from them, the order those who take keys on a cluster.
            await self._order(Order(pause_all=True, over=over), _ALL)
            until = "" if over else rfc3339(self._queue.clock.now() + _FOR_EVER_NS)
            stream = await self._queue.jet.stream(self._queue.names.jobs)
            names = self._queue.names
            for of_tenants in (False, True):
                # Those of tenants come and go, and a new one is paused if the others are: so these are first.
                for name in await stream.consumer_names():
                    if names.is_tenant_consumer(name) == of_tenants:
                        with suppress(ConsumerNotFoundError):
                            request = ConsumerPause(stream=stream.name, name=name, pause_until=until)
                            await self._queue.backend.call(request)

    async def pause_all(self) -> int:
        """Pause the queue, and say so again when nobody can take jobs; return when that was stored, wall nanoseconds.

        What a worker tells after it has heard it again is what it still holds.
        """
        await self.pause(None, None)
        await self._order(Order(pause_all=True), _ALL)
        control = await self._queue.jet.stream(self._queue.names.control)
        return (await control.get_last_message(self._queue.names.order_subject(_ALL))).time_ns

    async def _pause_some(self, order: Order) -> None:
        [scope] = order.pause_scopes
        await self._order(order, scope)
        if order.over:
            await self._recall.all_of(scope, None)

    async def _order(self, order: Order, subject: str) -> None:
        await self._queue.backend.publish(self._queue.names.order_subject(subject), _encode(order))
