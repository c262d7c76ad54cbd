"""The nodes of a flow, as a program names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pelton.api import ConfigError

if TYPE_CHECKING:
    from pelton.queue.define.codec import ResultCodec
    from pelton.queue.define.job_codec import JobCodec

R_co = TypeVar("R_co", covariant=True)


class FlowNode(Generic[R_co]):
    """A job of a flow, made by ``flow.add``; ``R_co`` is what its function returns. ``number`` counts from 0."""

    __slots__ = ("_codec", "_flow_id", "job", "number", "results")

    def __init__(
        self, flow_id: str, number: int, job: str, results: ResultCodec | None, codec: JobCodec | None
    ) -> None:
        self._flow_id = flow_id
        self._codec = codec
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

    @property
    def codec(self) -> JobCodec | None:
        """What encodes the result; None: JSON."""
        return self._codec

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
    found = [one.node for one in value if isinstance(one, FutureResult)]
    if len(found) < len(value):
        raise ConfigError("an argument is a list of results and other values: give those in an argument of their own")
    return tuple(found)


def checked_nodes(what: str, flow_id: str, nodes: object) -> list[int]:
    """Return the numbers of nodes of a flow. Raises ConfigError."""
    if not isinstance(nodes, Sequence) or not all(isinstance(node, FlowNode) for node in nodes):
        raise ConfigError(f"{what}: after is {nodes!r:.80}; give a list of nodes, as flow.add returns them")
    for node in nodes:
        if not node.is_of(flow_id):
            raise ConfigError(f"{what}: {node!r} is a node of another flow")
    return [node.number for node in nodes]
