"""The messages that carry out a flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from pelton.api import Outgoing
from pelton.queue.backing.first_outcome import as_first
from pelton.queue.enqueue.job_message import JobMessage
from pelton.queue.model.flow_records import FlowRecord, NodeEnd, encode_record
from pelton.queue.model.states import FlowPlace, Outcome, decode_envelope

if TYPE_CHECKING:
    from pelton.queue.define.queue_context import QueueContext
    from pelton.queue.flow.decide import CancelledNode, FlowProgress
    from pelton.queue.model.flow_records import FlowState, NodeSpec
    from pelton.queue.model.states import Ending


class FlowMessages:
    """Makes the messages that carry out the flows of one queue."""

    def __init__(self, queue: QueueContext) -> None:
        self._queue = queue
        self._names = queue.names

    def job(self, flow: str, progress: FlowProgress, node: int) -> Outgoing:
        """Return the message that enqueues the job of a node."""
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
        """Return the event that the job of a node has ended."""
        return Outgoing(self._names.flow_log(flow), encode_record(ended))

    def gone(self, flow: str, progress: FlowProgress, job_id: str) -> Outgoing:
        """Return the event that a job of a cancelled flow is not stored any more, and will never end."""
        node = progress.job_ids.index(job_id)
        return self.event(flow, NodeEnd(node=node, id=job_id, state="cancelled", error="its job was removed"))

    def cancelled(self, progress: FlowProgress, node: CancelledNode) -> Outgoing:
        """Return the outcome of a node that never starts."""
        spec = progress.specs[node.node]
        return self._outcome("cancelled", spec.job, spec.options.key, node.id, node.reason, progress.began_at)

    def failed(self, job: bytes, error: str) -> tuple[Outgoing, Outgoing]:
        """Return the outcome of a node whose job can't be stored, and the event for its flow."""
        envelope = decode_envelope(job)
        assert envelope.flow is not None, "it is the job of a node"
        ended = NodeEnd(node=envelope.flow.node, id=envelope.id, state="failed", error=error)
        now = self._queue.clock.now()
        outcome = self._outcome("failed", envelope.job, envelope.key, envelope.id, error, now)
        return outcome, self.event(envelope.flow.flow, ended)

    def _outcome(self, state: Ending, job: str, key: str, job_id: str, error: str, since: int) -> Outgoing:
        outcome = Outcome(
            id=job_id,
            job=job,
            state=state,
            key=key,
            attempt=0,
            worker="",
            enqueued_at=since,
            started_at=0,
            finished_at=self._queue.clock.now(),
            error=error,
        )
        return as_first(self._names, Outgoing(self._names.ending_subject(state, job_id), msgspec.json.encode(outcome)))

    def state(self, flow: str, upto: int, progress: FlowProgress, state: FlowState) -> Outgoing:
        """Return the record of how a flow has ended."""
        record = FlowRecord(
            state=state, upto=upto, at=self._queue.clock.now(), error=progress.error, size=len(progress.specs)
        )
        return Outgoing(self._names.flow_state(flow), encode_record(record))
