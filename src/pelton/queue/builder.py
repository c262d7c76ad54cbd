"""Describing jobs of a flow: the results that they pass on, what they come after, and what is stored of it.

A flow is its nodes, in parts of some hundred, the message that begins it, and then a log of what happens: a node has
ended, the flow is cancelled. The log has one order, from which everything else about a flow follows (``progress.py``).

**A running job adds jobs to its own flow.** The added jobs are stored with the attempt's completion, so they belong to
the flow if, and only if, that attempt completes. On a cluster they are stored before it: an attempt that was replaced
may leave nodes behind that nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec

from pelton.api import ConfigError, Outgoing
from pelton.queue.job import Job, JobCall, JobDefinition, encode_unknown
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.options import PLAIN, JobOptions, OptionFields, checked_job_name, job_options
from pelton.queue.model.states import NodeAgain, NodeEnd

if TYPE_CHECKING:
    from pelton.queue.job_message import JobCodec, ResultCodec
    from pelton.queue.run.context import JobContext

FlowState = Literal["running", "completed", "failed", "cancelled"]
FlowNodeState = Literal["waiting", "enqueued", "completed", "failed", "cancelled", "expired"]
OnFailure = Literal["cancel", "run"]

R_co = TypeVar("R_co", covariant=True)


class NodeSpec(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True):
    """A node of a flow as stored: a job to be enqueued when the nodes ``after`` which it comes have ended.

    ``args`` are the arguments that are known, as a JSON object, and ``results`` names the nodes, one or several, whose
    results are the others. ``wanted``: its own result is an argument of another node. ``by``: the node whose job has
    added it.
    """

    job: str
    args: msgspec.Raw
    results: dict[str, int | tuple[int, ...]] = {}
    after: tuple[int, ...] = ()
    on_failure: OnFailure = "cancel"
    options: JobOptions = PLAIN
    meta: dict[str, str] = {}
    wanted: bool = False
    by: int = -1


class FlowBegin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="begin"):
    """The first message of a flow: its nodes, or in how many ``parts`` they are stored, and how many they are.

    ``has_jobs``: the jobs of the nodes that come after no other are stored in the same transaction.
    """

    name: str = ""
    has_jobs: bool = False
    nodes: tuple[NodeSpec, ...] = ()
    parts: int = 0
    size: int


class NodeAdd(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="add"):
    """An attempt of the job ``id`` of the node ``by`` adds a node: its ``number`` th, as numbers in it count.

    It is one of the flow if that attempt completes.
    """

    by: int
    id: str
    attempt: int
    number: int
    node: NodeSpec


class FlowCancel(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="cancel"):
    """Somebody has cancelled the flow."""

    reason: str = ""


class FlowRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a flow has ended by the message ``upto``; ``running``: not any more, because a job was redriven."""

    state: FlowState
    upto: int
    at: int = 0
    error: str = ""
    size: int = 0


FlowEvent = FlowBegin | NodeEnd | NodeAgain | NodeAdd | FlowCancel

encode_record: Final = msgspec.json.Encoder().encode
_CANCEL: Final = encode_record(FlowCancel())[:-1]
decode_event: Final = msgspec.json.Decoder(FlowEvent).decode
decode_part: Final = msgspec.json.Decoder(tuple[NodeSpec, ...]).decode
decode_flow_record: Final = msgspec.json.Decoder(FlowRecord).decode


def is_cancel(event: bytes) -> bool:
    """Whether an event, encoded, cancels its flow."""
    return event.startswith(_CANCEL)


class FlowNode(Generic[R_co]):
    """A job of a flow, made by ``flow.add``; ``R_co`` is what its function returns. ``number`` counts from 0."""

    __slots__ = ("_flow_id", "codec", "job", "number", "results")

    def __init__(
        self, flow_id: str, number: int, job: str, results: ResultCodec | None, codec: JobCodec | None
    ) -> None:
        self._flow_id = flow_id
        # What encodes the result; None: JSON.
        self.codec: JobCodec | None = codec
        self.number: int = number
        self.job: str = job
        self.results: ResultCodec | None = results

    def __repr__(self) -> str:
        return f"<FlowNode {self.number} {self.job!r}>"

    @property
    def result(self) -> R_co:
        """What the job will return, to be passed to a later one: ``flow.add(parse, page.result)``.

        It has no value before the flow runs. A list of results is passed as a list.
        """
        return cast(R_co, FutureResult(self))

    def is_of(self, flow_id: str) -> bool:
        """Whether it is a node of that flow."""
        return self._flow_id == flow_id


class FutureResult:
    """Stands for the result of a node among the arguments of another one."""

    __slots__ = ("node",)

    def __init__(self, node: FlowNode[Any]) -> None:
        self.node: FlowNode[Any] = node

    def __repr__(self) -> str:
        return f"<the result of {self.node!r}>"


def nodes_in(value: object) -> FlowNode[Any] | tuple[FlowNode[Any], ...] | None:
    """Return the nodes whose results an argument is: one, or a list of them; None for a plain value.

    Raises ConfigError.
    """
    if isinstance(value, FutureResult):
        return value.node
    if isinstance(value, FlowNode):
        raise ConfigError(f"{value!r} is an argument of another job: give its result, node.result")
    if not isinstance(value, list | tuple) or not any(isinstance(one, FlowNode | FutureResult) for one in value):
        return None
    nodes = [one.node for one in value if isinstance(one, FutureResult)]
    if len(nodes) < len(value):
        raise ConfigError("an argument is a list of results and other values: give those in an argument of their own")
    return tuple(nodes)


def checked_nodes(what: str, flow_id: str, nodes: object) -> list[int]:
    """Return the numbers of nodes of a flow. Raises ConfigError."""
    if not isinstance(nodes, Sequence) or not all(isinstance(node, FlowNode) for node in nodes):
        raise ConfigError(f"{what}: after is {nodes!r:.80}; give a list of nodes, as flow.add returns them")
    for node in nodes:
        if not node.is_of(flow_id):
            raise ConfigError(f"{what}: {node!r} is a node of another flow")
    return [node.number for node in nodes]


# --- describing jobs of a flow: the results that they pass on, and what they come after

P = ParamSpec("P")
R = TypeVar("R")

_NOT_OF_NODES: Final = ("unique", "id", "idempotency_key", "replace")


class NodeOptionFields(OptionFields, total=False):
    """The options of a node: those of its job, and how it depends on others."""

    after: Sequence[FlowNode[Any]]
    on_failure: Literal["cancel", "run"]


class FlowBuilder:
    """Adds jobs to a flow. ``nodes_id`` identifies the new flow, or the running job, that owns the nodes."""

    def __init__(self, nodes_id: str, queue_name: str) -> None:
        self._nodes_id = nodes_id
        self._queue_name = queue_name
        self._nodes: list[FlowNode[Any]] = []

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
        numbers = checked_nodes(f"{self!r}", self._nodes_id, after)
        return FlowWithOptions(self, job_options(f"{self!r}", fields), numbers, on_failure)

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
        known, later = self._arguments(job, args, kwargs)
        call = self._call(job, known, options)
        codec = job.arguments.codec if isinstance(job, JobDefinition) else None
        results = {name: self._numbers(call.job, nodes, codec) for name, nodes in later.items()}
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
        node = FlowNode[Any](self._nodes_id, len(self._nodes), call.job, call.results, codec)
        self._take(spec)
        self._nodes.append(node)
        return node

    def _take(self, spec: NodeSpec) -> None:
        """Add a node. Raises ConfigError."""
        raise NotImplementedError

    def _find_job(self, job: str) -> Job[Any, Any] | None:
        """Return the job of a name, if this program knows it."""
        raise NotImplementedError

    def _arguments(
        self, job: JobDefinition[Any, Any] | str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[str, FlowNode[Any] | tuple[FlowNode[Any], ...]]]:
        if isinstance(job, str):
            job = self._find_job(job) or job
        if isinstance(job, JobDefinition):
            return job.arguments.encode_known(args, kwargs, nodes_in)
        name = checked_job_name(repr(self), job)
        later = {key: nodes for key, value in kwargs.items() if (nodes := nodes_in(value)) is not None}
        return encode_unknown(name, args, {key: kwargs[key] for key in kwargs if key not in later}), later

    def _call(self, job: JobDefinition[Any, Any] | str, args: bytes, options: JobOptions) -> JobCall:
        if isinstance(job, str):
            job = self._find_job(job) or job
        if not isinstance(job, JobDefinition):
            return JobCall(job, args, options)
        if isinstance(job, Job) and job.queue is not None and job.queue.name != self._queue_name:
            raise ConfigError(f"{self!r}: {job!r} belongs to another queue; all jobs of a flow are in one")
        call = job.call_of(args, options)
        return job.hooks.before_enqueue(call) if job.hooks.has_enqueue else call

    def _numbers(
        self, job: str, given: FlowNode[Any] | tuple[FlowNode[Any], ...], codec: object
    ) -> int | tuple[int, ...]:
        """Return the numbers of the nodes whose results an argument is. Raises ConfigError."""
        nodes = (given,) if isinstance(given, FlowNode) else given
        for node in nodes:
            if not node.is_of(self._nodes_id):
                raise ConfigError(f"{self!r}: {node!r} is a node of another flow")
            if node.codec is not codec:
                raise ConfigError(f"job {job!r}: {node!r} has another codec: results pass between jobs with the same")
        if codec is not None and not isinstance(given, FlowNode):
            raise ConfigError(f"job {job!r}: a list of results can't be an argument of a job with a codec")
        return given.number if isinstance(given, FlowNode) else tuple([node.number for node in nodes])


class FlowWithOptions:
    """A flow and the options of what is added to it; made by ``flow.options(...)``."""

    __slots__ = ("_after", "_flow", "_on_failure", "_options")

    def __init__(self, flow: FlowBuilder, options: JobOptions, after: Sequence[int], on_failure: OnFailure) -> None:
        self._flow = flow
        self._options = options
        self._after = after
        self._on_failure = on_failure

    @overload
    def add(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> FlowNode[R]: ...
    @overload
    def add(self, job: str, /, *args: Any, **kwargs: Any) -> FlowNode[Any]: ...

    def add(self, job: JobDefinition[Any, Any] | str, /, *args: Any, **kwargs: Any) -> FlowNode[Any]:
        """Add a job, as :meth:`FlowBuilder.add` does. Raises JobArgumentsError, ConfigError."""
        return self._flow.add_with(job, args, kwargs, self._options, self._after, self._on_failure)


class FlowExtension(FlowBuilder):
    """More jobs for the flow of the job that runs: ``pelton.FlowExtension(context).add(parse, page)``.

    They are of the flow when the job has completed: if it raises, or is tried again, nothing was added. They start
    after it, and the jobs that come after it wait for them, too. An argument may be the ``result`` of another node that
    was added here. Not for jobs in a process of their own. Raises ConfigError if the job is not of a flow.
    """

    def __init__(self, context: JobContext) -> None:
        if context.flow is None:
            raise ConfigError(f"job {context.id}: {context.job!r} is not of a flow here, so it can't add to one")
        super().__init__(f"{context.flow.flow}/{context.flow.node}/{context.token}", context.queue)
        self._context = context
        self._by = context.flow
        self._subject = QueueNames(context.queue).flow_log(context.flow.flow)

    def __repr__(self) -> str:
        return f"<FlowExtension of flow {self._by.flow} by job {self._context.id}: {len(self._nodes)} jobs>"

    def _take(self, spec: NodeSpec) -> None:
        context, tracing = self._context, self._context.tracing
        with nullcontext() if tracing is None else tracing.enqueuing(context.queue, [spec.job]) as span:
            if span is not None:
                spec = msgspec.structs.replace(spec, meta={**span.meta, **spec.meta})
        added = NodeAdd(by=self._by.node, id=context.id, attempt=context.attempt, number=len(self._nodes), node=spec)
        context.add_emitted([Outgoing(self._subject, encode_record(added))])

    def _find_job(self, job: str) -> Job[Any, Any] | None:
        return None
