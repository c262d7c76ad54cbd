"""The durable verbs in plain functions, on threads and in child processes: as on the loop, and blocking."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import pelton
import pelton.sync
from pelton import Jet
from tests.queue import process_jobs as some
from tests.queue.helpers import drain, working
from tests.queue.run.test_signals import until_waiting
from tests.queue.run.test_steps import traces


@pytest.mark.parametrize(
    ("path", "where", "how"),
    [
        *[("file", "on_thread", how) for how in ("completes", "swallows", "fails", "is cancelled")],
        *[("nats", "on_thread", how) for how in ("completes", "fails")],
        *[("file", "in_process", how) for how in ("completes", "fails")],
        ("nats", "in_process", "swallows"),
    ],
    indirect=["path"],
)
async def test_a_plain_function_does_all_that_an_async_one_does(jet: Jet, tmp_path: Path, where: str, how: str) -> None:
    queue = await jet.queue("garage", jobs=some.jobs)
    handle = await queue.enqueue(f"saga_{where}", str(tmp_path / "log"), how)
    async with working(queue, concurrency=1):
        await until_waiting(queue, handle.id)
        assert (await handle.event("quote"))[0].startswith("first ")
        if how == "is cancelled":
            await handle.cancel(reason="rain")
        else:
            await handle.send("approved", some.Decision("ann"))
        outcome = await handle.outcome(timeout=60)
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if line not in ("start", "tried")]
    if how in ("fails", "is cancelled"):
        assert outcome.state == ("failed" if how == "fails" else "cancelled"), outcome
        last = ["last"] if how == "fails" else []
        assert [line for line in lines if line != "declined"] == ["first", *last, "undo declined", "undo first"]
    else:
        assert outcome.value() == ["ann", [1], [[0], [1], [2]], "JobFailedError", True]
        assert [line for line in lines if line != "declined"] == ["first", "last"]
    assert outcome.attempt == (0 if how == "is cancelled" else 1)
    assert await traces(queue) == 0


async def test_other_threads_of_a_job_use_its_context_and_its_copies_do_not(jet: Jet, tmp_path: Path) -> None:
    queue = await jet.queue("garage", jobs=some.jobs)
    forks = [await queue.enqueue(job) for job in (some.forks_on_thread, some.forks_in_process)]
    dies = await queue.enqueue(some.dies_in_step, str(tmp_path / "log"))
    await drain(queue)
    assert [await handle.value() for handle in forks] == [[7, list(range(8))]] * 2
    outcome = await dies.outcome()
    assert (outcome.value(), outcome.attempt) == (True, 2), "who dies in a step has failed once"


async def test_new_code_of_a_plain_function_waits_if_it_does_something_else(jet: Jet) -> None:
    queue = await jet.queue("garage")

    def older(context: pelton.sync.JobContext) -> None:
        context.step("one", int)
        context.wait_for("go")

    def newer(context: pelton.sync.JobContext) -> None:
        context.step("zero", int)
        context.step("one", int)

    queue.job(name="job")(older)
    handle = await queue.enqueue("job")
    async with working(queue):
        await until_waiting(queue, handle.id)
    other = await jet.queue("garage", jobs=(jobs := pelton.Jobs()))
    jobs.job(name="job")(newer)
    async with working(other):
        await handle.send("go")
        while (info := await handle.info()).state != "stuck":
            await asyncio.sleep(0.01)
    assert "step 'zero' comes before step 'one'" in info.last_error
