"""A process that dies between any two of its operations: the next one carries on, and the end is the same.

Everything that a worker asks of its store goes through a backend that dies at one operation, before or after it has
had its effect; from then on nothing of that worker has any. The same is done with a backend that behaves as a cluster
does: it has no transactions, so what is settled together is stored one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

import pelton
from pelton import FlowInfo, Jet
from pelton.api import AckOp, Backend, Outgoing, PeltonError, PubAck, Settled, WrongLastSequenceError
from pelton.api.tracing import Replacement, Withdrawn
from pelton.cluster.publisher import messages_of, why_without_effect, withdraw_each
from pelton.observe import queue_summaries
from pelton.queue import FlowHandle, Queue
from pelton.testing import ManualRuntime, manual_runtime


class DiedError(Exception):
    """The process has died."""


class MortalBackend:
    """A backend that dies at an operation: the ``last`` one, which has its effect or not."""

    def __init__(self, backend: Backend, last: int, *, has_effect: bool, is_cluster: bool) -> None:
        self._backend = backend
        self._last = last
        self._has_effect = has_effect
        self._is_cluster = is_cluster
        self.count = 0
        self.planning = backend.planning
        if is_cluster:
            self.planning = msgspec.structs.replace(backend.planning, atomic_batches=False, own_verbs=frozenset())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def _do(self, operation: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self.count += 1
        if self.count > self._last or (self.count == self._last and not self._has_effect):
            raise DiedError
        found = await operation()
        if self.count >= self._last:
            raise DiedError
        return found

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        found: PubAck = await self._do(lambda: self._backend.publish(subject, data, headers))
        return found

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        if not self._is_cluster:
            found: list[PubAck] = await self._do(lambda: self._backend.publish_batch(messages))
            return found
        return [await self.publish(one.subject, one.data, one.headers) for one in messages]

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        found: list[PeltonError | None] = await self._do(lambda: self._backend.ack(stream, consumer, acks))
        return found

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        if not self._is_cluster:
            found: list[PubAck] = await self._do(lambda: self._backend.settle(publishes, stream, consumer, ack))
            return found
        stored = await self.publish_batch(publishes)
        [refused] = await self.ack(stream, consumer, [ack])
        if refused is not None:
            raise refused
        return stored

    async def settle_many(self, endings: Sequence[Settled], stream: str, consumer: str) -> list[PeltonError | None]:
        if not self._is_cluster:
            found: list[PeltonError | None] = await self._do(
                lambda: self._backend.settle_many(endings, stream, consumer)
            )
            return found
        answers = list[PeltonError | None]()
        for one in endings:
            try:
                await self.settle(messages_of(one), stream, consumer, one.ack)
                answers.append(None)
            except PeltonError as refused:
                answers.append(refused)
            if one.once and isinstance(answers[-1], WrongLastSequenceError):
                port: Any = self
                answers[-1] = await why_without_effect(port, one, stream, consumer, answers[-1])
                await self.ack(stream, consumer, [one.ack])
        return answers

    async def settle_once(self, ending: Settled, stream: str, consumer: str) -> None:
        [refused] = await self.settle_many([ending], stream, consumer)
        if refused is not None:
            raise refused

    async def withdraw(self, stream: str, instead: Mapping[int, Replacement]) -> Withdrawn:
        if not self._is_cluster:
            found: Withdrawn = await self._do(lambda: self._backend.withdraw(stream, instead))
            return found
        port: Any = self
        return await withdraw_each(port, stream, instead)

    async def call(self, request: Any) -> Any:
        if self.count >= self._last:
            raise DiedError
        return await self._backend.call(request)


class Garage:
    """A queue with jobs that tell when they run, and a flow of them."""

    def __init__(self) -> None:
        self.stored = Counter[str]()
        self.ran = list[str]()
        self.is_broken = True

    def declare(self, queue: Queue) -> None:
        @queue.job(max_attempts=2, backoff=[0.1])
        async def step(name: str, before: list[str | None]) -> str:
            self.ran.append(name)
            if name == "bad" and self.is_broken:
                raise ValueError("no")
            return name

    async def enqueue(self, queue: Queue) -> FlowHandle:
        step = queue.jobs_by_name["step"]
        flow = await queue.new_flow()
        a, b = (flow.add(step, name, []) for name in ("a", "b"))
        c = flow.add(step, "c", [a.result, b.result])
        bad = flow.options(after=[a], key="k").add(step, "bad", [])
        never = flow.add(step, "never", [bad.result])
        flow.options(on_failure="run", delay=1).add(step, "always", [c.result, never.result])
        return await flow.enqueue()


STATES = ["completed", "completed", "completed", "failed", "cancelled", "completed"]


async def run_until_over(queue: Queue, handle: FlowHandle, runtime: ManualRuntime) -> FlowInfo:
    for _ in range(20):
        await queue.work(until_idle=True, handle_signals=False)
        info = await handle.status()
        if info.state != "running" and not (await queue.counts()).unfinished:
            return info
        runtime.clock.advance(31)
    raise AssertionError(f"the flow does not end: {await handle.status()}")


async def check(queue: Queue, garage: Garage, info: FlowInfo, *, is_cancelled: bool) -> None:
    """Every node has one outcome, and ran after those before it; nothing is left."""
    ended = Counter([outcome.id async for outcome in queue.history()])
    assert set(ended.values()) == {1}, ended
    assert sorted(ended) == sorted(node.id for node in info.nodes)
    assert (await queue.counts()).unfinished == 0
    if is_cancelled:
        # The first ones may have run, if nobody could cancel them before.
        assert {node.state for node in info.nodes[:2]} <= {"cancelled", "completed"}
        assert {info.state, *(node.state for node in info.nodes[2:])} == {"cancelled"}
        assert {*garage.ran} <= {"a", "b"}
        return
    assert (info.state, [node.state for node in info.nodes]) == ("failed", STATES)
    first = {name: garage.ran.index(name) for name in garage.ran}
    assert "never" not in first
    assert max(first["a"], first["b"]) < first["c"] < first["always"]
    assert first["a"] < first["bad"]


async def run(last: int, *, has_effect: bool, is_cluster: bool, is_cancelled: bool) -> int:
    """Run the flow with a worker that dies at its operation ``last``; return how many it did."""
    runtime = manual_runtime()
    async with pelton.open("memory:", runtime=runtime) as jet:
        garage, home = Garage(), await jet.queue("garage")
        garage.declare(home)
        handle = await garage.enqueue(home)
        if is_cancelled:
            assert await handle.cancel()
        mortal = MortalBackend(jet.backend, last, has_effect=has_effect, is_cluster=is_cluster)
        first = await Queue.open(Jet(mortal, runtime), "garage")  # type: ignore[arg-type]
        garage.declare(first)
        mortal.count = 0
        with suppress(DiedError):
            for _ in range(4):
                await first.work(until_idle=True, handle_signals=False, grace=0)
                runtime.clock.advance(31)
        # Whoever starts workers by these numbers has to see that one is needed.
        assert (await home.counts()).unfinished or (await handle.status()).state != "running"
        assert (await queue_summaries(jet))[0].pending == (await home.counts()).pending
        second: Any = MortalBackend(jet.backend, 10**9, has_effect=True, is_cluster=is_cluster)
        after = await Queue.open(Jet(second, runtime), "garage")
        garage.declare(after)
        runtime.clock.advance(31)
        info = await run_until_over(after, after.flow(handle.id), runtime)
        await check(after, garage, info, is_cancelled=is_cancelled)
        return mortal.count


@pytest.mark.parametrize("stride", [pytest.param(17, id="short"), pytest.param(1, id="long")])
@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("is_cluster", [False, True])
async def test_a_worker_that_dies(is_cluster: bool, is_cancelled: bool, stride: int) -> None:
    whole = await run(10**9, has_effect=True, is_cluster=is_cluster, is_cancelled=is_cancelled)
    assert whole > 5
    for last in range(1, whole + 1, stride):
        for has_effect in (False, True):
            await run(last, has_effect=has_effect, is_cluster=is_cluster, is_cancelled=is_cancelled)
