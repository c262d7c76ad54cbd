"""The tenants of a queue: their weights, and how many jobs each has."""

from __future__ import annotations

import asyncio
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from pelton.api import ConfigError
from pelton.queue.backing.queue_stats import taken_of_tenant
from pelton.queue.backing.scan import orders_in
from pelton.queue.backing.tenant_lines import tenants_with_jobs
from pelton.queue.model.naming import tenant_in
from pelton.queue.model.states import TenantCounts

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext


async def weights_of(queue: QueueContext) -> dict[str, int]:
    """Return the weights that are not 1, by tenant."""
    control = await queue.side_to_read(queue.names.control)
    orders = await orders_in(control, queue.names.weight_subject("*"))
    weights = [order.weight for order in orders if order.weight is not None and not order.over]
    return {weight.tenant: weight.weight for weight in sorted(weights, key=attrgetter("tenant"))}


async def tenants_of(queue: QueueContext, limit: int) -> list[TenantCounts]:
    """Return the ``limit`` tenants with the most jobs, those first. Raises ConfigError."""
    if type(limit) is not int or limit < 1:
        raise ConfigError(f"queue {queue.name!r}: limit is {limit!r}; it must be a whole number from 1 on")
    stream = await queue.jet.stream(queue.names.jobs)
    listed = await tenants_with_jobs(stream, queue.names)
    stored = Counter[str]()
    for counts in listed.values():
        stored.update(counts)
    largest = sorted(stored, key=lambda token: (-stored[token], token))[:limit]
    weights = await weights_of(queue) if largest else {}
    found: list[TenantCounts] = []
    for token in largest:
        ranks = [rank for rank, counts in listed.items() if token in counts]
        taken = sum(await asyncio.gather(*(taken_of_tenant(stream, queue.names, token, rank) for rank in ranks)))
        tenant = tenant_in(token)
        found.append(
            TenantCounts(
                tenant=tenant,
                pending=max(stored[token] - taken, 0),
                taken=min(taken, stored[token]),
                weight=weights.get(tenant, 1),
            )
        )
    return found
