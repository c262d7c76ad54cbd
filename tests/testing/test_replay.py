"""The history of a job in production, replayed with new code; and a year of a durable function, in a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import pelton
import pelton.sync
from pelton import ConfigError, JobArgumentsError, JobContext, JobResultError, observe
from pelton.queue import Queue
from pelton.testing import ManualClock, Replay, drain, manual_runtime, replay

pytest_plugins = ["pelton.testing.fixtures"]

YEAR = 365 * 86_400
jobs = pelton.Jobs()
called: list[object] = []


@pytest.fixture
def pelton_jobs() -> pelton.Jobs:
    called.clear()
    return jobs


@jobs.job
async def charge(order: int) -> str:
    return f"receipt {order}"


def weigh_it() -> int:
    called.append("price")
    return 120


@jobs.job
async def weigh(order: int) -> None: ...


@jobs.job(max_attempts=1)
async def ship(context: JobContext, order: int) -> str:
    await context.changed("gifts")
    seconds = f"{(await context.now()).timestamp():.0f}"
    price = await context.step("price", weigh_it)
    await context.on_failure(called.append, "undone")
    await context.publish("quote", price)
    await context.sleep(30 * 86_400)
    receipt = await context.call(charge, order)
    who = await context.wait_for("approved", str, timeout=YEAR / 2)
    late = await context.wait_for("late", str, timeout=60, default="nothing")
    await context.step("ship", called.append, "ship")
    await context.wait_for("delivered", bool)
    return f"{price} {receipt} {who} {late} {seconds}"


_made: list[observe.JobDetails] = []


@pytest.fixture
async def history() -> observe.JobDetails:
    """The history of a job that waits, and has all that there is behind it."""
    if not _made:
        async with pelton.open("memory:", runtime=manual_runtime()) as jet:
            queue = await jet.queue("tests", jobs=jobs)
            job = await queue.enqueue(ship, 7)
            await drain(queue, within=31 * 86_400)
            await job.send("approved", "ann")
            await drain(queue, within=60)
            await job.send("delivered", True)
            _made.append(await observe.job_with_details(jet, "tests", job.id))
    return _made[0]


def as_text(history: observe.JobDetails) -> str:
    """What ``pelton jobs show --json`` writes."""
    from pelton.cli.output import plain

    return json.dumps({**plain(history.job), "arguments": {"order": 7}, "history": plain(history.history)})


def variant(*, steps: str = "", back: str = "'done'") -> Callable[..., Any]:
    """A version of the function, with other code in the places of its steps."""
    scope: dict[str, Any] = {"charge": charge, "weigh": weigh, "called": called, "JobContext": JobContext}
    exec(f"async def ship(context: JobContext, order: int) -> str:\n{steps}\n    return {back}\n", scope)
    function: Callable[..., Any] = scope["ship"]
    return function


OLD = """
    await context.changed("gifts")
    await context.now()
    price = await context.step("price", int)
    await context.on_failure(called.append, "undone")
    await context.publish("quote", price)
    await context.sleep(30 * 86_400)
    receipt = await context.call(charge, order)
    who = await context.wait_for("approved", str)
    late = await context.wait_for("late", str, timeout=60, default="nothing")
    await context.step("ship", int)
    await context.wait_for("delivered", bool)
"""


async def test_a_year_passes_in_a_test(pelton_queue: Queue, pelton_clock: ManualClock) -> None:
    job = await pelton_queue.enqueue(ship, 7)
    await drain(pelton_queue, within=YEAR / 4)
    assert (await job.info()).waits_for.signal == "approved"  # type: ignore[union-attr]
    await job.send("approved", "ann")
    await job.send("delivered", True)
    await drain(pelton_queue, within=60)
    assert await job.value() == "120 receipt 7 ann nothing 1700000000"
    assert pelton_clock.monotonic() == YEAR / 4 + 60
    assert called == ["price", "ship"]
    other = await pelton_queue.enqueue(ship, 8)
    with pytest.raises(ExceptionGroup, match="raised"):
        await drain(pelton_queue, within=30 * 86_400 + YEAR / 2)
    assert (await other.outcome()).error.startswith("SignalTimeoutError")
    assert called[2:] == ["price", "undone"]


async def test_the_same_code_goes_on_where_it_was(history: observe.JobDetails) -> None:
    before = list(called)
    assert await replay(history, ship) == Replay(
        next=(), has_returned=True, value="120 receipt 7 ann nothing 1700000000"
    )
    assert await replay(as_text(history), ship) == await replay(history, ship)
    assert called == before, "no step is called"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (OLD.replace("'gifts'", "'other'"), ("its end",)),
        (OLD + "    if await context.changed('check'): await context.step('check', int)\n", ("step 'check'",)),
        (
            OLD + "    await context.publish('done', 1)\n    await context.call(charge, 2)\n",
            ("event 'done'", "the call of 'charge'"),
        ),
        (OLD + "    await context.wait_for('paid', int)\n", ("the wait for signal 'paid'",)),
        (OLD + "    async with context.transaction(): pass\n", ("its transaction",)),
        (OLD + "    await context.sleep(0.1)\n    await context.sleep(9)\n", ("sleep 2", "sleep 3")),
    ],
)
async def test_what_is_added_to_the_end_comes_next(
    history: observe.JobDetails, steps: str, said: tuple[str, ...]
) -> None:
    found = await replay(history, variant(steps=steps))
    assert found.next == said if not found.has_returned else said == ("its end",)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("price = ", "await context.step('check', int); price = ", "step 'check' comes before step 'price'"),
        ("step(\"price\"", "step(\"cost\"", "step 'cost' comes before step 'price'"),
        ("price = ", "await context.publish('x', 1); price = ", "event 'x' comes before step 'price'"),
        ("    await context.sleep(30 * 86_400)\n", "", "its end comes before sleep '1'"),
        ("    await context.on_failure(called.append, \"undone\")\n", "", "not register undo list.append"),
        ("call(charge, order)", "call(weigh, order)", "call 1 is of 'weigh', and was of 'charge'"),
        ("    receipt", "    await context.call(charge, 1)\n    receipt", "the call of 'charge' comes before"),
        ("    await context.step(\"ship\", int)\n", "", "its end comes before step 'ship'"),
    ],
)  # fmt: skip
async def test_what_is_done_otherwise_is_named(history: observe.JobDetails, old: str, new: str, error: str) -> None:
    assert old in OLD
    with pytest.raises(JobArgumentsError, match=error):
        await replay(history, variant(steps=OLD.replace(old, new)))


async def test_values_of_other_types_and_other_errors_are_raised(history: observe.JobDetails) -> None:
    for old, new, what in [
        ('approved", str', 'approved", int', "approved"),
        ('"price", int', '"price", text', "'price'"),
    ]:
        steps = "    def text() -> list[str]: ...\n" + OLD.replace(old, new)
        with pytest.raises(JobResultError, match=what):
            await replay(history, variant(steps=steps))
    with pytest.raises(ZeroDivisionError):
        await replay(history, variant(steps=OLD, back="1 / 0"))
    with pytest.raises(JobArgumentsError, match="order"):
        await replay(history, lambda_of_other_arguments)


async def lambda_of_other_arguments(context: JobContext, article: str) -> None: ...


async def test_what_has_no_history_is_refused(pelton_queue: Queue, pelton_jet: pelton.Jet) -> None:
    job = await pelton_queue.enqueue(charge, 7)
    await drain(pelton_queue)
    details = await observe.job_with_details(pelton_jet, "tests", job.id)
    with pytest.raises(ConfigError, match="has ended"):
        await replay(details, ship)
    with pytest.raises(ConfigError, match="jobs show"):
        await replay("[]", ship)
    with pytest.raises(ConfigError, match="take a JobContext"):
        await replay(as_text(details), asyncio.sleep)


@jobs.job
def weekly(context: pelton.sync.JobContext, week: int) -> None:
    context.step("send", called.append, week)
    context.sleep(7 * 86_400)
    if week < 9:
        raise pelton.Continue(week + 1)
    context.step("end", called.append, "end")


async def test_a_plain_function_that_begins_anew_is_replayed_with_its_last_arguments(
    pelton_queue: Queue, pelton_jet: pelton.Jet
) -> None:
    job = await pelton_queue.enqueue(weekly, 1)
    await drain(pelton_queue, within=10 * 86_400)
    history = await observe.job_with_details(pelton_jet, "tests", job.id)
    assert (history.arguments, called) == (b'{"week":2}', [1, 2])
    found = await replay(history, weekly)
    assert (found.next, found.value.call_args, called) == ((), (3,), [1, 2])

    def other(context: pelton.sync.JobContext, week: int) -> None:
        context.step("check", called.append, week)

    with pytest.raises(JobArgumentsError, match="step 'check' comes before step 'send'"):
        await replay(history, other)

    async def at_once(context: JobContext, week: int) -> None:
        async with context.transaction():
            pass

    with pytest.raises(JobArgumentsError, match="its transaction comes before step 'send'"):
        await replay(history, at_once)

    def without(context: pelton.sync.JobContext, week: int) -> None: ...

    with pytest.raises(JobArgumentsError, match="its end comes before step 'send'"):
        await replay(history, without)
