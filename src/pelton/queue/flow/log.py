"""The logs of flows, how far each is, and the messages that carry one out."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pelton.api import Delivered, MessageNotFoundError, Outgoing, StoredMessage, StoreReadOnlyError
from pelton.api.tracing import as_first
from pelton.queue.backing.scan import stored_messages
from pelton.queue.enqueue.job_message import JobMessage, flow_place
from pelton.queue.flow.decide import FlowProgress, FlowStep
from pelton.queue.model.flow_records import (
    FlowBegin,
    FlowEvent,
    FlowRecord,
    NodeEnd,
    NodeSpec,
    decode_event,
    decode_part,
    encode_record,
)
from pelton.queue.model.naming import key_part
from pelton.queue.model.states import FlowPlace, Outcome, decode_envelope

if TYPE_CHECKING:
    from pelton.jet import Stream
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.flow.decide import CancelledNode
    from pelton.queue.model.flow_records import FlowState
    from pelton.queue.model.options import JobOptions
    from pelton.queue.model.states import Ending

_PAGE: Final = 256
# A replica that reads for us may be behind.
_PATIENCE_S: Final = 2.0
_MOST_NODES: Final = 100_000


class AppliedEvent(NamedTuple):
    """A flow with an event applied, and what follows from it."""

    progress: FlowProgress
    step: FlowStep


class FlowLog:
    """The logs of one queue's flows. Keeps what it has read of some, up to a number of nodes."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._known: OrderedDict[str, FlowProgress] = OrderedDict()
        # How many nodes each of them had when it was counted.
        self._sizes: dict[str, int] = {}
        self._nodes = 0
        self._lock = asyncio.Lock()

    async def step(self, stream: Stream, delivered: Delivered, event: FlowEvent) -> AppliedEvent | None:
        """Apply the event of a delivery to its flow; None if the flow is not stored any more."""
        async with self._lock:
            return await self._step(stream, delivered, event)

    async def _step(self, stream: Stream, delivered: Delivered, event: FlowEvent) -> AppliedEvent | None:
        flow, seq = self._queue.names.flow_of(delivered.subject), delivered.seq
        progress = self._known.get(flow)
        if progress is None or progress.upto >= seq:
            if isinstance(event, FlowBegin) and not event.parts:
                progress = self._begun(flow, event, event.nodes, delivered.time_ns)
            else:
                progress = await self._read(stream, flow, seq, seq)
            if progress is None:
                return None
            self._keep(flow, progress)
        else:
            self._known.move_to_end(flow)
            await self._catch_up(stream, flow, progress, seq)
        step = progress.apply(event)
        progress.upto = seq
        return AppliedEvent(progress, step)

    async def present(self, stream: Stream, flow: str) -> FlowProgress | None:
        """Return how far a flow is now; None if there is none."""
        async with self._lock:
            return await self._present(stream, flow)

    async def _present(self, stream: Stream, flow: str) -> FlowProgress | None:
        last = 0
        for subject in (self._queue.names.flow_log(flow), self._queue.names.flow_begin(flow)):
            try:
                last = (await stream.get_last_message(subject)).seq
                break
            except MessageNotFoundError:
                continue
        if not last:
            return None
        progress = self._known.get(flow)
        if progress is None:
            progress = await self._read(stream, flow, last + 1, last)
            if progress is not None:
                self._keep(flow, progress)
        else:
            await self._catch_up(stream, flow, progress, last + 1)
        return progress

    # --- reading

    async def _catch_up(self, stream: Stream, flow: str, progress: FlowProgress, before: int) -> None:
        """Apply the events ahead of a sequence: other workers carry them out."""
        subject = self._queue.names.flow_log(flow)
        while progress.upto + 1 < before:
            try:
                stored = await stream.get_next_message(subject, progress.upto + 1)
            except MessageNotFoundError:
                return
            if stored.seq >= before:
                return
            progress.apply(decode_event(stored.data))
            progress.upto = stored.seq

    async def _read(self, stream: Stream, flow: str, before: int, upto: int) -> FlowProgress | None:
        """Return a flow with all events ahead of a sequence applied, read ``upto`` one that is stored."""
        names, progress = self._queue.names, None
        parts: dict[str, tuple[NodeSpec, ...]] = {}
        async with aclosing(self._stored(stream, flow, upto)) as stored:
            async for delivered in stored:
                if delivered.subject.startswith(names.flow_part(flow, "")):
                    parts[delivered.subject] = decode_part(delivered.data)
                    continue
                found = decode_event(delivered.data)
                if isinstance(found, FlowBegin):
                    nodes = found.nodes or _joined([parts[names.flow_part(flow, f"{n}")] for n in range(found.parts)])
                    progress = self._begun(flow, found, nodes, delivered.time_ns)
                if progress is not None and delivered.seq < before:
                    progress.apply(found)
                    progress.upto = delivered.seq
        return progress

    def _begun(self, flow: str, begin: FlowBegin, nodes: tuple[NodeSpec, ...], at: int) -> FlowProgress:
        progress = FlowProgress(nodes, partial(self._job_id, flow), begin.name)
        progress.began_at = at
        return progress

    def _job_id(self, flow: str, node: int, generation: int, options: JobOptions) -> str:
        key = key_part(options.key, options.tenant, exclusive=self._queue.exclusive)
        return flow_place(flow, node, generation, key).id

    async def _stored(self, stream: Stream, flow: str, upto: int) -> AsyncGenerator[Delivered | StoredMessage, None]:
        """Read what is stored of a flow up to a sequence, which is stored."""
        names = self._queue.names
        filters = [names.flow_begin(flow), names.flow_part(flow, "*"), names.flow_log(flow)]
        try:
            consumer = await stream.create_consumer(ack_policy="none", filter_subjects=filters)
        except StoreReadOnlyError:
            async with aclosing(stored_messages(stream, names.all_of_flow(flow))) as found_one_by_one:
                async for stored in found_one_by_one:
                    if stored.seq > upto:
                        return
                    if stored.subject in filters or stored.subject.startswith(names.flow_part(flow, "")):
                        yield stored
            return
        try:
            seen = 0
            while seen < upto and (found := await consumer.fetch(_PAGE, timeout=_PATIENCE_S)):
                for message in found:
                    seen = message.delivered.seq
                    if seen <= upto:
                        yield message.delivered
        finally:
            await consumer.delete()

    # --- keeping

    def _keep(self, flow: str, progress: FlowProgress) -> None:
        self.forget(flow)
        self._known[flow] = progress
        self._sizes[flow] = len(progress.specs)
        self._nodes += self._sizes[flow]
        while self._nodes > _MOST_NODES and len(self._known) > 1:
            self.forget(next(iter(self._known)))

    def forget(self, flow: str) -> None:
        """Keep nothing of a flow."""
        self._known.pop(flow, None)
        self._nodes -= self._sizes.pop(flow, 0)


def _joined(parts: list[tuple[NodeSpec, ...]]) -> tuple[NodeSpec, ...]:
    return tuple([spec for part in parts for spec in part])


# --- the messages that carry out a flow


class FlowMessages:
    """Makes the messages that carry out the flows of one queue."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._names = queue.names

    def job(self, flow: str, progress: FlowProgress, node: int) -> Outgoing:
        """Return the message that enqueues the job of a node."""
        return self._job(flow, node, progress.specs[node], progress.arguments(node), progress.generations[node])

    def first_jobs(self, flow: str, specs: Sequence[NodeSpec]) -> list[Outgoing]:
        """Return the messages that enqueue the jobs of the nodes of a new flow that come after no other."""
        return [
            self._job(flow, node, spec, bytes(spec.args), generation=0)
            for node, spec in enumerate(specs)
            if not spec.after
        ]

    def _job(self, flow: str, node: int, spec: NodeSpec, args: bytes, generation: int) -> Outgoing:
        form = JobMessage(self._names, spec.job, exclusive=self._queue.exclusive)
        place = FlowPlace(flow, node, wanted=spec.wanted)
        return form.of_flow(args, spec.options, self._queue.time.now(), spec.meta, place, generation)

    def event(self, flow: str, ended: NodeEnd) -> Outgoing:
        """Return the event that the job of a node has ended."""
        return Outgoing(self._names.flow_log(flow), encode_record(ended))

    def gone(self, flow: str, progress: FlowProgress, job_id: str) -> Outgoing:
        """Return the event that a job of a cancelled flow is not stored any more, and will never end."""
        node = progress.job_ids.index(job_id)
        return self.event(flow, NodeEnd(node=node, id=job_id, state="cancelled", error="its job was removed"))

    def cancelled(self, progress: FlowProgress, node: CancelledNode) -> Outgoing:
        """Return the outcome of a node that never starts."""
        spec = progress.specs[node.node]
        return self._outcome("cancelled", spec.job, spec.options.key, node.id, node.reason, progress.began_at)

    def failed(self, job: bytes, error: str) -> tuple[Outgoing, Outgoing]:
        """Return the outcome of a node whose job can't be stored, and the event for its flow."""
        envelope = decode_envelope(job)
        assert envelope.flow is not None, "it is the job of a node"
        ended = NodeEnd(node=envelope.flow.node, id=envelope.id, state="failed", error=error)
        now = self._queue.clock.now()
        outcome = self._outcome("failed", envelope.job, envelope.key, envelope.id, error, now)
        return outcome, self.event(envelope.flow.flow, ended)

    def _outcome(self, state: Ending, job: str, key: str, job_id: str, error: str, since: int) -> Outgoing:
        outcome = Outcome(
            id=job_id,
            job=job,
            state=state,
            key=key,
            attempt=0,
            worker="",
            enqueued_at=since,
            started_at=0,
            finished_at=self._queue.clock.now(),
            error=error,
        )
        message = Outgoing(self._names.ending_subject(state, job_id), msgspec.json.encode(outcome))
        return as_first(message, self._names.outcomes_of(job_id))

    def state(self, flow: str, upto: int, progress: FlowProgress, state: FlowState) -> Outgoing:
        """Return the record of how a flow has ended."""
        record = FlowRecord(
            state=state, upto=upto, at=self._queue.clock.now(), error=progress.error, size=len(progress.specs)
        )
        return Outgoing(self._names.flow_state(flow), encode_record(record))
