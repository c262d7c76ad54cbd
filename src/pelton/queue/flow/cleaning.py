"""Removing what is stored of flows that have ended: after as long as the queue keeps its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pelton.api import MessageNotFoundError
from pelton.queue.model.flow_records import decode_flow_record

if TYPE_CHECKING:
    from pelton.jet import Stream
    from pelton.queue.define.queue_context import QueueContext

_EVERY_S: Final = 60.0
_DAY_NS: Final = 86_400 * 10**9


class FlowCleaning:
    """Removes the flows of one queue that have ended long ago."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._last = float("-inf")
        # The last part of a flow that was looked at.
        self._part = 0

    async def clean(self, flows: Stream) -> None:
        """Remove what is old, once a minute."""
        if (now := self._queue.clock.monotonic()) < self._last + _EVERY_S:
            return
        self._last = now
        await self._clean_unbegun(flows)
        history = await self._queue.jet.stream(self._queue.names.history)
        if not (age := history.config.max_age.ns):
            return
        limit, seq, names = self._queue.clock.now() - age, 1, self._queue.names
        while True:
            try:
                stored = await flows.get_next_message(names.flow_state("*"), seq)
            except MessageNotFoundError:
                return
            if stored.time_ns > limit:
                return
            seq, flow = stored.seq + 1, names.flow_of(stored.subject)
            last = await flows.get_last_message(names.flow_state(flow))
            if last.seq == stored.seq and decode_flow_record(last.data).state != "running":
                await flows.purge(filter=names.all_of_flow(flow))

    async def _clean_unbegun(self, flows: Stream) -> None:
        """Remove the parts of flows that nobody has begun within a day: their program died as it enqueued them."""
        limit, names = self._queue.clock.now() - _DAY_NS, self._queue.names
        while True:
            try:
                stored = await flows.get_next_message(names.flow_part("*", "*"), self._part + 1)
            except MessageNotFoundError:
                return
            if stored.time_ns > limit:
                return
            self._part, flow = stored.seq, names.flow_of(stored.subject)
            try:
                await flows.get_last_message(names.flow_begin(flow))
            except MessageNotFoundError:
                await flows.purge(filter=names.all_of_flow(flow))
