"""The part of a queue's face that is about flows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, get_args

from pelton.api import ConfigError
from pelton.queue.define.registry import DeclaresJobs
from pelton.queue.flow.flow import Flow
from pelton.queue.flow.handle import FlowHandle, FlowInfo
from pelton.queue.model.checks import checked_text, valid_text
from pelton.queue.model.flow_records import FlowState
from pelton.runtime import at_home

if TYPE_CHECKING:
    from pelton.queue.define.job import JobQueue
    from pelton.queue.flow.flows import Flows


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
