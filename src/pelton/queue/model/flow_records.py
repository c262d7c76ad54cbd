"""What the stream of a queue's flows stores. Pure.

A flow is its nodes, in parts of some hundred, the message that begins it, and then a log of what happens: a node has
ended, the flow is cancelled. The log has one order, from which everything else about a flow follows (``progress.py``).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pelton.api import Outgoing
from pelton.queue.model.naming import CALLS, QueueNames
from pelton.queue.model.options import PLAIN, JobOptions
from pelton.queue.model.states import NOTHING, Ending, FlowPlace, Outcome

FlowState = Literal["running", "completed", "failed", "cancelled"]
FlowNodeState = Literal["waiting", "enqueued", "completed", "failed", "cancelled", "expired"]
OnFailure = Literal["cancel", "run"]

_LONGEST_ERROR: Final = 1024


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


class NodeEnd(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True, tag="end"):
    """The job of a node has ended, with an ``attempt``; ``id`` is the job's.

    ``result`` is kept if it is ``wanted`` by another node.
    """

    node: int
    id: str
    state: Ending
    result: msgspec.Raw = NOTHING
    wanted: bool = False
    error: str = ""
    attempt: int = 0


class NodeAgain(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="again"):
    """The dead letter of a node's job was redriven, as the job ``id``."""

    node: int
    id: str


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


def node_end(place: FlowPlace, outcome: Outcome) -> NodeEnd:
    """Return what the flow of a job keeps of its outcome."""
    return NodeEnd(
        node=place.node,
        id=outcome.id,
        state=outcome.state,
        result=outcome.result if place.wanted and outcome.state == "completed" else NOTHING,
        wanted=place.wanted,
        error=outcome.error[:_LONGEST_ERROR],
        attempt=outcome.attempt,
    )


def told_to_flow(names: QueueNames, place: FlowPlace, outcome: Outcome) -> Outgoing:
    """Return the message that is stored with the outcome of a job of a flow, or of a called one, or before it."""
    if (caller := place.caller) is not None:
        return Outgoing(
            QueueNames(caller[0]).memory_subject(caller[1], "signal", CALLS, outcome.id), encode_record(outcome)
        )
    return Outgoing(names.flow_told(place.flow, outcome.id), encode_record(node_end(place, outcome)))


def redriven_in_flow(names: QueueNames, place: FlowPlace, job_id: str) -> Outgoing:
    return Outgoing(names.flow_log(place.flow), encode_record(NodeAgain(node=place.node, id=job_id)))
