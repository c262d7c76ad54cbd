"""The handle of a flow, and how a flow is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

import msgspec

from pelton.api import ConfigError, JobFailedError
from pelton.queue.define.job import JobHandle
from pelton.queue.flow.builder import FlowNode
from pelton.queue.model.checks import seconds
from pelton.queue.model.flow_records import FlowNodeState, FlowState

if TYPE_CHECKING:
    from pelton.api.times import Seconds
    from pelton.queue.ports import JobLookup

R = TypeVar("R")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    # ``FlowHandle`` alone is one whose value may be anything.
    V_co = TypeVarWithDefault("V_co", covariant=True, default=Any)
else:
    V_co = TypeVar("V_co", covariant=True)


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


class FlowLookup(Protocol):
    """How the handle of a flow finds out what became of it, and cancels it."""

    jobs: JobLookup

    @property
    def queue_name(self) -> str:
        """The name of the queue."""
        ...

    async def status(self, flow_id: str) -> FlowInfo:
        """Return how far a flow is. Raises FlowNotFoundError."""
        ...

    async def cancel(self, flow_id: str, reason: str) -> bool:
        """Cancel a flow; return False if it had ended otherwise. Raises FlowNotFoundError."""
        ...

    async def outcome(self, flow_id: str, limit: float | None) -> FlowInfo | None:
        """Wait until a flow has ended, for ``limit`` seconds at most; None if it has not ended by then."""
        ...


class FlowHandle(Generic[V_co]):
    """A flow that was enqueued. ``V_co`` is what its last job returns, which you may declare: ``FlowHandle[int]``."""

    __slots__ = ("_flows", "_nodes", "id")

    def __init__(self, flows: FlowLookup, flow_id: str, nodes: Sequence[FlowNode[Any]]) -> None:
        self._flows = flows
        # Empty if it was enqueued elsewhere.
        self._nodes = nodes
        self.id: str = flow_id

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id} of queue {self._flows.queue_name!r}>"

    async def status(self) -> FlowInfo:
        """Return how far the flow is, with all its jobs. Raises FlowNotFoundError."""
        return await self._flows.status(self.id)

    async def cancel(self, *, reason: str = "") -> bool:
        """Cancel the flow: jobs that wait never start, those that were enqueued are cancelled as jobs are.

        ``reason`` is shown in its state. Returns False if the flow had ended otherwise. Raises FlowNotFoundError.
        """
        return await self._flows.cancel(self.id, reason)

    async def outcome(self, *, timeout: Seconds | None = None) -> FlowInfo:
        """Wait until all jobs have ended, and return how; ``timeout`` in seconds.

        Raises FlowNotFoundError, TimeoutError, ConfigError.
        """
        limit = None if timeout is None else seconds(f"flow {self.id}: timeout", timeout)
        found = await self._flows.outcome(self.id, limit)
        if found is None:
            raise TimeoutError(f"{self!r} has not ended within {limit:g} s; it was not cancelled")
        return found

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
        number = last if node is None else self._checked(node).number
        info = outcome.nodes[number]
        if info.state != "completed":
            raise JobFailedError(info.id, info.job, info.state, info.error)
        known = node or next((one for one in self._nodes if one.number == number), None)
        return await self._handle(info.id, known).value(timeout=timeout)

    async def job(self, node: FlowNode[R]) -> JobHandle[R]:
        """Return the handle of a node's job. Raises ConfigError while it waits, FlowNotFoundError."""
        info = (await self.status()).nodes[self._checked(node).number]
        if not info.id:
            raise ConfigError(f"{self!r}: {node!r} is waiting and has no job yet")
        return self._handle(info.id, node)

    def _handle(self, job_id: str, node: FlowNode[Any] | None) -> JobHandle[Any]:
        read = node.results.decode if node is not None and node.results is not None else None
        return JobHandle(self._flows.jobs, self._flows.queue_name, job_id, False, read)

    def _checked(self, node: FlowNode[Any]) -> FlowNode[Any]:
        if not isinstance(node, FlowNode) or not node.is_of(self.id):
            raise ConfigError(f"{self!r}: {node!r} is not one of its nodes")
        return node
