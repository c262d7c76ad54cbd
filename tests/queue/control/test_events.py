"""What happens to jobs, as it is told to who listens, in the same process and in another."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

import pelton
from pelton import Jet
from pelton.queue import Queue, QueueEvent, QueueEvents
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import FAST, drain, open_store


async def until(events: QueueEvents, count: int) -> list[QueueEvent]:
    """Return the next events, as many as are expected."""
    found = []
    for _ in range(count):
        event = await events.next(timeout=60)
        assert event is not None, f"only {[one.kind for one in found]}"
        found.append(event)
    return found


def by_id(events: list[QueueEvent]) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for event in events:
        found.setdefault(event.id, []).append((event.kind, event.attempt))
    return {job: sorted(kinds) for job, kinds in found.items()}


@ON_BOTH
async def test_another_opening_follows_all_that_happens(queue: Queue, another: OpenQueue) -> None:
    looks = await another("garage", create=False)

    @queue.job(max_attempts=2, backoff=FAST)
    async def repair(car: str) -> str:
        if car == "wreck":
            raise ValueError("nothing left")
        return car

    async with looks.events() as events:
        good = await repair.enqueue("a", key="a")
        bad = await repair.enqueue("wreck")
        later = await queue.options(delay=3600).enqueue(repair, "c")
        dropped = await repair.enqueue("d")
        await dropped.cancel(reason="sold")
        await later.cancel()
        await drain(queue)
        found = await until(events, 12)
    assert by_id(found) == {
        good.id: [("completed", 1), ("enqueued", 0), ("started", 1)],
        bad.id: [("enqueued", 0), ("failed", 2), ("retrying", 1), ("started", 1), ("started", 2)],
        later.id: [("cancelled", 0), ("scheduled", 0)],
        dropped.id: [("cancelled", 0), ("enqueued", 0)],
    }
    [ended] = [event for event in found if event.kind == "completed"]
    assert ended.outcome is not None
    assert (ended.job, ended.key, ended.outcome.value()) == ("repair", "a", "a")
    assert ended.worker == ended.outcome.worker
    [again] = [event for event in found if event.kind == "retrying"]
    assert (again.job, again.error) == ("repair", "ValueError: nothing left")
    assert again.due > 0


@ON_BOTH
async def test_progress_is_told_while_a_job_runs(queue: Queue) -> None:
    seen = asyncio.Event()

    @queue.job
    async def repair(context: pelton.JobContext) -> None:
        await context.progress(0.5, "sanding")
        await asyncio.wait_for(seen.wait(), 60)

    async with queue.events("progress") as events:
        handle = await repair.enqueue()
        worker = asyncio.create_task(drain(queue))
        [told] = await until(events, 1)
        seen.set()
        await worker
    assert (told.kind, told.id) == ("progress", handle.id)
    assert told.progress is not None
    assert (told.progress.fraction, told.progress.note) == (0.5, "sanding")


@ON_BOTH
async def test_only_some_kinds_in_an_iteration(queue: Queue) -> None:
    @queue.job
    async def repair(car: str) -> str:
        return car

    events = queue.events("completed", "enqueued")
    found: list[str] = []
    async with asyncio.timeout(60), events:
        await queue.enqueue_many([repair.bind("a"), repair.bind("b")])
        await drain(queue)
        async for event in events:
            found.append(event.kind)
            if len(found) == 4:
                break
    assert sorted(found) == ["completed", "completed", "enqueued", "enqueued"]
    with pytest.raises(pelton.ConfigError, match="were closed"):
        await events.next()
    with pytest.raises(pelton.ConfigError, match="no events 'lost'; give enqueued, scheduled"):
        queue.events("lost")  # type: ignore[arg-type]


async def test_jobs_of_a_transaction_are_told_after_its_commit(jet: Jet, queue: Queue) -> None:
    @queue.job
    async def repair(car: str) -> str:
        return car

    async with queue.events("enqueued") as events:
        with suppress(KeyError):
            async with jet.transaction() as tx:
                await tx.enqueue(repair, "never")
                raise KeyError
        async with jet.transaction() as tx:
            handle = await tx.enqueue(repair, "a")
        [event] = await until(events, 1)
        twice = await repair.enqueue("a", idempotency_key="one")
        again = await repair.enqueue("a", idempotency_key="one")
        [second] = await until(events, 1)
        assert await events.next(timeout=0.01) is None
    assert (event.id, second.id, again.duplicate) == (handle.id, twice.id, True)


@ON_BOTH
async def test_an_exclusive_queue_has_the_same_events(keyed: Queue) -> None:
    @keyed.job(max_attempts=2, backoff=FAST)
    async def repair(context: pelton.JobContext) -> None:
        if context.attempt == 1:
            raise ValueError("once")

    async with keyed.events() as events:
        handle = await repair.enqueue(key="a")
        await drain(keyed)
        found = await until(events, 5)
    kinds = [("completed", 2), ("enqueued", 0), ("retrying", 1), ("started", 1), ("started", 2)]
    assert by_id(found) == {handle.id: kinds}
    assert {event.key for event in found} == {"a"}


@ON_BOTH
async def test_redriven_and_moved_jobs_are_enqueued(jet: Jet, queue: Queue) -> None:
    other = await jet.queue("other")

    @queue.job(max_attempts=1)
    async def repair(car: str) -> None:
        raise ValueError(car)

    dead = await repair.enqueue("a", key="a")
    await drain(queue)
    async with queue.events("enqueued", "scheduled") as events, other.events("enqueued", "scheduled") as there:
        again = await queue.redrive(dead.id)
        later = await queue.options(delay=3600).enqueue(repair, "b")
        moved = await queue.move(later.id, other)
        found = await until(events, 2)
        [arrived] = await until(there, 1)
    assert [(event.kind, event.id, event.key) for event in found] == [
        ("enqueued", again.id, "a"),
        ("scheduled", later.id, ""),
    ]
    assert (arrived.kind, arrived.id) == ("scheduled", moved.id)
    assert abs(arrived.due - found[1].due) < 1e9


async def test_who_listens_is_told_when_the_store_is_closed(path: str) -> None:
    async with open_store(path) as jet:
        events = (await jet.queue("garage")).events()
        assert await events.next(timeout=0.01) is None
    with pytest.raises(pelton.StoreClosedError):
        await events.next(timeout=60)
    with pytest.raises(pelton.StoreClosedError):
        await events.next()
    await events.close()


def test_without_await(tmp_path: Path) -> None:
    with pelton.sync.open(tmp_path / "shop.pelton") as jet:
        queue = jet.queue("garage")

        @queue.job
        def repair(car: str) -> str:
            return car

        with queue.events("completed") as events:
            repair.enqueue("a")
            queue.work(until_empty=True, handle_signals=False)
            event = next(iter(events))
    assert event.kind == "completed"
