"""Jobs and transactions: enqueued together with the rest or not at all, and completed likewise."""

from __future__ import annotations

import logging

import pytest

import pelton
from pelton import Jet, JobContext
from pelton.api import ConfigError, JobArgumentsError, LeaseLostError
from pelton.engine.salvage import recount
from pelton.queue import Queue
from tests.queue.helpers import FAST, drain, ended, waiting


@pytest.fixture
async def rows(jet: Jet) -> Jet:
    async with jet.transaction() as tx:
        await tx.sql("CREATE TABLE done(car TEXT)")
    return jet


async def done(jet: Jet) -> list[str]:
    async with jet.transaction() as tx:
        return [car for (car,) in await tx.sql("SELECT car FROM done ORDER BY rowid")]


async def test_jobs_are_enqueued_with_the_rest_or_not_at_all(rows: Jet, queue: Queue, path: str) -> None:
    @queue.job
    async def wash(car: str) -> str:
        return car

    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block raises
        async with rows.transaction() as tx:
            await tx.enqueue(wash, "gone", key="k", idempotency_key="i")
            1 / 0  # noqa: B018  # it raises
    async with rows.transaction() as tx:
        await tx.sql("INSERT INTO done VALUES('order')")
        handle = await tx.enqueue(wash, car="one", key="k", idempotency_key="i")
        assert not handle.duplicate
        assert (await tx.enqueue(wash, "again", idempotency_key="i")).duplicate
        handles = await tx.enqueue_many([wash.bind("two"), wash.bind("three")])
        with pytest.raises(JobArgumentsError):
            await tx.enqueue(wash, 7)
    assert [info.id for info in await waiting(queue)] == [handle.id, *(other.id for other in handles)]
    await drain(queue)
    assert sorted(str(outcome.value()) for outcome in await ended(queue)) == ["one", "three", "two"]
    assert recount(path) == []


async def test_a_job_of_another_opening_is_refused(jet: Jet, path: str) -> None:
    async with pelton.open(path) as other:
        queue = await other.queue("garage")

        @queue.job
        def wash(car: str) -> None: ...

        async with jet.transaction() as tx:
            with pytest.raises(ConfigError, match="another opening"):
                await tx.enqueue(wash, "car")


async def test_a_job_completes_itself_with_its_rows(rows: Jet, queue: Queue, path: str) -> None:
    await rows.create_stream("news", subjects=["news"])

    @queue.job
    async def wash(car: str, ctx: JobContext) -> str:
        ctx.emit("news", b"emitted")
        async with ctx.transaction() as tx:
            await tx.sql("INSERT INTO done VALUES(?)", (car,))
            await tx.publish("news", car.encode())
            tx.result = {"car": car}
        return "not kept"

    handle = await wash.enqueue("one", key="k")
    await drain(queue)
    [outcome] = await ended(queue)
    assert (outcome.id, outcome.state, outcome.value(), outcome.key) == (handle.id, "completed", {"car": "one"}, "k")
    assert await done(rows) == ["one"]
    assert (await (await rows.stream("news")).info()).state.messages == 2
    assert (await queue.counts()).unfinished == 0
    assert recount(path) == []


async def test_a_job_whose_block_raises_is_tried_again_with_nothing_done(rows: Jet, queue: Queue) -> None:
    @queue.job(backoff=FAST)
    async def wash(car: str, ctx: JobContext) -> None:
        async with ctx.transaction() as tx:
            await tx.sql("INSERT INTO done VALUES(?)", (f"{car} {ctx.attempt}",))
            if ctx.attempt < 3:
                raise ZeroDivisionError

    await wash.enqueue("one")
    await drain(queue)
    [outcome] = await ended(queue)
    assert (outcome.state, outcome.attempt, await done(rows)) == ("completed", 3, ["one 3"])


async def test_what_a_completed_job_raises_is_told_and_changes_nothing(
    rows: Jet, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.job(backoff=FAST)
    async def wash(ctx: JobContext) -> None:
        async with ctx.transaction() as tx:
            await tx.sql("INSERT INTO done VALUES('one')")
        raise ZeroDivisionError

    await wash.enqueue()
    with caplog.at_level(logging.WARNING, "pelton"):
        await drain(queue)
    assert "raised after it was completed" in caplog.text
    [outcome] = await ended(queue)
    assert (outcome.state, await done(rows)) == ("completed", ["one"])


async def test_a_result_that_cannot_be_stored_undoes_the_block(rows: Jet, queue: Queue) -> None:
    @queue.job(max_attempts=1)
    async def wash(ctx: JobContext) -> None:
        async with ctx.transaction() as tx:
            await tx.sql("INSERT INTO done VALUES('one')")
            tx.result = object()

    await wash.enqueue()
    await drain(queue)
    [outcome] = await ended(queue)
    assert (outcome.state, await done(rows)) == ("failed", [])
    assert "can't be stored as JSON" in outcome.error


async def test_a_job_that_lost_its_lease_undoes_its_block(rows: Jet, queue: Queue) -> None:
    lost: list[BaseException] = []

    @queue.job(backoff=FAST)
    async def wash(ctx: JobContext) -> None:
        # The delivery is settled behind the worker's back.
        ack = pelton.AckOp(kind="ack", seq=int(ctx.id), consumer_seq=1)
        await rows.backend.ack(queue.names.jobs, "workers", [ack])
        try:
            async with ctx.transaction() as tx:
                await tx.sql("INSERT INTO done VALUES('one')")
        except LeaseLostError as error:
            lost.append(error)
            raise

    await wash.enqueue()
    await drain(queue)
    assert len(lost) == 1
    assert await done(rows) == []
    assert await ended(queue) == []


async def test_a_job_on_a_thread_has_no_transaction(rows: Jet, queue: Queue) -> None:
    @queue.job(max_attempts=1)
    def wash(ctx: JobContext) -> None:
        ctx.transaction()

    await wash.enqueue()
    await drain(queue)
    [outcome] = await ended(queue)
    assert "needs an async function" in outcome.error
