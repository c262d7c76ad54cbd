"""The workers of a queue, in every process, as they have told last."""

from __future__ import annotations

from contextlib import aclosing
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.queue.backing.scan import scan
from pelton.queue.model.states import WorkerInfo

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext

_decode: Final = msgspec.json.Decoder(WorkerInfo).decode


async def workers_of(queue: QueueContext) -> list[WorkerInfo]:
    """Return the workers, those that started first at the beginning."""
    stream = await queue.side_to_read(queue.names.running)
    async with aclosing(scan(stream, queue.names.worker_subject("*"))) as found:
        return sorted([_decode(data) async for _, data in found], key=attrgetter("started_at"))
