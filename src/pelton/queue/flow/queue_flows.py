"""The part of a queue's face that is about flows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, get_args

import msgspec

from pelton.api import ConfigError, Outgoing, WrongLastSequenceError, headers
from pelton.queue.define.job import Job
from pelton.queue.define.registry import DeclaresJobs
from pelton.queue.flow.builder import FlowBuilder
from pelton.queue.flow.handle import FlowHandle, FlowInfo
from pelton.queue.model.checks import checked_text, valid_text
from pelton.queue.model.flow_records import FlowBegin, FlowState, NodeSpec, encode_record
from pelton.runtime import at_home

if TYPE_CHECKING:
    from pelton.queue.define.job import JobQueue
    from pelton.queue.enqueue.transaction import PublishFlow
    from pelton.queue.flow.flows import Flows

P = ParamSpec("P")
R = TypeVar("R")

_PART_BYTES: Final = 256 * 1024


class Flow(FlowBuilder):
    """Jobs that run after each other, with each other's results. Made by ``await queue.new_flow()``.

    ``add`` the jobs, and ``enqueue`` all of them together.
    """

    def __init__(self, queue: JobQueue, flows: Flows, name: str) -> None:
        self.id: str = flows.new_id()
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
        await self._flows.stored()
        await announce()
        return self.handle

    async def _publish(self, log: list[Outgoing], jobs: list[Outgoing]) -> None:
        try:
            self._stored = await self._flows.publish(log, jobs)
        except WrongLastSequenceError:
            # An earlier call has stored it.
            self._stored = ()

    async def _announce(self) -> None:
        await self._flows.announce(self._specs, self._stored)

    async def put(self, publish: PublishFlow) -> Callable[[], Awaitable[None]]:
        """Publish the messages that put the flow and its first jobs into the queue.

        Its jobs join the caller's trace. Return a function that announces them; call it once the messages are stored.
        """
        tracing = self._flows.tracing
        if tracing is None or not self._specs:
            await self._put(publish)
            return self._announce
        with tracing.enqueuing(self.queue.name, [spec.job for spec in self._specs]) as span:
            self._specs = [
                spec
                if spec.meta.keys() & span.meta.keys()
                else msgspec.structs.replace(spec, meta={**span.meta, **spec.meta})
                for spec in self._specs
            ]
            await self._put(publish)
            span.stored([self.id])
        return self._announce

    async def _put(self, publish: PublishFlow) -> None:
        log = self.messages()
        self._stored = await self._flows.first_jobs(self.id, self._wanted())
        await publish(log, self._stored)

    @property
    def handle(self) -> FlowHandle:
        """The handle of the flow, for when it is enqueued."""
        return self._flows.handle(self.id, self._nodes)

    def messages(self) -> list[Outgoing]:
        """Return the messages that put the flow into the queue, in order, without its jobs. Raises ConfigError."""
        if not self._specs:
            raise ConfigError(f"{self!r}: it has no jobs: add some with flow.add(job, ...)")
        names, size, parts = self._flows.names, len(self._specs), self._parts()
        begin = FlowBegin(name=self.name, has_jobs=self._flows.has_transactions, size=size)
        if len(parts) > 1:
            begin = msgspec.structs.replace(begin, parts=len(parts))
        else:
            begin = msgspec.structs.replace(begin, nodes=tuple(self._wanted()))
        block = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"})
        last = Outgoing(names.flow_begin(self.id), encode_record(begin), block)
        if len(parts) == 1:
            return [last]
        return [*(Outgoing(names.flow_part(self.id, f"{n}"), part) for n, part in enumerate(parts)), last]

    def _take(self, spec: NodeSpec) -> None:
        if self._is_enqueued:
            raise ConfigError(f"{self!r}: it was enqueued; make another flow for more jobs")
        self._specs.append(spec)

    def _known(self, job: str) -> Job[Any, Any] | None:
        return self._flows.known(job)

    def _wanted(self) -> list[NodeSpec]:
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
        for spec in self._wanted():
            encoded = encode_record(spec)
            if parts[-1] and size + len(encoded) > _PART_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(encoded)
            size += len(encoded)
        return [b"[" + b",".join(part) + b"]" for part in parts]


class QueueWithFlows(DeclaresJobs):
    """A queue with flows: jobs that run after each other, with each other's results."""

    name: str
    _flows: Flows

    def _as_job_queue(self) -> JobQueue:
        """Return the queue itself."""
        raise NotImplementedError

    async def new_flow(self, name: str = "") -> Flow:
        """Return an empty flow: ``add`` jobs to it, and ``enqueue`` it. ``name`` is shown with it. Raises ConfigError.

        The first one makes what flows need, which can't be done inside a transaction.
        """
        valid_text(f"queue {self.name!r}: the name of a flow", name)
        await self._flows.prepare()
        return Flow(self._as_job_queue(), self._flows, name)

    def flow(self, flow_id: str) -> FlowHandle:
        """Return the handle of a flow that was enqueued, by its ``id``; whether it exists, its methods tell.

        Raises ConfigError.
        """
        checked = checked_text(f"queue {self.name!r}: the id of a flow", flow_id)
        if not (checked.isascii() and checked.isalnum()):
            raise ConfigError(f"queue {self.name!r}: {flow_id!r} is not the id of a flow: it is the handle's 'id'")
        return self._flows.handle(checked)

    @at_home
    async def flows(self, *, state: FlowState | None = None) -> AsyncIterator[FlowInfo]:
        """Iterate over the flows, oldest first, without their jobs; only over those of a state, if given.

        A flow that has ended is listed for as long as the history keeps outcomes. Raises ConfigError.
        """
        if state is not None and state not in get_args(FlowState):
            raise ConfigError(f"queue {self.name!r}: no flows are {state!r}; they are {', '.join(get_args(FlowState))}")
        async with aclosing(self._flows.listed(state)) as found:
            async for info in found:
                yield info
