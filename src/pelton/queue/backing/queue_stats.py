"""The jobs under way in a queue, for its views: which are held or wait for a retry, and how many are neither."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pelton.api import Backend, ConsumerInfo, ConsumerNotFoundError, ConsumerUnsettled
from pelton.queue.backing.tenant_lines import tenants_with_jobs
from pelton.queue.ports import ALL_LISTED, Unlisted

if TYPE_CHECKING:
    from pelton.jet import Consumer, Stream
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.ports import Underway


async def tenant_consumers(stream: Stream, names: QueueNames) -> list[Consumer]:
    """Return the consumers that there are for tenants' jobs; they come and go."""
    found: list[Consumer] = []
    for name in await stream.consumer_names():
        if names.is_tenant_consumer(name):
            with suppress(ConsumerNotFoundError):
                found.append(await stream.consumer(name))
    return found


async def _info(consumer: Consumer) -> ConsumerInfo | None:
    try:
        return await consumer.info()
    except ConsumerNotFoundError:
        return None


async def infos_of(consumers: Sequence[Consumer]) -> list[ConsumerInfo]:
    """Return what there is to know of consumers; one that is gone is left out."""
    return [info for consumer in consumers if (info := await _info(consumer)) is not None]


async def taken_of_tenant(stream: Stream, names: QueueNames, tenant: str, priority: int) -> int:
    """Return how many jobs of a tenant and a priority were taken and have not ended; the tenant as a token."""
    try:
        return (await (await stream.consumer(names.tenant_consumer(tenant, priority))).info()).num_ack_pending
    except ConsumerNotFoundError:
        return 0


async def delivered_by(stream: Stream, names: QueueNames, consumers: Sequence[Consumer]) -> Unlisted:
    """Return what the consumers of jobs without a key have delivered so far; the last is that of ordinary jobs."""
    infos = await infos_of([*consumers, *await tenant_consumers(stream, names)])
    upto = {info.name: info.delivered.stream_seq for info in infos}
    # As ``QueueNames.lane`` names them.
    upto[""] = upto.pop(consumers[-1].name, 0)
    return Unlisted(upto, sum(info.num_ack_pending for info in infos))


class ConsumerStats:
    """Jobs that consumers deliver."""

    def __init__(self, backend: Backend, names: QueueNames, stream: Stream, consumers: Sequence[Consumer]) -> None:
        self._backend = backend
        self._names = names
        self._stream = stream
        self._consumers = consumers

    async def underway(self) -> Underway:
        """Return what the consumers have delivered and no worker has settled."""
        found: Underway = {}
        for consumer in (*self._consumers, *await tenant_consumers(self._stream, self._names)):
            with suppress(ConsumerNotFoundError):
                await self._delivered(consumer, found)
        return found

    async def _delivered(self, consumer: Consumer, found: Underway) -> None:
        offset = 0
        while True:
            request = ConsumerUnsettled(stream=consumer.stream_name, name=consumer.name, offset=offset)
            page = await self._backend.call(request)
            found.update((entry.seq, entry) for entry in page.messages)
            offset += len(page.messages)
            if not page.messages or offset >= page.total:
                return

    async def unlisted(self) -> Unlisted:
        """Return nothing in a store file, which lists all; on servers, what consumers have delivered so far."""
        if ConsumerUnsettled in self._backend.planning.own_verbs:
            return ALL_LISTED
        return await delivered_by(self._stream, self._names, self._consumers)

    async def untouched(self, underway: Underway) -> int:
        """Return how many messages are ahead of the consumers, or wait for one of a tenant."""
        if not self._consumers:
            # An older version made them for the first worker.
            return (await self._stream.info()).state.messages
        ahead = sum([(await consumer.info()).num_pending for consumer in self._consumers])
        tenants = await tenant_consumers(self._stream, self._names)
        taken = sum(info.num_ack_pending for info in await infos_of(tenants))
        listed = await tenants_with_jobs(self._stream, self._names)
        stored = sum(sum(counts.values()) for counts in listed.values())
        return ahead + max(stored - taken, 0)
