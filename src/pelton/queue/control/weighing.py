"""Setting the weights of a queue's tenants, which every worker hears of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import ConfigError
from pelton.queue.model.naming import encode_tenant
from pelton.queue.model.orders import Order, TenantWeight

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext

_HEAVIEST: Final = 1_000
_encode: Final = msgspec.json.Encoder().encode


class Weighing:
    """The weights of one queue's tenants."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue

    async def set(self, tenant: str, weight: int) -> None:
        """Set the weight of a tenant. Raises ConfigError."""
        token = encode_tenant(tenant)
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= _HEAVIEST:
            raise ConfigError(
                f"queue {self._queue.name!r}: the weight of tenant {tenant!r} is {weight!r}; it must be a whole number "
                f"from 1 to {_HEAVIEST}"
            )
        order = Order(weight=TenantWeight(tenant, weight), over=weight == 1)
        await self._queue.backend.publish(self._queue.names.weight_subject(token), _encode(order))
