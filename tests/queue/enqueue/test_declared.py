"""Jobs that are declared without a store, jobs by name, and options apart from arguments."""

from __future__ import annotations

from contextlib import suppress

import pytest

import pelton
from pelton import ConfigError, Jet, JobArgumentsError, JobContext, JobFailedError, JobResultError, sync
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import drain, working

jobs = pelton.Jobs()
ran: list[tuple[str, object]] = []


@jobs.job
async def repair(car: str, what: str = "paint") -> str:
    """Repair a car."""
    ran.append((car, what))
    return f"{car}: {what}"


@jobs.job(name="square", max_attempts=1)
def squared(n: int) -> int:
    if n < 0:
        raise ValueError(f"{n} is negative")
    return n * n


@jobs.job
async def who(context: JobContext) -> str:
    return context.key


async def test_a_job_declared_without_a_store_is_still_the_function() -> None:
    assert await repair("car1") == "car1: paint"
    assert squared(3) + 1 == 10
    assert repair.__doc__ == "Repair a car."
    assert "repair" in jobs
    assert [job.name for job in jobs] == ["repair", "square", "who"]
    assert repr(jobs) == "<Jobs repair, square, who>"


@ON_BOTH
async def test_any_number_of_queues_run_and_enqueue_the_same_jobs(jet: Jet) -> None:
    for name in ("one", "two"):
        queue = await jet.queue(name, jobs=jobs, exclusive=True)
        first = await queue.enqueue(repair, "car1")
        second = await queue.options(key="car2").enqueue(repair, "car2", what="wash")
        third = await queue.options(key="k").enqueue(who)
        await drain(queue)
        assert await first.value() == "car1: paint"
        assert await second.value(timeout=60) == "car2: wash"
        assert (await second.info()).key == "car2"
        assert await third.value() == "k"


@ON_BOTH
async def test_a_job_is_enqueued_by_its_name(jet: Jet) -> None:
    sender, worker = await jet.queue("garage"), await jet.queue("garage", jobs=jobs)
    by_name = await sender.enqueue("square", n=7)
    known = await worker.enqueue("square", 8)
    with pytest.raises(JobArgumentsError, match="by name"):
        await sender.enqueue("square", 7)
    with pytest.raises(JobArgumentsError, match="nonsense"):
        await worker.enqueue("square", n=7, nonsense=7)
    with pytest.raises(JobArgumentsError, match="square"):
        await sender.enqueue("square", n=object())
    with pytest.raises(ConfigError, match="a job's name"):
        await sender.enqueue("")
    with pytest.raises(ConfigError, match="queue 'garage': 'drain' is not a job: declare it"):
        await sender.enqueue(drain, 7)  # type: ignore[call-overload]
    called = repair("car1")
    with pytest.raises(ConfigError, match="was called, not enqueued"):
        await sender.enqueue(called)  # type: ignore[call-overload]
    called.close()
    for calls in ([("car1",)], (repair.bind(car) for car in ("car1", "car2")), repair.bind("car1")):
        with pytest.raises(ConfigError, match="takes a list of calls"):
            await sender.enqueue_many(calls)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'drain' is not a job: declare it"):
        (await sender.new_flow()).add(drain)  # type: ignore[call-overload]
    wrong = await sender.enqueue("square", n="seven")
    async with working(worker):
        assert await by_name.value(timeout=20) == 49
        assert await known.value(timeout=20) == 64
        assert await wrong.cancel()
        with pytest.raises(JobFailedError, match="cancelled"):
            await wrong.value(timeout=20)


async def test_a_job_of_no_queue_says_how_it_is_enqueued(jet: Jet) -> None:
    with pytest.raises(ConfigError, match=r"queue\.enqueue\(job"):
        await repair.enqueue("car1")
    with pytest.raises(ConfigError, match=r"queue\.enqueue\(job"):
        await repair.options(key="car1").enqueue("car1")
    queue, other = await jet.queue("garage"), await jet.queue("other")

    @queue.job
    async def wash(car: str) -> None: ...

    with pytest.raises(ConfigError, match="belongs to queue 'garage'"):
        await other.enqueue(wash, "car1")


async def test_names_are_unique_in_a_queue(jet: Jet) -> None:
    with pytest.raises(ConfigError, match="a job 'square' already"):
        jobs.job(name="square")(lambda: None)
    others = pelton.Jobs()

    @others.job(name="square")
    async def other() -> None: ...

    with pytest.raises(ConfigError, match="has a job 'square' already"):
        await jet.queue("garage", jobs=[jobs, others])
    queue = await jet.queue("garage", jobs=others)
    with pytest.raises(ConfigError, match="has a job 'square' already"):
        queue.job(name="square")(lambda: None)
    with pytest.raises(ConfigError, match=r"give a pelton\.Jobs\(\)"):
        await jet.queue("garage", jobs=[repair])  # type: ignore[list-item]


async def test_a_job_that_is_declared_later_is_known(jet: Jet) -> None:
    late = pelton.Jobs()
    queue = await jet.queue("garage", jobs=late)

    @late.job
    async def answer() -> int:
        return 42

    handle = await queue.enqueue(answer)
    await drain(queue)
    assert await handle.value() == 42


async def test_wrong_options_store_nothing(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    with pytest.raises(ConfigError, match="key"):
        queue.options(key=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="idempotency_key"):
        repair.options(idempotency_key=7)  # type: ignore[arg-type]
    assert (await queue.counts()).pending == 0


async def test_a_repeated_call_with_options_returns_the_first_job(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    once = queue.options(idempotency_key="order-7")
    first, again = await once.enqueue(repair, "car1"), await once.enqueue(repair, "car1")
    assert (again.id, first.duplicate, again.duplicate) == (first.id, False, True)


async def test_declared_jobs_take_part_in_a_transaction(jet: Jet) -> None:
    queue = await jet.queue("garage", jobs=jobs)
    with suppress(ZeroDivisionError):
        async with jet.transaction() as tx:
            await tx.queue(queue).enqueue(repair, "car1")
            raise ZeroDivisionError
    async with jet.transaction() as tx:
        handle = await tx.queue(queue).options(key="car2").enqueue(repair, "car2")
        by_name = await tx.queue(queue).enqueue("square", n=2)
        with pytest.raises(ConfigError, match=r"tx\.queue"):
            await tx.enqueue(repair, "car3")
    await drain(queue)
    assert await handle.value() == "car2: paint"
    assert await by_name.value() == 4
    assert (await queue.counts()).completed == 2


async def test_a_value_of_another_type_than_declared_is_told(jet: Jet) -> None:
    sender = await jet.queue("garage", jobs=jobs)
    other = pelton.Jobs()

    @other.job(name="square")
    async def text(n: int) -> str:
        return "nine"

    handle = await sender.enqueue(squared, 3)
    await drain(await jet.queue("garage", jobs=other))
    with pytest.raises(JobResultError, match="square"):
        await handle.value()


def test_the_blocking_face_takes_declared_jobs() -> None:
    with sync.open("memory:") as jet:
        queue = jet.queue("garage", jobs=jobs)
        handle = queue.options(key="car1").enqueue(repair, "car1")
        queue.work(until_empty=True, handle_signals=False)
        assert handle.value() == "car1: paint"
