"""The jobs under way in a queue, for its views: which are held or wait for a retry, and how many are neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pelton.api import Backend, ConsumerUnsettled
from pelton.queue.ports import ALL_LISTED, Unlisted

if TYPE_CHECKING:
    from pelton.jet import Consumer
    from pelton.queue.ports import Underway


async def delivered_by(consumers: Sequence[Consumer]) -> Unlisted:
    """Return what the consumers of jobs without a key have delivered so far; the highest priority comes first."""
    infos = [await consumer.info() for consumer in reversed(consumers)]
    return Unlisted([info.delivered.stream_seq for info in infos], sum(info.num_ack_pending for info in infos))


class ConsumerStats:
    """Jobs that consumers deliver."""

    def __init__(self, backend: Backend, consumers: Sequence[Consumer]) -> None:
        self._backend = backend
        self._consumers = consumers

    async def underway(self) -> Underway:
        """Return what the consumers have delivered and no worker has settled."""
        found: Underway = {}
        for consumer in self._consumers:
            offset = 0
            while True:
                request = ConsumerUnsettled(stream=consumer.stream_name, name=consumer.name, offset=offset)
                page = await self._backend.call(request)
                found.update((entry.seq, entry) for entry in page.messages)
                offset += len(page.messages)
                if not page.messages or offset >= page.total:
                    break
        return found

    async def unlisted(self) -> Unlisted:
        """Return nothing in a store file, which lists all; on servers, what consumers have delivered so far."""
        if ConsumerUnsettled in self._backend.planning.own_verbs:
            return ALL_LISTED
        return await delivered_by(self._consumers)

    async def untouched(self, underway: Underway) -> int:
        """Return how many messages are ahead of the consumers."""
        return sum([(await consumer.info()).num_pending for consumer in self._consumers])
