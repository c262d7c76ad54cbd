"""Following the records of limits, so that a worker hears at once when another one returns a slot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from pelton.api import PeltonError, StoreError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet.ordered import OrderedReader
from pelton.queue.backing.outage import can_pass
from pelton.queue.model.slots import SlotRecord, decode

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext

_log: Final = logging.getLogger("pelton.queue")
_AGAIN_S: Final = 0.5
_HEARTBEAT_S: Final = 1.0


class SlotWatch:
    """Calls ``saw`` with the place, the sequence and the contents of each record, and then of every new one."""

    def __init__(self, queue: QueueContext, saw: Callable[[str, int, SlotRecord], None]) -> None:
        self._queue = queue
        self._saw = saw

    async def follow(self) -> None:
        """Read records for ever; a reader that ends is made anew."""
        queue, names = self._queue, self._queue.names
        while True:
            reader = OrderedReader(
                queue.backend,
                queue.runtime,
                names.running,
                heartbeat=_HEARTBEAT_S,
                deliver_policy="last_per_subject",
                filter_subject=names.slots_subject(">"),
            )
            try:
                await reader.begin()
                async with aclosing(reader.read()) as deliveries:
                    async for delivered in deliveries:
                        place = delivered.subject.removeprefix(names.slots_subject(""))
                        self._saw(place, delivered.seq, decode(delivered.data))
            except FINAL_ERRORS:
                raise
            except PeltonError as error:
                if not (isinstance(error, StoreError) or can_pass(error)):
                    raise
                _log.warning("queue %r: its limits can't be followed yet: %s", queue.name, error)
                await queue.clock.sleep(_AGAIN_S)
            finally:
                await reader.close()
