"""The flows of one queue: put into it, shown, waited for, cancelled; their handles, and the part of a queue's face."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args, overload

import msgspec

from pelton.api import (
    ConfigError,
    FlowNotFoundError,
    JobFailedError,
    JobNotFoundError,
    MessageTooLargeError,
    Outgoing,
    PubAck,
    StreamNotFoundError,
    WrongLastSequenceError,
    headers,
)
from pelton.queue.builder import (
    FlowBegin,
    FlowBuilder,
    FlowCancel,
    FlowNode,
    FlowNodeState,
    FlowRecord,
    FlowState,
    NodeSpec,
    decode_event,
    decode_flow_record,
    encode_record,
)
from pelton.queue.enqueuer import announce_messages, ring
from pelton.queue.job import Job, JobHandle
from pelton.queue.model.limits import Order
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import checked_text, seconds, valid_text
from pelton.queue.progress import FlowLog, FlowMessages
from pelton.queue.reactor import why_withdrawn
from pelton.queue.registry import DeclaresJobs
from pelton.queue.scan import deliveries
from pelton.queue.setup import flows_consumer, flows_stream
from pelton.queue.views import first_of
from pelton.runtime import Deadline, at_home

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from pelton.api.times import Seconds
    from pelton.jet import Stream, Streams
    from pelton.queue.enqueuer import Enqueuer
    from pelton.queue.job import JobLookup, JobQueue
    from pelton.queue.progress import FlowProgress
    from pelton.queue.registry import QueueContext
    from pelton.queue.transaction import PublishFlow

    # ``FlowHandle`` alone is one whose value may be anything.
    V_co = TypeVarWithDefault("V_co", covariant=True, default=Any)
else:
    V_co = TypeVar("V_co", covariant=True)

R = TypeVar("R")


class FlowNodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a flow: its ``number`` there, and its id as a job, which is empty while it is ``waiting``.

    ``after``: the numbers of the jobs that it waits for. ``error``: why it has not completed. ``added_by``: the number
    of the job that has added it as it ran.
    """

    number: int
    job: str
    state: FlowNodeState
    """`waiting` for others, `enqueued`, or how it ended."""
    id: str = ""
    after: tuple[int, ...] = ()
    error: str = ""
    added_by: int | None = None


class FlowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A flow of ``size`` jobs; times in wall nanoseconds, 0 if there is none. ``nodes`` is empty in lists of flows.

    It is ``completed`` if all its jobs are; ``error`` says why it is not.
    """

    id: str
    """The flow's id."""
    name: str
    """Its name, empty without one."""
    state: FlowState
    """`running`, `completed`, `failed` or `cancelled`."""
    size: int
    enqueued_at: int
    """When it was enqueued."""
    finished_at: int = 0
    """When the last of its jobs ended."""
    error: str = ""
    nodes: tuple[FlowNodeInfo, ...] = ()


class FlowHandle(Generic[V_co]):
    """A flow that was enqueued. ``V_co`` is what its last job returns, which you may declare: ``FlowHandle[int]``."""

    __slots__ = ("_flows", "_nodes", "id")

    def __init__(self, flows: Flows, flow_id: str, nodes: Sequence[FlowNode[Any]]) -> None:
        self._flows = flows
        # Empty if it was enqueued elsewhere.
        self._nodes = nodes
        self.id: str = flow_id

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id} of queue {self._flows.queue.name!r}>"

    async def status(self) -> FlowInfo:
        """Return how far the flow is, with all its jobs. Raises FlowNotFoundError."""
        return await self._flows.info(self.id, await self._flows.progress(self.id))

    async def cancel(self, *, reason: str = "") -> bool:
        """Cancel the flow: jobs that wait never start, those that were enqueued are cancelled as jobs are.

        ``reason`` is shown in its state. Returns False if the flow had ended otherwise. Raises FlowNotFoundError.
        """
        flows = self._flows
        progress = await flows.progress(self.id)
        if progress.state != "running" or progress.cancelled is not None:
            return progress.cancelled is not None
        await flows.queue.backend.publish(flows.names.flow_log(self.id), encode_record(FlowCancel(reason=reason)))
        enqueued = [progress.job_ids[node] for node, state in enumerate(progress.states) if state == "enqueued"]
        # The reactor does it, too, but no worker may be there, and the next one must not start them first.
        for start in range(0, len(enqueued), _AT_ONCE):
            some = enqueued[start : start + _AT_ONCE]
            await asyncio.gather(*(flows.withdraw(job_id, reason) for job_id in some))
        return True

    async def outcome(self, *, timeout: Seconds | None = None) -> FlowInfo:
        """Wait until all jobs have ended, and return how; ``timeout`` in seconds.

        Raises FlowNotFoundError, TimeoutError, ConfigError.
        """
        limit = None if timeout is None else seconds(f"flow {self.id}: timeout", timeout)
        flows = self._flows
        deadline, after = Deadline(flows.queue.clock, limit), 0
        while (progress := await flows.progress(self.id)).state == "running":
            after = max(after, progress.upto)
            subject = flows.names.flow_state(self.id)
            message = await first_of(await flows.stream(self.id), [subject], flows.queue.clock, deadline.left, after)
            if message is None:
                raise TimeoutError(f"{self!r} has not ended within {limit:g} s; it was not cancelled")
            after = message.delivered.seq
        return await flows.info(self.id, progress)

    @overload
    async def value(self, node: FlowNode[R], *, timeout: Seconds | None = None) -> R: ...
    @overload
    async def value(self, *, timeout: Seconds | None = None) -> V_co: ...

    async def value(self, node: FlowNode[Any] | None = None, *, timeout: Seconds | None = None) -> Any:
        """Wait until the flow has ended, and return what a job has returned.

        Without ``node``, the last one added, before the flow was enqueued.

        Raises JobFailedError if that job has not completed, TimeoutError after ``timeout`` seconds, FlowNotFoundError,
        ConfigError.
        """
        outcome = await self.outcome(timeout=timeout)
        last = sum(one.added_by is None for one in outcome.nodes) - 1
        number = last if node is None else self._check_node(node).number
        info = outcome.nodes[number]
        if info.state != "completed":
            raise JobFailedError(info.id, info.job, info.state, info.error)
        known = node or next((one for one in self._nodes if one.number == number), None)
        return await self._handle(info.id, known).value(timeout=timeout)

    async def job(self, node: FlowNode[R]) -> JobHandle[R]:
        """Return the handle of a node's job. Raises ConfigError while it waits, FlowNotFoundError."""
        info = (await self.status()).nodes[self._check_node(node).number]
        if not info.id:
            raise ConfigError(f"{self!r}: {node!r} is waiting and has no job yet")
        return self._handle(info.id, node)

    def _handle(self, job_id: str, node: FlowNode[Any] | None) -> JobHandle[Any]:
        read = node.results.decode if node is not None and node.results is not None else None
        return JobHandle(self._flows.jobs, self._flows.queue.name, job_id, False, read)

    def _check_node(self, node: FlowNode[Any]) -> FlowNode[Any]:
        if not isinstance(node, FlowNode) or not node.is_of(self.id):
            raise ConfigError(f"{self!r}: {node!r} is not one of its nodes")
        return node


_encode: Final = msgspec.json.Encoder().encode
_AT_ONCE: Final = 64


class Flows:
    """The flows of one queue. ``jobs`` finds and cancels its jobs."""

    def __init__(self, queue: QueueContext, jobs: JobLookup) -> None:
        self.queue = queue
        self.names: QueueNames = queue.names
        # Whether a flow and its first jobs are stored in one transaction.
        self.has_transactions: bool = queue.backend.planning.atomic_batches
        self._log = FlowLog(queue)
        self._messages = FlowMessages(queue)
        self._is_ready = False
        self.jobs = jobs

    # --- enqueuing

    async def prepare(self) -> None:
        """Make what flows need, once: their stream, its consumer, and the order by which workers learn of them."""
        if self._is_ready:
            return
        stream = await flows_stream(self.queue.jet, self.names)
        await flows_consumer(stream, self.names, self.queue.lease)
        await self.queue.backend.publish(self.names.order_subject("flows"), _encode(Order(flows=True)))
        self._is_ready = True

    async def first_jobs(self, flow_id: str, specs: Sequence[NodeSpec]) -> list[Outgoing]:
        """Return the messages of the jobs of a new flow that come after no other."""
        if any(spec.options.is_timed for spec in specs):
            await self.queue.time.refresh(self.names.jobs)
        return self._messages.first_jobs(flow_id, specs)

    async def publish(self, log: Sequence[Outgoing], jobs: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Store a new flow and its first jobs: in one transaction, or the last of the log after its others.

        In the latter case, the reactor stores the jobs that are missing. Return those that this has stored.
        """
        backend = self.queue.backend
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
        answers = await self.queue.backend.publish_apart(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, MessageTooLargeError) and self.has_transactions:
                outcome, event = self._messages.to_failed(job.data, f"its arguments are too large together: {answer}")
                with suppress(WrongLastSequenceError):
                    await self.queue.backend.publish_batch((outcome, event))
        return [
            job
            for job, answer in zip(jobs, answers, strict=True)
            if isinstance(answer, PubAck) and not answer.duplicate
        ]

    async def announce(self, specs: Sequence[NodeSpec], jobs: Sequence[Outgoing]) -> None:
        """Tell those who listen that the first jobs of a flow were stored, and workers whose they are."""
        if jobs:
            await ring(self.queue, [spec.options for spec in specs if not spec.after])
            await announce_messages(self.queue, jobs)

    # --- one flow

    async def withdraw(self, job_id: str, reason: str) -> None:
        """Cancel the job of a node, unless it is not stored."""
        with suppress(JobNotFoundError):
            await self.jobs.cancel(job_id, reason=why_withdrawn(reason))

    async def progress(self, flow_id: str) -> FlowProgress:
        """Return how far a flow is. Raises FlowNotFoundError."""
        progress = await self._log.present(await self.stream(flow_id), flow_id)
        if progress is None:
            self._log.forget(flow_id)
            raise FlowNotFoundError(self.queue.name, flow_id)
        return progress

    async def stream(self, flow_id: str) -> Stream:
        """Return the stream of the flows. Raises FlowNotFoundError."""
        try:
            return await self.queue.jet.stream(self.names.flows)
        except StreamNotFoundError:
            raise FlowNotFoundError(self.queue.name, flow_id) from None

    async def info(self, flow_id: str, progress: FlowProgress) -> FlowInfo:
        """Return how far a flow is, to be shown."""
        states = await self.records(self.names.flow_state(flow_id))
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

    async def records(self, subject: str) -> dict[str, FlowRecord]:
        """Return how flows have ended; on a cluster an older record may be stored after a newer one."""
        records = dict[str, FlowRecord]()
        async with aclosing(deliveries(await self.queue.jet.stream(self.names.flows), subject)) as stored:
            async for delivered in stored:
                flow_id, record = self.names.flow_of(delivered.subject), decode_flow_record(delivered.data)
                if flow_id not in records or records[flow_id].upto <= record.upto:
                    records[flow_id] = record
        return records


# --- a flow that is being described, and the part of a queue's face

_PART_BYTES: Final = 256 * 1024


class Flow(FlowBuilder):
    """Jobs that run after each other, with each other's results. Made by ``await queue.new_flow()``.

    ``add`` the jobs, and ``enqueue`` all of them together.
    """

    def __init__(self, queue: JobQueue, flows: Flows, name: str) -> None:
        self.id: str = flows.queue.runtime.ids.new()
        super().__init__(self.id, queue.name)
        self.name = name
        self.queue = queue
        self._flows = flows
        self._specs: list[NodeSpec] = []
        self._is_enqueued = False
        # Its first jobs, once they are stored.
        self._stored: Sequence[Outgoing] = ()

    def __repr__(self) -> str:
        return f"<Flow {self.name or self.id!r} of queue {self.queue.name!r}: {len(self._specs)} jobs>"

    async def enqueue(self) -> FlowHandle:
        """Put all jobs into the queue, together; returns when they are durable. Safe to repeat. Raises ConfigError."""
        announce = await self.put(self._publish)
        self._is_enqueued = True
        if (on_stored := self._flows.queue.probes.on_stored) is not None:
            await on_stored()
        await announce()
        return self.handle

    async def _publish(self, log: list[Outgoing], jobs: list[Outgoing]) -> None:
        try:
            self._stored = await self._flows.publish(log, jobs)
        except WrongLastSequenceError:
            # An earlier call has stored it.
            self._stored = ()

    async def put(self, publish: PublishFlow) -> Callable[[], Awaitable[None]]:
        """Publish the messages that put the flow and its first jobs into the queue.

        Its jobs join the caller's trace. Return a function that announces them; call it once the messages are stored.
        """
        tracing = self._flows.queue.backend.tracing
        if tracing is None or not self._specs:
            await self._put(publish)
            return partial(self._flows.announce, self._specs, self._stored)
        with tracing.enqueuing(self.queue.name, [spec.job for spec in self._specs]) as span:
            self._specs = [
                spec
                if spec.meta.keys() & span.meta.keys()
                else msgspec.structs.replace(spec, meta={**span.meta, **spec.meta})
                for spec in self._specs
            ]
            await self._put(publish)
            span.on_stored([self.id])
        return partial(self._flows.announce, self._specs, self._stored)

    async def _put(self, publish: PublishFlow) -> None:
        log = self.messages()
        self._stored = await self._flows.first_jobs(self.id, self._specs_to_store())
        await publish(log, self._stored)

    @property
    def handle(self) -> FlowHandle:
        """The handle of the flow, for when it is enqueued."""
        return FlowHandle(self._flows, self.id, self._nodes)

    def messages(self) -> list[Outgoing]:
        """Return the messages that put the flow into the queue, in order, without its jobs. Raises ConfigError."""
        if not self._specs:
            raise ConfigError(f"{self!r}: it has no jobs: add some with flow.add(job, ...)")
        names, size, parts = self._flows.names, len(self._specs), self._parts()
        begin = FlowBegin(name=self.name, has_jobs=self._flows.has_transactions, size=size)
        if len(parts) > 1:
            begin = msgspec.structs.replace(begin, parts=len(parts))
        else:
            begin = msgspec.structs.replace(begin, nodes=tuple(self._specs_to_store()))
        block = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"})
        last = Outgoing(names.flow_begin(self.id), encode_record(begin), block)
        if len(parts) == 1:
            return [last]
        return [*(Outgoing(names.flow_part(self.id, f"{n}"), part) for n, part in enumerate(parts)), last]

    def _take(self, spec: NodeSpec) -> None:
        if self._is_enqueued:
            raise ConfigError(f"{self!r}: it was enqueued; make another flow for more jobs")
        self._specs.append(spec)

    def _find_job(self, job: str) -> Job[Any, Any] | None:
        return self._flows.queue.jobs.get(job)

    def _specs_to_store(self) -> list[NodeSpec]:
        """Return the nodes, those marked whose result is an argument of another one."""
        wanted = set[int]()
        for spec in self._specs:
            for of in spec.results.values():
                wanted.update((of,) if isinstance(of, int) else of)
        return [
            msgspec.structs.replace(spec, wanted=True) if number in wanted else spec
            for number, spec in enumerate(self._specs)
        ]

    def _parts(self) -> list[bytes]:
        """Return the nodes, encoded, in parts of a size that every server takes."""
        parts: list[list[bytes]] = [[]]
        size = 0
        for spec in self._specs_to_store():
            encoded = encode_record(spec)
            if parts[-1] and size + len(encoded) > _PART_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(encoded)
            size += len(encoded)
        return [b"[" + b",".join(part) + b"]" for part in parts]


class QueueWithFlows(DeclaresJobs):
    """A queue with flows: jobs that run after each other, with each other's results."""

    jet: Streams
    name: str
    _enqueuer: Enqueuer
    _flows: Flows

    async def new_flow(self, name: str = "") -> Flow:
        """Return an empty flow: ``add`` jobs to it, and ``enqueue`` it. ``name`` is shown with it. Raises ConfigError.

        The first one makes what flows need, which can't be done inside a transaction.
        """
        valid_text(f"queue {self.name!r}: the name of a flow", name)
        await self._flows.prepare()
        return Flow(self, self._flows, name)

    def flow(self, flow_id: str) -> FlowHandle:
        """Return the handle of a flow that was enqueued, by its ``id``; whether it exists, its methods tell.

        Raises ConfigError.
        """
        checked = checked_text(f"queue {self.name!r}: the id of a flow", flow_id)
        if not (checked.isascii() and checked.isalnum()):
            raise ConfigError(f"queue {self.name!r}: {flow_id!r} is not the id of a flow: it is the handle's 'id'")
        return FlowHandle(self._flows, checked, ())

    @at_home
    async def flows(self, *, state: FlowState | None = None) -> AsyncIterator[FlowInfo]:
        """Iterate over the flows, oldest first, without their jobs; only over those of a state, if given.

        A flow that has ended is listed for as long as the history keeps outcomes. Raises ConfigError.
        """
        if state is not None and state not in get_args(FlowState):
            raise ConfigError(f"queue {self.name!r}: no flows are {state!r}; they are {', '.join(get_args(FlowState))}")
        names = self._flows.names
        try:
            stream = await self._flows.queue.jet.stream(names.flows)
        except StreamNotFoundError:
            return
        states = await self._flows.records(names.flow_state("*"))
        async with aclosing(deliveries(stream, names.flow_begin("*"))) as begun:
            async for delivered in begun:
                begin = decode_event(delivered.data)
                assert isinstance(begin, FlowBegin), "nothing else is stored there"
                flow_id = names.flow_of(delivered.subject)
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
