"""What becomes of a flow: from the events of its log to what is enqueued, and how it ends. Pure.

A node has one of these states; what its job is doing meanwhile, the queue says::

    waiting   -> enqueued    all nodes that it comes after have completed (``on_failure="run"``: have ended)
    waiting   -> cancelled   one of them has not completed, or the flow was cancelled: it never starts
    enqueued  -> completed, failed, cancelled, expired: how its job ended
    failed    -> enqueued    its dead letter was redriven
    cancelled -> waiting     a node that it was cancelled for was redriven

A job that completes may add nodes after its own; those that came after it wait for these, too.

Every change follows from an event of the log and those before it, so whoever applies an event, however often, finds the
same. Each node counts the nodes that it still waits for, so an event costs as much as its node has dependents, and a
whole flow as much as it has edges.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pelton.api import Delivered, Outgoing
from pelton.api.tracing import as_first
from pelton.jet.stream import last_of, next_of
from pelton.queue.builder import (
    FlowBegin,
    FlowCancel,
    FlowEvent,
    FlowNodeState,
    FlowRecord,
    FlowState,
    NodeAdd,
    NodeSpec,
    decode_event,
    decode_part,
    encode_record,
)
from pelton.queue.job_message import JobMessage, flow_place
from pelton.queue.model.naming import key_part
from pelton.queue.model.options import JobOptions
from pelton.queue.model.states import NOTHING, FlowPlace, NodeAgain, NodeEnd, decode_envelope, outcome_without_worker
from pelton.queue.scan import deliveries

if TYPE_CHECKING:
    from pelton.jet import Stream
    from pelton.queue.model.states import Ending
    from pelton.queue.registry import QueueContext

_ENDED: Final[frozenset[FlowNodeState]] = frozenset({"completed", "failed", "cancelled", "expired"})
_SHOWN: Final = 200

JobIdOf = Callable[[int, int, JobOptions], str]
"""Returns the id of a node's job, from the node, its generation and its options."""


class CancelledNode(NamedTuple):
    """A node that never starts, the id that its job would have had, and why."""

    node: int
    id: str
    reason: str


class FlowStep(NamedTuple):
    """What follows from one event.

    ``enqueue`` names nodes, ``withdraw`` jobs that are to be cancelled, ``cancelled`` the nodes that never start.
    ``ends``: how the flow has ended by this event; ``running``: it had ended, and goes on.
    """

    enqueue: Sequence[int] = ()
    cancelled: Sequence[CancelledNode] = ()
    withdraw: Sequence[str] = ()
    ends: FlowState | None = None


_NOTHING: Final = FlowStep()


class FlowProgress:
    """How far one flow is. ``upto`` is the sequence of the last event that was applied, and is the caller's."""

    left: int

    def __init__(self, specs: Sequence[NodeSpec], job_id_of: JobIdOf, name: str = "") -> None:
        size = len(specs)
        self.specs: list[NodeSpec] = list(specs)
        self.name = name
        self.upto = 0
        self.began_at = 0
        self.states: list[FlowNodeState] = ["waiting"] * size
        self.generations: list[int] = [0] * size
        self.job_ids: list[str] = [""] * size
        self.results: dict[int, msgspec.Raw] = {}
        self.errors: dict[int, str] = {}
        self.cancelled: str | None = None
        self.left = size
        self._job_id_of = job_id_of
        self._dependents: list[list[int]] = [[] for _ in specs]
        # How many of the nodes that one comes after have not ended, and have ended so that it can't start.
        self._open = [len(spec.after) for spec in specs]
        self._bad = [0] * size
        # Nodes that were cancelled without a job.
        self._skipped: set[int] = set()
        # What attempts that have not ended yet want to add, by job and attempt.
        self._added: dict[tuple[str, int], dict[int, NodeSpec]] = {}
        # Jobs that were redriven before their flow was told of their end.
        self._replaced: set[str] = set()
        for node, spec in enumerate(specs):
            for before in spec.after:
                self._dependents[before].append(node)

    @property
    def state(self) -> FlowState:
        if self.left:
            return "running"
        if not self.errors:
            return "completed"
        is_failed = any(self.states[node] in ("failed", "expired") for node in self.errors)
        return "failed" if is_failed and self.cancelled is None else "cancelled"

    @property
    def error(self) -> str:
        """Why the flow has not completed: the error of the first node that failed, or was cancelled."""
        if not self.errors:
            return ""
        if self.cancelled is not None:
            return self._why_cancelled()
        causes = [node for node in self.errors if node not in self._skipped]
        return self._describe(min(causes)) if causes else ""

    def apply(self, event: FlowEvent) -> FlowStep:
        """Apply the next event of the log."""
        had_ended = not self.left
        if isinstance(event, FlowBegin):
            step = self._react([node for node, waits in enumerate(self._open) if not waits])
        elif isinstance(event, FlowCancel):
            step = self._cancel(event.reason)
        elif isinstance(event, NodeAgain):
            step = self._again(event.node, event.id)
        elif isinstance(event, NodeAdd):
            self._added.setdefault((event.id, event.attempt), {})[event.number] = event.node
            return _NOTHING
        else:
            step = self._end(event)
        if step is _NOTHING:
            return step
        if not self.left:
            return step._replace(ends=self.state)
        return step._replace(ends="running") if had_ended else step

    def arguments(self, node: int) -> bytes:
        """Return the arguments of a node's job as JSON; the result of a node that has not completed is null."""
        spec = self.specs[node]
        if not spec.results:
            return bytes(spec.args)
        arguments = msgspec.json.decode(spec.args, type=dict[str, msgspec.Raw])
        for name, of in spec.results.items():
            if isinstance(of, int):
                arguments[name] = self.results.get(of, NOTHING)
            else:
                results = b",".join([bytes(self.results.get(one, NOTHING)) for one in of])
                arguments[name] = msgspec.Raw(b"[" + results + b"]")
        return msgspec.json.encode(arguments)

    # --- events

    def _end(self, event: NodeEnd) -> FlowStep:
        node = event.node
        if not 0 <= node < len(self.specs) or node in self._skipped or event.id in self._replaced:
            return _NOTHING
        present = self.states[node]
        if present in ("waiting", "completed") or (present in _ENDED and event.id == self.job_ids[node]):
            # It was told twice, or is not of this flow.
            return _NOTHING
        is_good = event.state == "completed"
        added = self._add_nodes(node, self._added.pop((event.id, event.attempt), {})) if is_good else ()
        self.states[node], self.job_ids[node] = event.state, event.id
        if is_good:
            self.errors.pop(node, None)
            if self.specs[node].wanted:
                self.results[node] = event.result
        else:
            self.errors[node] = event.error
        if present == "enqueued":
            self.left -= 1
            return self._react([*added, *self._passed_on(node, opened=-1, bad=0 if is_good else 1)])
        return self._react([*added, *self._passed_on(node, opened=0, bad=-1 if is_good else 0)])

    def _add_nodes(self, by: int, added: Mapping[int, NodeSpec]) -> Sequence[int]:
        """Add nodes after one that completes; those that come after it wait for them, too. Return their numbers."""
        first = len(self.specs)
        numbers = range(first, first + len(added))
        for number, (_, spec) in zip(numbers, sorted(added.items()), strict=True):
            results = {name: _shift(of, first) for name, of in spec.results.items()}
            before = [first + one for one in spec.after]
            self.specs.append(msgspec.structs.replace(spec, after=(by, *before), results=results, by=by))
            self.states.append("waiting")
            self.generations.append(0)
            self.job_ids.append("")
            self._dependents.append([])
            # The one that has added it has completed, and never takes that back.
            self._open.append(len(before))
            self._bad.append(0)
            for one in before:
                self._dependents[one].append(number)
            for of in results.values():
                for one in (of,) if isinstance(of, int) else of:
                    self.specs[one] = msgspec.structs.replace(self.specs[one], wanted=True)
        self.left += len(added)
        last = [number for number in numbers if not self._dependents[number]]
        for after in self._dependents[by]:
            if self.states[after] == "waiting" or after in self._skipped:
                self.specs[after] = msgspec.structs.replace(self.specs[after], after=(*self.specs[after].after, *last))
                self._open[after] += len(last)
                for number in last:
                    self._dependents[number].append(after)
        return numbers

    def _again(self, node: int, job_id: str) -> FlowStep:
        if not 0 <= node < len(self.specs) or node in self._skipped or job_id == self.job_ids[node]:
            # What is told late: the job has ended by now.
            return _NOTHING
        present, before = self.states[node], self.job_ids[node]
        if present in ("waiting", "completed"):
            return _NOTHING
        self.states[node], self.job_ids[node] = "enqueued", job_id
        self._replaced.add(before)
        if present == "enqueued":
            return _NOTHING
        del self.errors[node]
        self.left += 1
        return self._react(self._passed_on(node, opened=1, bad=-1))

    def _cancel(self, reason: str) -> FlowStep:
        if self.cancelled is not None or not self.left:
            return _NOTHING
        self.cancelled = reason
        withdraw = [self.job_ids[node] for node, state in enumerate(self.states) if state == "enqueued"]
        step = self._react([node for node, state in enumerate(self.states) if state == "waiting"])
        return step._replace(withdraw=withdraw)

    # --- what follows

    def _passed_on(self, node: int, *, opened: int, bad: int) -> list[int]:
        """Tell the nodes that come after one that it has ended, or not any more; return them."""
        for after in self._dependents[node]:
            self._open[after] += opened
            if self.specs[after].on_failure == "cancel":
                self._bad[after] += bad
        return self._dependents[node]

    def _react(self, nodes: Sequence[int]) -> FlowStep:
        """Look at nodes whose counts have changed, and at all that follows from them."""
        enqueue: list[int] = []
        cancelled: list[CancelledNode] = []
        todo = list(reversed(nodes))
        while todo:
            node = todo.pop()
            if node in self._skipped:
                if not self._bad[node] and self.cancelled is None:
                    todo += reversed(self._taken_back(node))
                    todo.append(node)
            elif self.states[node] == "waiting":
                if self._bad[node] or self.cancelled is not None:
                    todo += reversed(self._skip(node))
                    cancelled.append(CancelledNode(node, self.job_ids[node], self.errors[node]))
                elif not self._open[node]:
                    self.states[node] = "enqueued"
                    self.job_ids[node] = self._job_id(node)
                    enqueue.append(node)
        return FlowStep(enqueue, cancelled)

    def _skip(self, node: int) -> Sequence[int]:
        self.errors[node] = self._why_skipped(node)
        self._skipped.add(node)
        self.states[node] = "cancelled"
        self.job_ids[node] = self._job_id(node)
        self.left -= 1
        return self._passed_on(node, opened=-1, bad=1)

    def _job_id(self, node: int) -> str:
        return self._job_id_of(node, self.generations[node], self.specs[node].options)

    def _taken_back(self, node: int) -> Sequence[int]:
        """Let a node wait again that was cancelled; it has another job then, because a job has one outcome."""
        del self.errors[node]
        self._skipped.discard(node)
        self.states[node] = "waiting"
        self.generations[node] += 1
        self.left += 1
        return self._passed_on(node, opened=1, bad=-1)

    def _why_skipped(self, node: int) -> str:
        if self.cancelled is not None:
            return self._why_cancelled()
        for before in self.specs[node].after:
            if before in self.errors:
                # Of a chain of them, the first is named.
                return self.errors[before] if before in self._skipped else self._describe(before)
        raise AssertionError("a node is cancelled because of another one")

    def _why_cancelled(self) -> str:
        return f"the flow was cancelled: {self.cancelled}" if self.cancelled else "the flow was cancelled"

    def _describe(self, node: int) -> str:
        what = f"{self.specs[node].job!r} (job {self.job_ids[node]}) of its flow {self.states[node]}"
        return f"{what}: {self.errors[node][:_SHOWN]}" if self.errors[node] else what


def _shift(of: int | tuple[int, ...], by: int) -> int | tuple[int, ...]:
    return of + by if isinstance(of, int) else tuple([one + by for one in of])


# --- the logs of flows, how far each is, and the messages that carry one out

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
            flow, seq = self._queue.names.flow_of(delivered.subject), delivered.seq
            progress = self._known.get(flow)
            if progress is None or progress.upto >= seq:
                if isinstance(event, FlowBegin) and not event.parts:
                    progress = self._new_progress(flow, event, event.nodes, delivered.time_ns)
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
            names = self._queue.names
            stored = await last_of(stream, names.flow_log(flow)) or await last_of(stream, names.flow_begin(flow))
            if stored is None:
                return None
            last, progress = stored.seq, self._known.get(flow)
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
            stored = await next_of(stream, subject, progress.upto + 1)
            if stored is None or stored.seq >= before:
                return
            progress.apply(decode_event(stored.data))
            progress.upto = stored.seq

    async def _read(self, stream: Stream, flow: str, before: int, upto: int) -> FlowProgress | None:
        """Return a flow with all events ahead of a sequence applied, read ``upto`` one that is stored."""
        names, progress = self._queue.names, None
        parts: dict[str, tuple[NodeSpec, ...]] = {}
        filters = names.flow_begin(flow), names.flow_part(flow, "*"), names.flow_log(flow)
        async with aclosing(deliveries(stream, *filters, upto=upto)) as stored:
            async for delivered in stored:
                if delivered.subject.startswith(names.flow_part(flow, "")):
                    parts[delivered.subject] = decode_part(delivered.data)
                    continue
                event = decode_event(delivered.data)
                if isinstance(event, FlowBegin):
                    stored_parts = [parts[names.flow_part(flow, f"{n}")] for n in range(event.parts)]
                    nodes = event.nodes or tuple([spec for part in stored_parts for spec in part])
                    progress = self._new_progress(flow, event, nodes, delivered.time_ns)
                if progress is not None and delivered.seq < before:
                    progress.apply(event)
                    progress.upto = delivered.seq
        return progress

    def _new_progress(self, flow: str, begin: FlowBegin, nodes: tuple[NodeSpec, ...], at: int) -> FlowProgress:
        progress = FlowProgress(nodes, partial(self._job_id, flow), begin.name)
        progress.began_at = at
        return progress

    def _job_id(self, flow: str, node: int, generation: int, options: JobOptions) -> str:
        key = key_part(options.key, options.tenant, exclusive=self._queue.exclusive)
        return flow_place(flow, node, generation, key).id

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


class FlowMessages:
    """Makes the messages that carry out the flows of one queue."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._names = queue.names

    def job(self, flow: str, progress: FlowProgress, node: int) -> Outgoing:
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
        return Outgoing(self._names.flow_log(flow), encode_record(ended))

    def removed_event(self, flow: str, progress: FlowProgress, job_id: str) -> Outgoing:
        """Return the event that a job of a cancelled flow is not stored any more, and will never end."""
        node = progress.job_ids.index(job_id)
        return self.event(flow, NodeEnd(node=node, id=job_id, state="cancelled", error="its job was removed"))

    def to_cancelled(self, progress: FlowProgress, node: CancelledNode) -> Outgoing:
        """Return the outcome of a node that never starts."""
        spec = progress.specs[node.node]
        return self._outcome("cancelled", spec.job, spec.options.key, node.id, node.reason, progress.began_at)

    def to_failed(self, job: bytes, error: str) -> tuple[Outgoing, Outgoing]:
        """Return the outcome of a node whose job can't be stored, and the event for its flow."""
        envelope = decode_envelope(job)
        assert envelope.flow is not None, "it is the job of a node"
        ended = NodeEnd(node=envelope.flow.node, id=envelope.id, state="failed", error=error)
        now = self._queue.clock.now()
        outcome = self._outcome("failed", envelope.job, envelope.key, envelope.id, error, now)
        return outcome, self.event(envelope.flow.flow, ended)

    def _outcome(self, state: Ending, job: str, key: str, job_id: str, error: str, since: int) -> Outgoing:
        outcome = outcome_without_worker(state, job_id, job, key, error, since, self._queue.clock.now())
        message = Outgoing(self._names.ending_subject(state, job_id), msgspec.json.encode(outcome))
        return as_first(message, self._names.outcomes_of(job_id))

    def state(self, flow: str, upto: int, progress: FlowProgress, state: FlowState) -> Outgoing:
        """Return the record of how a flow has ended."""
        record = FlowRecord(
            state=state, upto=upto, at=self._queue.clock.now(), error=progress.error, size=len(progress.specs)
        )
        return Outgoing(self._names.flow_state(flow), encode_record(record))
