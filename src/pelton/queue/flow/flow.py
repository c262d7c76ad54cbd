"""A new flow, and how it is put into its queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import msgspec

from pelton.api import ConfigError, Outgoing, WrongLastSequenceError, headers
from pelton.queue.define.job import Job
from pelton.queue.flow.builder import FlowBuilder
from pelton.queue.model.flow_records import FlowBegin, NodeSpec, encode_record

if TYPE_CHECKING:
    from pelton.queue.define.job import JobQueue
    from pelton.queue.enqueue.transaction import PublishFlow
    from pelton.queue.flow.flows import Flows
    from pelton.queue.flow.handle import FlowHandle

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
        """Have the messages published that put the flow into the queue, and its first jobs.

        The jobs are of the trace of who does it. Return what tells those who listen, once the messages are stored.
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
