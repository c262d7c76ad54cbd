"""Setting the weights of a queue's tenants, which every worker hears of, and listing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import ConfigError, MessageNotFoundError
from pelton.queue.model.naming import encode_tenant
from pelton.queue.model.orders import Order, TenantWeight

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext

_HEAVIEST: Final = 1_000
_encode: Final = msgspec.json.Encoder().encode
_order: Final = msgspec.json.Decoder(Order).decode


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

    async def all(self) -> dict[str, int]:
        """Return the weights that are not 1, by tenant."""
        control, seq = await self._queue.jet.stream(self._queue.names.control), 1
        found: dict[str, int] = {}
        while True:
            try:
                stored = await control.get_next_message(self._queue.names.weight_subject("*"), seq)
            except MessageNotFoundError:
                return dict(sorted(found.items()))
            order = _order(stored.data)
            if order.weight is not None and not order.over:
                found[order.weight.tenant] = order.weight.weight
            seq = stored.seq + 1
