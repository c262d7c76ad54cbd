"""Describing a flow: jobs, the results that they pass on, and what they come after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, Unpack, overload

import msgspec

from pelton.api import ConfigError, JobArgumentsError, Outgoing, WrongLastSequenceError, headers
from pelton.queue.define.job import Job, JobCall, JobDefinition
from pelton.queue.flow.nodes import FlowNode, checked_nodes, nodes_in
from pelton.queue.model.checks import checked_text
from pelton.queue.model.flow_records import FlowBegin, NodeSpec, OnFailure, encode_record
from pelton.queue.model.options import PLAIN, JobOptions, OptionFields, job_options

if TYPE_CHECKING:
    from pelton.queue.define.job import JobQueue
    from pelton.queue.flow.flows import Flows
    from pelton.queue.flow.handle import FlowHandle

P = ParamSpec("P")
R = TypeVar("R")

_PART_BYTES: Final = 256 * 1024
_NOT_OF_NODES: Final = ("unique", "id", "idempotency_key", "replace")


class NodeOptionFields(OptionFields, total=False):
    """The options of a node: those of its job, and how it depends on others."""

    after: Sequence[FlowNode[Any]]
    on_failure: Literal["cancel", "run"]


class Flow:
    """Jobs that run after each other, with each other's results. Made by ``await queue.new_flow()``.

    ``add`` the jobs, and ``enqueue`` all of them together.
    """

    def __init__(self, queue: JobQueue, flows: Flows, name: str) -> None:
        self.id: str = flows.new_id()
        self.name = name
        self.queue = queue
        self._flows = flows
        self._specs: list[NodeSpec] = []
        self._nodes: list[FlowNode[Any]] = []
        self._is_enqueued = False

    def __repr__(self) -> str:
        return f"<Flow {self.name or self.id!r} of queue {self.queue.name!r}: {len(self._specs)} jobs>"

    @overload
    def add(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> FlowNode[R]: ...
    @overload
    def add(self, job: str, /, *args: Any, **kwargs: Any) -> FlowNode[Any]: ...

    def add(self, job: JobDefinition[Any, Any] | str, /, *args: Any, **kwargs: Any) -> FlowNode[Any]:
        """Add a job, which is enqueued when all jobs have completed whose results are arguments of it.

        An argument may be ``node.result``, or a list of such; the others are checked now. ``job`` may be the name of a
        job that other programs know. Options are given with :meth:`options`. Raises JobArgumentsError, ConfigError.
        """
        return self.add_with(job, args, kwargs, PLAIN, (), "cancel")

    def options(self, **options: Unpack[NodeOptionFields]) -> FlowWithOptions:
        """Return the flow with options for what is added: ``flow.options(after=[a, b]).add(send)``.

        ``after``: nodes that it also waits for, without their results. ``on_failure="run"``: start it when they have
        ended, even if one has not completed; its result is None then. The others are those of `JobOptions`, except
        those that make a job unique; a ``delay`` counts from when the job would start. Raises ConfigError.
        """
        fields: dict[str, Any] = dict(options)
        after, on_failure = fields.pop("after", ()), fields.pop("on_failure", "cancel")
        if on_failure not in ("cancel", "run"):
            raise ConfigError(f"{self!r}: on_failure is {on_failure!r}; it must be 'cancel' or 'run'")
        for name in _NOT_OF_NODES:
            if fields.get(name):
                raise ConfigError(f"{self!r}: {name} is not for jobs of a flow, which are enqueued once as they are")
        numbers = checked_nodes(f"{self!r}", self.id, after)
        return FlowWithOptions(self, job_options(f"{self!r}", fields), numbers, on_failure)

    async def enqueue(self) -> FlowHandle:
        """Put all jobs into the queue, together; returns when they are durable. Safe to repeat. Raises ConfigError."""
        await self.put(self._publish)
        self._is_enqueued = True
        await self._flows.stored()
        return self.handle

    async def _publish(self, messages: Sequence[Outgoing]) -> None:
        # If it is refused, an earlier call has stored it.
        with suppress(WrongLastSequenceError):
            await self._flows.publish(messages)

    async def put(self, publish: Callable[[list[Outgoing]], Awaitable[object]]) -> None:
        """Have the messages published that put the flow into the queue; its jobs are of the trace of who does it."""
        tracing = self._flows.tracing
        if tracing is None or not self._specs:
            await publish(self.messages())
            return
        with tracing.enqueuing(self.queue.name, [spec.job for spec in self._specs]) as span:
            self._specs = [
                spec
                if spec.meta.keys() & span.meta.keys()
                else msgspec.structs.replace(spec, meta={**span.meta, **spec.meta})
                for spec in self._specs
            ]
            await publish(self.messages())
            span.stored([self.id])

    @property
    def handle(self) -> FlowHandle:
        """The handle of the flow, for when it is enqueued."""
        return self._flows.handle(self.id, self._nodes)

    def messages(self) -> list[Outgoing]:
        """Return the messages that put the flow into the queue, in order. Raises ConfigError."""
        if not self._specs:
            raise ConfigError(f"{self!r}: it has no jobs: add some with flow.add(job, ...)")
        names, size, parts = self._flows.names, len(self._specs), self._parts()
        if len(parts) > 1:
            begin = FlowBegin(name=self.name, parts=len(parts), size=size)
        else:
            begin = FlowBegin(name=self.name, nodes=tuple(self._wanted()), size=size)
        block = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"})
        last = Outgoing(names.flow_begin(self.id), encode_record(begin), block)
        if len(parts) == 1:
            return [last]
        return [*(Outgoing(names.flow_part(self.id, f"{n}"), part) for n, part in enumerate(parts)), last]

    def add_with(
        self,
        job: JobDefinition[Any, Any] | str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        options: JobOptions,
        after: Sequence[int],
        on_failure: OnFailure,
    ) -> FlowNode[Any]:
        """Add a job with options. Raises JobArgumentsError, ConfigError."""
        if self._is_enqueued:
            raise ConfigError(f"{self!r}: it was enqueued; make another flow for more jobs")
        known, later = self._arguments(job, args, kwargs)
        call = self._call(job, known, options)
        codec = job.codec if isinstance(job, JobDefinition) else None
        results = {name: self._numbers(call.job, found, codec) for name, found in later.items()}
        before = {*after, *(one for of in results.values() for one in ((of,) if isinstance(of, int) else of))}
        spec = NodeSpec(
            job=call.job,
            args=msgspec.Raw(call.args),
            results=results,
            after=tuple(sorted(before)),
            on_failure=on_failure,
            options=call.options,
            meta=call.meta,
        )
        node = FlowNode[Any](self.id, len(self._specs), call.job, call.results, codec)
        self._specs.append(spec)
        self._nodes.append(node)
        return node

    def _arguments(
        self, job: JobDefinition[Any, Any] | str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[str, FlowNode[Any] | tuple[FlowNode[Any], ...]]]:
        if isinstance(job, str):
            job = self._flows.known(job) or job
        if isinstance(job, JobDefinition):
            return job.encode_known(args, kwargs, nodes_in)
        name = checked_text(f"{self!r}: a job's name", job)
        if args:
            raise JobArgumentsError(
                name, "this program does not know the job's parameters: give its arguments by name (car='car1')"
            )
        later = {key: found for key, value in kwargs.items() if (found := nodes_in(value)) is not None}
        try:
            return msgspec.json.encode({key: kwargs[key] for key in kwargs if key not in later}), later
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise JobArgumentsError(name, str(error)) from None

    def _call(self, job: JobDefinition[Any, Any] | str, args: bytes, options: JobOptions) -> JobCall:
        if isinstance(job, str):
            job = self._flows.known(job) or job
        if not isinstance(job, JobDefinition):
            return JobCall(job, args, options)
        if isinstance(job, Job) and job.queue is not None and job.queue.name != self.queue.name:
            raise ConfigError(f"{self!r}: {job!r} belongs to another queue; all jobs of a flow are in one")
        call = job.call_of(args, options)
        return job.hooks.before_enqueue(call) if job.hooks.has_enqueue else call

    def _numbers(
        self, job: str, found: FlowNode[Any] | tuple[FlowNode[Any], ...], codec: object
    ) -> int | tuple[int, ...]:
        """Return the numbers of the nodes whose results an argument is. Raises ConfigError."""
        nodes = (found,) if isinstance(found, FlowNode) else found
        for node in nodes:
            if not node.is_of(self.id):
                raise ConfigError(f"{self!r}: {node!r} is a node of another flow")
            if node.codec is not codec:
                raise ConfigError(f"job {job!r}: {node!r} has another codec: results pass between jobs with the same")
        if codec is not None and not isinstance(found, FlowNode):
            raise ConfigError(f"job {job!r}: a list of results can't be an argument of a job with a codec")
        return found.number if isinstance(found, FlowNode) else tuple([node.number for node in nodes])

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


class FlowWithOptions:
    """A flow and the options of what is added to it; made by ``flow.options(...)``."""

    __slots__ = ("_after", "_flow", "_on_failure", "_options")

    def __init__(self, flow: Flow, options: JobOptions, after: Sequence[int], on_failure: OnFailure) -> None:
        self._flow = flow
        self._options = options
        self._after = after
        self._on_failure = on_failure

    @overload
    def add(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> FlowNode[R]: ...
    @overload
    def add(self, job: str, /, *args: Any, **kwargs: Any) -> FlowNode[Any]: ...

    def add(self, job: JobDefinition[Any, Any] | str, /, *args: Any, **kwargs: Any) -> FlowNode[Any]:
        """Add a job, as :meth:`Flow.add` does. Raises JobArgumentsError, ConfigError."""
        return self._flow.add_with(job, args, kwargs, self._options, self._after, self._on_failure)
