"""Messages without room wait, and block nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import pelton
from pelton.engine.salvage import recount
from pelton.testing import ManualClock, manual_runtime

WORK = {
    "retention": "workqueue",
    "max_msgs_per_subject": 1,
    "discard": "new",
    "discard_new_per_subject": True,
    "sources": [{"name": "inbox"}],
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def runtime() -> Any:
    return manual_runtime()


@pytest.fixture
async def jet(path: str, runtime: Any) -> AsyncIterator[pelton.Jet]:
    async with pelton.open(path, runtime=runtime) as opened:
        yield opened
    assert recount(path) == []


async def inbox_and_work(jet: pelton.Jet, per_subject: int = 10, **inbox: Any) -> tuple[pelton.Stream, pelton.Consumer]:
    """An inbox, and a work stream of one message per subject that sources it."""
    await jet.create_stream("inbox", subjects=["in.>"], max_msgs_per_subject=per_subject, **inbox)
    work = await jet.create_stream("work", **WORK)
    return work, await work.create_consumer(durable_name="workers", ack_wait=30)


async def data_of(consumer: pelton.Consumer) -> list[bytes]:
    return [message.data for message in await consumer.fetch(100, timeout=0)]


async def test_the_next_of_a_subject_comes_with_the_ack(jet: pelton.Jet) -> None:
    _, workers = await inbox_and_work(jet)
    for number in range(3):
        await jet.publish("in.a", b"a%d" % number)
    (first,) = await workers.fetch(10, timeout=0)
    await first.ack()
    (second,) = await workers.fetch(10, timeout=0)
    assert (first.data, second.data) == (b"a0", b"a1")


async def test_other_subjects_flow_while_one_is_taken(jet: pelton.Jet) -> None:
    work, workers = await inbox_and_work(jet)
    await jet.publish_batch([("in.a", b"a0"), ("in.a", b"a1"), ("in.b", b"b0")])
    await jet.publish("in.c", b"c0")
    assert await data_of(workers) == [b"a0", b"b0", b"c0"]
    source = (await work.info()).sources[0]
    assert (source.lag, source.error) == (1, None)


async def test_what_waits_is_dropped_with_its_origin(jet: pelton.Jet) -> None:
    _, workers = await inbox_and_work(jet, per_subject=1)
    for number in range(4):
        await jet.publish("in.a", b"a%d" % number)
    (first,) = await workers.fetch(10, timeout=0)
    await first.ack()
    assert (first.data, await data_of(workers)) == (b"a0", [b"a3"])


async def test_an_inbox_that_refuses_loses_nothing(jet: pelton.Jet) -> None:
    inbox = {"retention": "workqueue", "discard": "new", "discard_new_per_subject": True}
    _, workers = await inbox_and_work(jet, per_subject=2, **inbox)
    for number in range(3):
        await jet.publish("in.a", b"a%d" % number)
    with pytest.raises(pelton.MaxMessagesPerSubjectError):
        await jet.publish("in.a", b"too many")
    found = []
    for _ in range(3):
        (message,) = await workers.fetch(10, timeout=0)
        found.append(message.data)
        await message.ack()
    assert found == [b"a0", b"a1", b"a2"]
    assert (await (await jet.stream("inbox")).info()).state.messages == 0


async def test_a_message_is_held_past_its_ack_wait_and_given_up(jet: pelton.Jet, runtime: Any) -> None:
    _, workers = await inbox_and_work(jet)
    clock: ManualClock = runtime.clock
    await jet.publish_batch([("in.a", b"a0"), ("in.a", b"a1")])
    (message,) = await workers.fetch(10, timeout=0)
    for _ in range(3):
        clock.advance(20)
        await message.in_progress()
        assert await data_of(workers) == []
    clock.advance(31)
    (again,) = await workers.fetch(10, timeout=0)
    assert (again.data, again.metadata.num_delivered) == (b"a0", 2)
    await again.ack()
    assert await data_of(workers) == [b"a1"]


async def test_a_purge_lets_all_go_on(jet: pelton.Jet) -> None:
    work, workers = await inbox_and_work(jet)
    await jet.publish_batch([(f"in.{n % 2}", b"%d" % n) for n in range(6)])
    await work.purge()
    assert await data_of(workers) == [b"2", b"3"]
    assert (await work.info()).sources[0].lag == 2


async def test_a_limit_that_is_raised_lets_more_go_on(jet: pelton.Jet) -> None:
    work, workers = await inbox_and_work(jet)
    await jet.publish_batch([("in.a", b"%d" % n) for n in range(5)])
    await jet.update_stream("work", max_msgs_per_subject=3)
    assert await data_of(workers) == [b"0", b"1", b"2"]
    assert (await work.info()).sources[0].lag == 2


async def test_a_full_stream_stalls_its_source(jet: pelton.Jet) -> None:
    await jet.create_stream("inbox", subjects=["in.>"])
    work = await jet.create_stream("work", max_msgs=2, discard="new", sources=[{"name": "inbox"}])
    await jet.publish_batch([(f"in.{n}", b"%d" % n) for n in range(4)])
    assert (await work.info()).sources[0].lag == 2
    await work.delete_message(1)
    state = (await work.info()).state
    assert (state.messages, state.last_seq) == (2, 3)


async def test_what_is_too_large_keeps_its_subject_alone_and_is_told(jet: pelton.Jet) -> None:
    await jet.create_stream("inbox", subjects=["in.>"])
    work = await jet.create_stream("work", max_msg_size=100, sources=[{"name": "inbox"}])
    await jet.publish_batch([("in.a", b"x" * 200), ("in.a", b"after"), ("in.b", b"b")])
    info = await work.info()
    assert info.state.messages == 1
    assert info.sources[0].lag == 2
    assert info.sources[0].error is not None
    assert info.sources[0].error.err_code == 10054
    await jet.update_stream("work", max_msg_size=400)
    info = await work.info()
    assert (info.state.messages, info.sources[0].lag, info.sources[0].error) == (3, 0, None)


async def test_two_openers_share_what_waits(path: str) -> None:
    async with pelton.open(path) as one, pelton.open(path) as two:
        _, workers = await inbox_and_work(one)
        await one.publish("in.a", b"a0")
        await two.publish("in.a", b"a1")
        other = await (await two.stream("work")).consumer("workers")
        (message,) = await other.fetch(10, timeout=0)
        await two.publish("in.b", b"b0")
        await message.ack()
        assert await data_of(workers) == [b"b0", b"a1"]
    assert recount(path) == []


async def test_what_waits_survives_a_reopening(path: str) -> None:
    async with pelton.open(path) as jet:
        await inbox_and_work(jet)
        await jet.publish_batch([("in.a", b"a0"), ("in.a", b"a1")])
    async with pelton.open(path) as jet:
        workers = await (await jet.stream("work")).consumer("workers")
        (message,) = await workers.fetch(1, timeout=0)
        await message.ack()
        assert await data_of(workers) == [b"a1"]


async def test_what_is_taken_from_a_work_queue_is_not_ahead_of_its_consumers(jet: pelton.Jet) -> None:
    work = await jet.create_stream("work", subjects=["work.>"], retention="workqueue")
    consumer = await work.create_consumer(durable_name="c")
    await jet.create_stream("part", mirror={"name": "work", "filter_subject": "work.a"})
    await jet.publish_batch([(f"work.{subject}", b"") for subject in "bca"])
    assert [message.subject for message in await consumer.fetch(1, timeout=0)] == ["work.b"]
    assert (await consumer.info()).num_pending == 1
