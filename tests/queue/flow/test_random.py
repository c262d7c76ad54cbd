"""Random flows with failures, delays, redrives and cancels, run by a worker and compared with their description."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

import pelton
from pelton.queue import FlowHandle, FlowNode, Queue
from pelton.queue.builder import NodeSpec
from pelton.testing import ManualRuntime, manual_runtime
from tests.queue.flow.test_decide import Model, graphs


class Program:
    """One flow, as it runs and as it should."""

    def __init__(self, specs: list[NodeSpec], broken: set[int], delayed: set[int]) -> None:
        self.model = Model(specs)
        self.broken = broken
        self.delayed = delayed
        self.runs = Counter[int]()
        self.runtime: ManualRuntime = manual_runtime()

    async def begin(self, queue: Queue) -> FlowHandle:
        @queue.job
        async def node(number: int) -> int:
            self.runs[number] += 1
            if number in self.broken:
                raise pelton.PermanentJobError("as it was told")
            return number

        flow, added = await queue.new_flow(), list[FlowNode[int]]()
        for number, spec in enumerate(self.model.specs):
            options = flow.options(
                after=[added[one] for one in spec.after],
                on_failure=spec.on_failure,
                delay=100 if number in self.delayed else None,
            )
            added.append(options.add(node, number))
        return await flow.enqueue()

    def end(self, nodes: set[int]) -> None:
        """End jobs, and all that follow from them and are not delayed."""
        while nodes:
            for node in nodes:
                self.model.ends[node] = "failed" if node in self.broken else "completed"
            nodes = self.model.start() - self.delayed

    @property
    def enqueued(self) -> set[int]:
        return {node for node, state in enumerate(self.model.states()) if state == "enqueued"}

    async def act(self, action: str, queue: Queue, handle: FlowHandle) -> None:
        if action == "advance":
            self.runtime.clock.advance(101)
            self.end(self.enqueued)
        elif action == "cancel":
            if {"enqueued", "waiting"} & {*self.model.states()}:
                self.model.cancelled = True
                self.model.ends.update(dict.fromkeys(self.enqueued, "cancelled"))
            await handle.cancel()
        else:
            async for letter in queue.dead_letters():
                assert letter.envelope.flow is not None
                node = letter.envelope.flow.node
                self.broken.discard(node)
                await queue.redrive(letter.outcome.id)
                self.end({node})
                return

    async def run(self, actions: list[str]) -> None:
        async with pelton.open("memory:", runtime=self.runtime) as jet:
            queue = await jet.queue("garage")
            handle = await self.begin(queue)
            self.end(self.model.start() - self.delayed)
            await self.check(queue, handle)
            for action in actions:
                await self.act(action, queue, handle)
                await self.check(queue, handle)

    async def check(self, queue: Queue, handle: FlowHandle) -> None:
        await asyncio.wait_for(queue.work(until_idle=True, handle_signals=False), 60)
        info = await handle.status()
        assert [node.state for node in info.nodes] == self.model.states()
        [listed] = [one async for one in queue.flows()]
        assert listed.state == info.state
        ended = Counter([outcome.id async for outcome in queue.history()])
        assert set(ended.values()) <= {1}
        assert {node.id for node in info.nodes if node.state not in ("waiting", "enqueued")} <= set(ended)
        assert (await queue.counts()).unfinished == len(self.enqueued)


@given(
    graphs(),
    st.sets(st.integers(0, 8), max_size=3),
    st.sets(st.integers(0, 8), max_size=3),
    st.lists(st.sampled_from(["advance", "redrive", "redrive", "cancel"]), max_size=5),
)
def test_flows_end_as_they_should(
    specs: list[NodeSpec], broken: set[int], delayed: set[int], actions: list[str]
) -> None:
    asyncio.run(Program(specs, broken, delayed).run(actions))
