"""Ordered reading under all faults: messages lost, doubled, out of order, and the consumer gone."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pelton
from pelton.api import Backend, BackendSubscription, ConsumerDelete, ConsumerNames, Incoming
from pelton.engine import Engine
from pelton.jet.message_source import OrderedReader
from pelton.runtime import Clock
from pelton.testing import ManualRuntime, manual_runtime

FAULTS = ("fine", "fine", "fine", "lose", "double", "swap", "lose_all", "delete")


class Unreliable:
    """A subscription that applies the next fault to each message."""

    def __init__(self, inner: BackendSubscription, line: Line) -> None:
        self._inner = inner
        self._line = line
        self._ready: deque[Incoming] = deque()
        self._held: list[Incoming] = []
        self._deaf = False

    async def next(self, timeout: float | None = None) -> Incoming | None:
        end = None if timeout is None else self._line.clock.monotonic() + timeout
        while not self._ready:
            message = await self._inner.next(None if end is None else max(end - self._line.clock.monotonic(), 0))
            if message is None:
                return None
            await self._pass_on(message)
        return self._ready.popleft()

    async def _pass_on(self, message: Incoming) -> None:
        fault = self._line.next_fault()
        if fault == "lose_all":
            self._deaf = True
        if fault == "delete":
            await self._line.delete_consumers()
        if self._deaf or fault == "lose":
            return
        if fault == "swap":
            self._held.append(message)
            return
        self._ready.append(message)
        if fault == "double":
            self._ready.append(message)
        self._ready.extend(self._held)
        self._held.clear()

    def take(self, limit: int) -> list[Incoming]:
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    async def close(self) -> None:
        await self._inner.close()


class Line:
    """A backend whose subscriptions are unreliable; faultless once all its faults have happened."""

    def __init__(self, backend: Backend, clock: Clock, faults: list[str]) -> None:
        self._backend = backend
        self.clock = clock
        self._faults = deque(faults)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def subscribe(self, subject: str, queue: str = "") -> Unreliable:
        return Unreliable(await self._backend.subscribe(subject, queue), self)

    def next_fault(self) -> str:
        return self._faults.popleft() if self._faults else "fine"

    async def delete_consumers(self) -> None:
        for name in (await self._backend.call(ConsumerNames(stream="S"))).consumers:
            # The reader removes one that it has replaced by itself, maybe at this moment.
            with suppress(pelton.ConsumerNotFoundError):
                await self._backend.call(ConsumerDelete(stream="S", name=name))


async def _read(runtime: ManualRuntime, faults: list[str], batches: list[int], filtered: bool) -> None:
    async with pelton.open("memory:", runtime=runtime) as jet:
        await jet.create_stream("S", subjects=["s.>"])
        fields = {"filter_subject": "s.1"} if filtered else {}
        line = Line(jet.backend, runtime.clock, faults)
        reader = OrderedReader(line, runtime, "S", heartbeat=1.0, **fields)  # type: ignore[arg-type]  # hands on the rest
        total = sum(batches)
        wanted = [n for n in range(total) if n % 2 or not filtered]
        found: list[int] = []

        async def read() -> None:
            async for delivered in reader.follow():
                if delivered is not None:
                    found.append(int(delivered.data))
                if len(found) >= len(wanted):
                    return

        reading = asyncio.ensure_future(read()) if wanted else None
        start = 0
        for batch in batches:
            await jet.publish_batch([(f"s.{n % 2}", b"%d" % n) for n in range(start, start + batch)])
            start += batch
            await _turn(runtime)
        for _ in range(20 * len(faults) + 20):
            if reading is None or reading.done():
                break
            await _turn(runtime)
        assert found == wanted
        if reading is not None:
            await reading


async def _turn(runtime: ManualRuntime) -> None:
    """Let what is under way finish, and time pass."""
    for _ in range(15):
        await asyncio.sleep(0)
    runtime.clock.advance(0.5)


@settings(max_examples=60, deadline=None)
@given(
    faults=st.lists(st.sampled_from(FAULTS), max_size=12),
    batches=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    filtered=st.booleans(),
)
def test_every_message_comes_once_and_in_order(faults: list[str], batches: list[int], filtered: bool) -> None:
    asyncio.run(_read(manual_runtime(), faults, batches, filtered))


async def _left_behind(jet: pelton.Jet, stream: str) -> int:
    """Return how many consumers and subscribers exist, once background work has ended."""
    for _ in range(200):
        await asyncio.sleep(0)
    assert isinstance(jet.backend, Engine)
    return len(await (await jet.stream(stream)).consumer_names()) + len(jet.backend._subscriptions._open)


async def test_a_watch_that_is_left_at_its_first_mark_leaves_nothing_behind() -> None:
    async with pelton.open("memory:") as jet:
        bucket = await jet.create_bucket("b")
        async with aclosing(bucket.watch()) as entries:
            async for entry in entries:
                assert entry is None
                break
        assert await _left_behind(jet, "KV_b") == 0


@pytest.mark.parametrize("twice", [False, True])
async def test_a_reader_that_is_cancelled_at_any_step_leaves_nothing_behind(twice: bool) -> None:
    async def read(bucket: pelton.Bucket[bytes]) -> None:
        async with aclosing(bucket.watch()) as entries:
            async for _ in entries:
                await asyncio.sleep(0)

    async with pelton.open("memory:") as jet:
        bucket = await jet.create_bucket("b")
        await bucket.put("k", b"")
        for steps in range(40):
            task = asyncio.ensure_future(read(bucket))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            if twice:
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
            assert await _left_behind(jet, "KV_b") == 0, f"after {steps} steps"
