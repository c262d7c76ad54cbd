"""A job that adds jobs to the flow that it is of.

What an attempt adds is stored with its completion, so it is of the flow if, and only if, that attempt completes; on a
cluster, where it is stored before, an attempt that was replaced may leave nodes behind that nobody reads.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from pelton.api import ConfigError, Outgoing
from pelton.queue.flow.builder import FlowBuilder
from pelton.queue.model.flow_records import NodeAdd, encode_record
from pelton.queue.model.naming import QueueNames

if TYPE_CHECKING:
    from pelton.queue.define.job import Job
    from pelton.queue.model.flow_records import NodeSpec
    from pelton.queue.run.context import JobContext


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

    def _known(self, job: str) -> Job[Any, Any] | None:
        return None
