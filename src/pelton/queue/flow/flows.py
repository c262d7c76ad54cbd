"""The flows of one queue: made, shown, cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import (
    FlowNotFoundError,
    JobNotFoundError,
    MessageTooLargeError,
    Outgoing,
    PubAck,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from pelton.queue.backing.scan import deliveries
from pelton.queue.backing.setup import flows_consumer, flows_stream
from pelton.queue.enqueue.announcing import announce_messages, ring
from pelton.queue.flow.handle import FlowHandle, FlowInfo, FlowNodeInfo
from pelton.queue.flow.log import FlowLog, FlowMessages
from pelton.queue.flow.reactor import FlowReactor, why_withdrawn
from pelton.queue.inspect.views import first_of
from pelton.queue.model.flow_records import (
    FlowBegin,
    FlowCancel,
    FlowRecord,
    decode_event,
    decode_flow_record,
    encode_record,
)
from pelton.queue.model.orders import Order
from pelton.runtime import Deadline

if TYPE_CHECKING:
    from pelton.api.tracing import Tracing
    from pelton.jet import Stream
    from pelton.queue.define.job import Job
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.flow.builder import FlowNode
    from pelton.queue.flow.decide import FlowProgress
    from pelton.queue.model.flow_records import FlowState, NodeSpec
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.ports import JobLookup

_encode: Final = msgspec.json.Encoder().encode
_AT_ONCE: Final = 64


class Flows:
    """The flows of one queue. ``jobs`` finds and cancels its jobs."""

    def __init__(self, queue: QueueContext, jobs: JobLookup) -> None:
        self._queue = queue
        self._log = FlowLog(queue)
        self._messages = FlowMessages(queue)
        self._is_ready = False
        self.jobs = jobs

    async def stored(self) -> None:
        """Await what a test wants to do when jobs are stored."""
        if (on_stored := self._queue.probes.on_stored) is not None:
            await on_stored()

    @property
    def names(self) -> QueueNames:
        """The names of the queue's streams and subjects."""
        return self._queue.names

    @property
    def queue_name(self) -> str:
        """The name of the queue."""
        return self._queue.name

    @property
    def tracing(self) -> Tracing | None:
        """The tracer of this opening, or None."""
        return self._queue.backend.tracing

    def reactor(self, acted: Callable[[], None]) -> FlowReactor:
        """Return what carries out the flows, for a worker."""
        return FlowReactor(self._queue, self.jobs, acted)

    def known(self, job: str) -> Job[Any, Any] | None:
        """Return the job of a name, if this program knows it."""
        return self._queue.jobs.get(job)

    def new_id(self) -> str:
        """Return an id for a new flow."""
        return self._queue.runtime.ids.new()

    def handle(self, flow_id: str, nodes: Sequence[FlowNode[Any]] = ()) -> FlowHandle:
        """Return the handle of a flow."""
        return FlowHandle(self, flow_id, nodes)

    # --- enqueuing

    async def prepare(self) -> None:
        """Make what flows need, once: their stream, its consumer, and the order by which workers learn of them."""
        if self._is_ready:
            return
        stream = await flows_stream(self._queue.jet, self.names)
        await flows_consumer(stream, self.names, self._queue.lease)
        await self._queue.backend.publish(self.names.order_subject("flows"), _encode(Order(flows=True)))
        self._is_ready = True

    @property
    def has_transactions(self) -> bool:
        """Whether a flow and its first jobs are stored in one transaction."""
        return self._queue.backend.planning.atomic_batches

    async def first_jobs(self, flow_id: str, specs: Sequence[NodeSpec]) -> list[Outgoing]:
        """Return the messages of the jobs of a new flow that come after no other."""
        if any(spec.options.is_timed for spec in specs):
            await self._queue.time.refresh(self.names.jobs)
        return self._messages.first_jobs(flow_id, specs)

    async def publish(self, log: Sequence[Outgoing], jobs: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Store a new flow and its first jobs: in one transaction, or the last of the log after its others.

        In the latter case, the reactor stores the jobs that are missing. Return those that this has stored.
        """
        backend = self._queue.backend
        if not self.has_transactions:
            await backend.publish_batch(log[:-1])
            await backend.publish_batch(log[-1:])
            return await self._publish_apart(jobs)
        try:
            await backend.publish_batch([*log, *jobs])
        except MessageTooLargeError:
            with suppress(WrongLastSequenceError):
                # Refused if the log is stored, so that it is a job that is too large.
                await backend.publish_batch(log)
            return await self._publish_apart(jobs)
        return jobs

    async def _publish_apart(self, jobs: Sequence[Outgoing]) -> list[Outgoing]:
        """Store first jobs of a flow one by one, and fail those that are too large; return those that were stored."""
        answers = await self._queue.backend.publish_apart(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, MessageTooLargeError) and self.has_transactions:
                outcome, event = self._messages.failed(job.data, f"its arguments are too large together: {answer}")
                with suppress(WrongLastSequenceError):
                    await self._queue.backend.publish_batch((outcome, event))
        return [
            job
            for job, answer in zip(jobs, answers, strict=True)
            if isinstance(answer, PubAck) and not answer.duplicate
        ]

    async def announce(self, specs: Sequence[NodeSpec], jobs: Sequence[Outgoing]) -> None:
        """Tell those who listen that the first jobs of a flow were stored, and workers whose they are."""
        if jobs:
            await ring(self._queue, [spec.options for spec in specs if not spec.after])
            await announce_messages(self._queue, jobs)

    # --- one flow

    async def status(self, flow_id: str) -> FlowInfo:
        """Return how far a flow is. Raises FlowNotFoundError."""
        return await self._info(flow_id, await self._progress(flow_id))

    async def cancel(self, flow_id: str, reason: str) -> bool:
        """Cancel a flow; return False if it had ended otherwise. Raises FlowNotFoundError."""
        progress = await self._progress(flow_id)
        if progress.state != "running" or progress.cancelled is not None:
            return progress.cancelled is not None
        await self._queue.backend.publish(self.names.flow_log(flow_id), encode_record(FlowCancel(reason=reason)))
        enqueued = [progress.job_ids[node] for node, state in enumerate(progress.states) if state == "enqueued"]
        # The reactor does it, too, but no worker may be there, and the next one must not start them first.
        for start in range(0, len(enqueued), _AT_ONCE):
            some = enqueued[start : start + _AT_ONCE]
            await asyncio.gather(*(self._withdraw(job_id, reason) for job_id in some))
        return True

    async def _withdraw(self, job_id: str, reason: str) -> None:
        with suppress(JobNotFoundError):
            await self.jobs.cancel(job_id, reason=why_withdrawn(reason))

    async def outcome(self, flow_id: str, limit: float | None) -> FlowInfo | None:
        """Wait until a flow has ended, for ``limit`` seconds at most; None if it has not ended by then."""
        deadline, after = Deadline(self._queue.clock, limit), 0
        while (progress := await self._progress(flow_id)).state == "running":
            after = max(after, progress.upto)
            subject = self.names.flow_state(flow_id)
            found = await first_of(await self._stream(flow_id), [subject], self._queue.clock, deadline.left, after)
            if found is None:
                return None
            after = found.delivered.seq
        return await self._info(flow_id, progress)

    async def _progress(self, flow_id: str) -> FlowProgress:
        progress = await self._log.present(await self._stream(flow_id), flow_id)
        if progress is None:
            self._log.forget(flow_id)
            raise FlowNotFoundError(self.queue_name, flow_id)
        return progress

    async def _stream(self, flow_id: str) -> Stream:
        try:
            return await self._queue.jet.stream(self.names.flows)
        except StreamNotFoundError:
            raise FlowNotFoundError(self.queue_name, flow_id) from None

    async def _info(self, flow_id: str, progress: FlowProgress) -> FlowInfo:
        states = await self._states(self.names.flow_state(flow_id))
        nodes = tuple(
            [
                FlowNodeInfo(
                    number=number,
                    job=spec.job,
                    state=progress.states[number],
                    id=progress.job_ids[number] if progress.states[number] != "waiting" else "",
                    after=spec.after,
                    added_by=None if spec.by < 0 else spec.by,
                    error=progress.errors.get(number, ""),
                )
                for number, spec in enumerate(progress.specs)
            ]
        )
        record = states.get(flow_id)
        return FlowInfo(
            id=flow_id,
            name=progress.name,
            state=progress.state,
            size=len(nodes),
            enqueued_at=progress.began_at,
            finished_at=record.at if record is not None and progress.state != "running" else 0,
            error=progress.error if progress.state != "running" else "",
            nodes=nodes,
        )

    # --- all of them

    async def listed(self, state: FlowState | None) -> AsyncGenerator[FlowInfo]:
        """Iterate over the flows, oldest first, without their jobs; only over those of a state, if given."""
        try:
            stream = await self._queue.jet.stream(self.names.flows)
        except StreamNotFoundError:
            return
        states = await self._states(self.names.flow_state("*"))
        async with aclosing(deliveries(stream, self.names.flow_begin("*"))) as begun:
            async for delivered in begun:
                begin = decode_event(delivered.data)
                assert isinstance(begin, FlowBegin), "nothing else is stored there"
                flow_id = self.names.flow_of(delivered.subject)
                record = states.get(flow_id, FlowRecord(state="running", upto=0))
                is_over = record.state != "running"
                if state in (None, record.state):
                    yield FlowInfo(
                        id=flow_id,
                        name=begin.name,
                        state=record.state,
                        size=max(begin.size, record.size),
                        enqueued_at=delivered.time_ns,
                        finished_at=record.at if is_over else 0,
                        error=record.error if is_over else "",
                    )

    async def _states(self, subject: str) -> dict[str, FlowRecord]:
        """Return how flows have ended; on a cluster an older record may be stored after a newer one."""
        found = dict[str, FlowRecord]()
        async with aclosing(deliveries(await self._queue.jet.stream(self.names.flows), subject)) as stored:
            async for delivered in stored:
                flow_id, record = self.names.flow_of(delivered.subject), decode_flow_record(delivered.data)
                if flow_id not in found or found[flow_id].upto <= record.upto:
                    found[flow_id] = record
        return found
