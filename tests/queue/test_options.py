"""Opening a queue: what is checked, what is fixed when it is made, what may differ."""

import asyncio
from datetime import timedelta

import pytest

from pelton import Jet
from pelton.api import ConfigError
from tests.queue.conftest import OpenQueue
from tests.queue.helpers import drain


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", "ü", "x" * 65, "a/b"])
async def test_names_that_are_none_are_refused(jet: Jet, name: str) -> None:
    with pytest.raises(ConfigError, match="queue name"):
        await jet.queue(name)
    assert await jet.stream_names() == []


@pytest.mark.parametrize("lease", [0, -1, 0.09, float("nan"), float("inf"), timedelta(days=2)])
async def test_leases_that_are_none_are_refused(jet: Jet, lease: float) -> None:
    with pytest.raises(ConfigError, match="lease"):
        await jet.queue("q", lease=lease)
    assert await jet.stream_names() == []


async def test_defaults(jet: Jet) -> None:
    queue = await jet.queue("q")
    assert (queue.exclusive, queue.lease) == (False, 30.0)


async def test_what_all_users_agree_on_is_fixed_when_the_queue_is_made(jet: Jet, another: OpenQueue) -> None:
    await jet.queue("q", exclusive=True, lease=timedelta(seconds=2))
    same = await another("q")
    assert (same.exclusive, same.lease) == (True, 2.0)
    assert (await another("q", exclusive=True, lease=2)).lease == 2.0
    with pytest.raises(ConfigError, match="made with exclusive=True"):
        await another("q", exclusive=False)
    with pytest.raises(ConfigError, match=r"made with lease=2\.0"):
        await another("q", lease=1)
    consumer = await (await jet.stream("JOBS_q")).consumer("workers")
    assert consumer.config.ack_wait == 2_000_000_000  # nobody's lease was cut


async def test_two_who_make_it_at_once_with_other_options_find_out(jet: Jet) -> None:
    results = await asyncio.gather(
        jet.queue("q", exclusive=True), jet.queue("q", exclusive=False), return_exceptions=True
    )
    assert sum(isinstance(result, ConfigError) for result in results) == 1
    alike = await asyncio.gather(*(jet.queue("r", exclusive=True) for _ in range(5)))
    assert {queue.exclusive for queue in alike} == {True}


async def test_a_stream_of_that_name_that_is_no_queue_is_refused(jet: Jet) -> None:
    await jet.create_stream("JOBS_q", subjects=["other"])
    with pytest.raises(ConfigError, match="is no queue"):
        await jet.queue("q")


async def test_a_file_has_no_replicas(jet: Jet) -> None:
    with pytest.raises(ConfigError, match="num_replicas"):
        await jet.queue("q", num_replicas=3)
    assert await jet.stream_names() == []


async def test_queues_do_not_see_each_other(jet: Jet) -> None:
    one, two = await jet.queue("one"), await jet.queue("one_two")
    one.job(name="job")(lambda: 1)
    job = two.job(name="job")(lambda: 2)
    handle = await job.enqueue()
    await drain(one)
    await drain(two)
    assert (await handle.outcome()).value() == 2
    assert (await one.counts()).finished == 0


async def test_a_memory_store_has_queues_too() -> None:
    import pelton

    async with pelton.open("memory:") as jet:
        queue = await jet.queue("q", exclusive=True, lease=0.3)

        @queue.job
        async def job(n: int) -> int:
            return n

        handles = await job.enqueue_many([(n,) for n in range(50)], keys=["k", "l"] * 25)
        await drain(queue)
        assert [(await handle.outcome()).value() for handle in handles] == list(range(50))
