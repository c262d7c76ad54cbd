"""Removing what is stored of flows that have ended: after as long as the queue keeps its history.

Design: The wall clock alone does not tell what is old, because it may be wrong for a moment. A flow that has ended goes
only if the history has no outcome any more that is as old; parts of a flow that was never begun, whose program may be
about to begin it, only if this worker has seen them for a while by a clock that does not jump.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pelton.api import MessageNotFoundError, parse_rfc3339
from pelton.queue.model.flow_records import decode_flow_record

if TYPE_CHECKING:
    from pelton.jet import Stream
    from pelton.queue.define.queue_context import QueueContext

_EVERY_S: Final = 60.0
_DAY_NS: Final = 86_400 * 10**9
_SEEN_S: Final = 600.0


class FlowCleaning:
    """Removes the flows of one queue that have ended long ago."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._last = float("-inf")
        # The last part of a flow that need not be looked at again; and since when flows are known that were not begun.
        self._part = 0
        self._unbegun: dict[str, float] = {}

    async def clean(self, flows: Stream) -> None:
        """Remove what is old, once a minute."""
        if (now := self._queue.clock.monotonic()) < self._last + _EVERY_S:
            return
        self._last = now
        await self._clean_unbegun(flows, now)
        history = await (await self._queue.jet.stream(self._queue.names.history)).info()
        if not (age := history.config.max_age.ns):
            return
        limit, seq, names = self._queue.clock.now() - age, 1, self._queue.names
        if history.state.messages:
            limit = min(limit, parse_rfc3339(history.state.first_ts) - 1)
        while True:
            try:
                stored = await flows.get_next_message(names.flow_state("*"), seq)
            except MessageNotFoundError:
                return
            if limit < stored.time_ns <= self._queue.clock.now():
                return
            seq, flow = stored.seq + 1, names.flow_of(stored.subject)
            if stored.time_ns > limit:
                # Stored while the clock was ahead: others may be old all the same.
                continue
            last = await flows.get_last_message(names.flow_state(flow))
            if last.seq == stored.seq and decode_flow_record(last.data).state != "running":
                await flows.purge(filter=names.all_of_flow(flow))

    async def _clean_unbegun(self, flows: Stream, now: float) -> None:
        """Remove the parts of flows that nobody has begun within a day: their program died as it enqueued them."""
        limit, names, seq = self._queue.clock.now() - _DAY_NS, self._queue.names, self._part
        known, self._unbegun = self._unbegun, {}
        while True:
            try:
                stored = await flows.get_next_message(names.flow_part("*", "*"), seq + 1)
            except MessageNotFoundError:
                return
            if stored.time_ns > limit:
                return
            seq, flow = stored.seq, names.flow_of(stored.subject)
            try:
                await flows.get_last_message(names.flow_begin(flow))
            except MessageNotFoundError:
                since = known.get(flow, now)
                if now >= since + _SEEN_S:
                    await flows.purge(filter=names.all_of_flow(flow))
                else:
                    self._unbegun[flow] = since
            if not self._unbegun:
                self._part = seq
