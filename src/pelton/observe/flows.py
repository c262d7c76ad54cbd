"""Flows of a queue: the newest ones, and one with its jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from pelton.api import FlowNotFoundError, MessageNotFoundError, StoredMessage, StreamInfoRequest, StreamNotFoundError
from pelton.connect import Jet
from pelton.jet import Stream
from pelton.queue import FlowInfo
from pelton.queue.model.flow_records import FlowBegin, FlowRecord, FlowState, decode_event, decode_flow_record
from pelton.queue.model.naming import QueueNames
from pelton.runtime import Deadline

_FIRST_WINDOW: Final = 256
_LOOK_FOR_S: Final = 1.0


async def flow_summaries(
    jet: Jet, queue: str, *, state: FlowState | None = None, limit: int = 50, within: float = _LOOK_FOR_S
) -> list[FlowInfo]:
    """Return flows without their jobs, those that began last first; at most ``limit``, of a ``state`` if given.

    Looks back for ``within`` seconds at most, so of a queue with very many flows old ones may be left out.
    """
    names = QueueNames(queue)
    try:
        info = await jet.backend.call(StreamInfoRequest(name=names.flows))
    except StreamNotFoundError:
        return []
    stream, found = Stream(jet.backend, info.config, jet.runtime), list[FlowInfo]()
    async with aclosing(_begun(stream, names, info.state.first_seq, info.state.last_seq)) as messages:
        deadline = Deadline(jet.runtime.clock, within)
        async for stored in messages:
            flow = await _flow(stream, names, stored)
            if state in (None, flow.state):
                found.append(flow)
            if len(found) >= limit or deadline.is_over:
                break
    return found


async def _begun(stream: Stream, names: QueueNames, first: int, last: int) -> AsyncGenerator[StoredMessage, None]:
    """Yield the beginnings of flows, newest first: messages can be read only forwards, so in windows."""
    window, end = _FIRST_WINDOW, last + 1
    while end > max(first, 1):
        begin = max(end - window, first, 1)
        seen, seq = list[StoredMessage](), begin
        while seq < end:
            try:
                stored = await stream.get_next_message(names.flow_begin("*"), seq)
            except MessageNotFoundError:
                break
            seq = stored.seq + 1
            if stored.seq < end:
                seen.append(stored)
        for stored in reversed(seen):
            yield stored
        window, end = window * 2, begin


async def _flow(stream: Stream, names: QueueNames, stored: StoredMessage) -> FlowInfo:
    begin = decode_event(stored.data)
    assert isinstance(begin, FlowBegin), "nothing else is stored there"
    flow_id = names.flow_of(stored.subject)
    try:
        record = decode_flow_record((await stream.get_last_message(names.flow_state(flow_id))).data)
    except MessageNotFoundError:
        record = FlowRecord(state="running", upto=0)
    is_over = record.state != "running"
    return FlowInfo(
        id=flow_id,
        name=begin.name,
        state=record.state,
        size=begin.size,
        enqueued_at=stored.time_ns,
        finished_at=record.at if is_over else 0,
        error=record.error if is_over else "",
    )


async def flow_details(jet: Jet, queue: str, flow_id: str) -> FlowInfo:
    """Return a flow with all its jobs. Raises FlowNotFoundError, QueueNotFoundError."""
    opened = await jet.queue(queue, create=False)
    if not (flow_id.isascii() and flow_id.isalnum()):
        raise FlowNotFoundError(queue, flow_id)
    return await opened.flow(flow_id).status()
