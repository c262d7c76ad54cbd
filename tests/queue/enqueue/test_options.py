"""Opening a queue: what is checked, what is fixed once it is made, what may differ."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pelton import Jet
from pelton.api import ConfigError
from tests.queue.conftest import ON_BOTH, OpenQueue
from tests.queue.helpers import drain


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", "ü", "x" * 65, "a/b", 5, None, b"q"])
async def test_names_that_are_none_are_refused(jet: Jet, name: Any) -> None:
    with pytest.raises(ConfigError, match="queue name"):
        await jet.queue(name)
    assert await jet.stream_names() == []


@pytest.mark.parametrize("lease", [0, -1, 0.09, float("nan"), float("inf"), timedelta(days=2), "x", True])
async def test_leases_that_are_none_are_refused(jet: Jet, lease: Any) -> None:
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
    assert consumer.config.ack_wait == 2  # nobody's lease was cut


async def test_two_who_make_it_at_once_with_other_options_find_out(jet: Jet) -> None:
    results = await asyncio.gather(
        jet.queue("q", exclusive=True), jet.queue("q", exclusive=False), return_exceptions=True
    )
    assert sum(isinstance(result, ConfigError) for result in results) == 1
    alike = await asyncio.gather(*(jet.queue("r", exclusive=True) for _ in range(5)))
    assert {queue.exclusive for queue in alike} == {True}


async def test_a_stream_of_that_name_that_is_no_queue_is_refused(jet: Jet) -> None:
    await jet.create_stream("JOBS_q", subjects=["other"])
    with pytest.raises(ConfigError, match="needs the stream 'JOBS_q', which is not part of a queue"):
        await jet.queue("q")


@pytest.mark.parametrize("option", ["unique", "id", "idempotency_key"])
async def test_texts_that_cannot_be_stored_are_refused(jet: Jet, option: str) -> None:
    queue = await jet.queue("q")
    with pytest.raises(ConfigError, match=rf"queue 'q': {option} is '.ud800', which is not valid text"):
        queue.options(**{option: "\ud800"})  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"the name of a flow is '.ud800', which is not valid text"):
        await queue.new_flow("\ud800")


@pytest.mark.parametrize(
    "options",
    [
        {"exclusive": "yes"},
        {"history_max_age": "x"},
        {"history_max_age": -1},
        {"history_max_age": 0.05},
        {"num_replicas": 0},
        {"num_replicas": "3"},
    ],
)
async def test_settings_that_are_none_are_refused(jet: Jet, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"queue 'q': {next(iter(options))}"):
        await jet.queue("q", **options)
    assert await jet.stream_names() == []


@ON_BOTH
@pytest.mark.parametrize("side", ["history", "dead", "attempts", "control", "keys"])
async def test_a_queue_whose_name_is_a_stream_of_another_one_is_refused(jet: Jet, side: str) -> None:
    await jet.queue("mail")
    made = await jet.stream_names()
    with pytest.raises(ConfigError, match=r"queue 'mail'.*give (the|this) queue another name"):
        await jet.queue(f"mail_{side}")
    assert await jet.stream_names() == made


@ON_BOTH
@pytest.mark.parametrize("side", ["history", "dead", "attempts", "control", "keys"])
async def test_a_queue_one_of_whose_streams_is_another_queue_is_refused(jet: Jet, side: str) -> None:
    other = await jet.queue(f"mail_{side}")
    made = await jet.stream_names()
    with pytest.raises(ConfigError, match=f"'JOBS_mail_{side}', which holds the jobs of queue 'mail_{side}'"):
        await jet.queue("mail")
    assert await jet.stream_names() == made
    other.job(name="job")(lambda: 1)
    await other.jobs_by_name["job"].enqueue()
    await drain(other)
    assert (await other.counts()).completed == 1


async def test_a_stream_that_took_the_name_of_a_side_stream_is_told(jet: Jet) -> None:
    """Even if the queue already exists: the stream of its dead letters was deleted, and replaced by another one."""
    await jet.queue("mail")
    await jet.delete_stream("JOBS_mail_dead")
    await jet.create_stream("JOBS_mail_dead", subjects=["other"])
    with pytest.raises(ConfigError, match="needs the stream 'JOBS_mail_dead', which is not part of a queue"):
        await jet.queue("mail")


@ON_BOTH
async def test_the_age_of_the_history_changes_when_it_is_given(jet: Jet, another: OpenQueue) -> None:
    await jet.queue("q")

    async def kept() -> tuple[float, float]:
        config = (await jet.stream("JOBS_q_history")).config
        return config.max_age.seconds, config.duplicate_window.seconds

    assert await kept() == (7 * 86_400, 120)
    await another("q", history_max_age=60)
    assert await kept() == (60, 60)
    await another("q")
    assert await kept() == (60, 60)
    await another("q", history_max_age=timedelta(hours=1))
    assert await kept() == (3600, 120)
    await another("q", history_max_age=0)
    assert await kept() == (0, 120)


async def test_fixed_settings_are_refused_with_what_to_do(jet: Jet) -> None:
    await jet.queue("q", lease=5)
    with pytest.raises(ConfigError) as refused:
        await jet.queue("q", lease=7)
    assert str(refused.value) == (
        "queue 'q' was made with lease=5.0 and cannot be opened with lease=7.0: its running workers rely on it. "
        "Open it with lease=5.0, or leave lease out; to change it, make a new queue under another name"
    )


async def test_a_file_has_no_replicas(jet: Jet) -> None:
    with pytest.raises(ConfigError, match="num_replicas"):
        await jet.queue("q", num_replicas=3)
    assert await jet.stream_names() == []
    await jet.queue("q", num_replicas=1)
    with pytest.raises(ConfigError, match="num_replicas"):
        await jet.queue("q", num_replicas=3)


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
        queue = await jet.queue("q", exclusive=True)

        @queue.job
        async def job(n: int) -> int:
            return n

        handles = await job.enqueue_many([(n,) for n in range(50)], keys=["k", "l"] * 25)
        await drain(queue)
        assert [(await handle.outcome()).value() for handle in handles] == list(range(50))
