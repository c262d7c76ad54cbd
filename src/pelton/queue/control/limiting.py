"""Setting the limits of a queue, which every worker hears of, and listing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pelton.queue.backing.scan import orders_in
from pelton.queue.limits.recall import Recall
from pelton.queue.model.limits import JobLimit, scope_of
from pelton.queue.model.orders import Order

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext

_encode: Final = msgspec.json.Encoder().encode


class Limiting:
    """The limits of one queue."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._recall = Recall(queue)

    async def set(self, limit: JobLimit) -> None:
        """Set a limit, which replaces one of the same scope; jobs that were put off for that one are recalled."""
        await self._tell(Order(limit=limit), limit.scope)
        await self._recall.all_of(limit.scope, limit.text)

    async def remove(self, job: str, per_key: bool) -> bool:
        """Take a limit away; return whether there was one."""
        scope = scope_of(job, per_key)
        found = [limit for limit in await self.all() if limit.scope == scope]
        for limit in found:
            await self._tell(Order(limit=limit, over=True), scope)
        if found:
            await self._recall.all_of(scope, None)
        return bool(found)

    async def all(self) -> list[JobLimit]:
        """Return all limits, in the order in which they were set."""
        control = await self._queue.side_to_read(self._queue.names.control)
        orders = await orders_in(control, self._queue.names.limit_subject(">"))
        return [order.limit for order in orders if order.limit is not None and not order.over]

    async def _tell(self, order: Order, scope: str) -> None:
        await self._queue.backend.publish(self._queue.names.limit_subject(scope), _encode(order))
