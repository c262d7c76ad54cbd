"""How many pages a write adds to the log: each is a page to write, to sync and to fold later."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import apsw
import pytest

import pelton

# A page with the header of its frame.
_FRAME: Final = 4096 + 24
_WRITES: Final = 200


async def pages(path: Path, write: Callable[[int], Awaitable[Any]]) -> float:
    """Return how many pages a write adds to the log, on average."""
    log = f"{path}-wal"
    before = os.path.getsize(log)
    for number in range(_WRITES):
        await write(number)
    return (os.path.getsize(log) - before) / _FRAME / _WRITES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pelton"


async def test_a_publish_writes_one_page(path: Path) -> None:
    async with pelton.open(path, sync="off") as jet:
        await jet.create_stream("s", subjects=["s.>"])
        assert await pages(path, lambda number: jet.publish(f"s.{number % 7}", b"x" * 60)) <= 1.15


async def test_a_job_that_is_enqueued_writes_one_page(path: Path) -> None:
    async with pelton.open(path, sync="off") as jet:
        queue = await jet.queue("q")

        @queue.job
        async def repair(car: int) -> None: ...

        assert await pages(path, repair.enqueue) <= 1.15


async def taken_and_acked(path: Path, retention: str) -> float:
    async with pelton.open(path, sync="off") as jet:
        stream = await jet.create_stream("s", subjects=["s.>"], retention=retention)
        consumer = await stream.create_consumer(durable_name="c")
        await jet.publish_batch([(f"s.{number % 7}", b"x" * 60) for number in range(2 * _WRITES)])

        async def take(_: int) -> None:
            [message] = await consumer.fetch(1)
            await message.ack()

        return await pages(path, take)


async def test_a_delivery_and_its_ack_write_a_page_each(path: Path) -> None:
    assert await taken_and_acked(path, "limits") <= 2.1


async def test_a_delivery_and_its_ack_remove_a_message_of_a_work_queue(path: Path) -> None:
    assert await taken_and_acked(path, "workqueue") <= 3.5


async def test_a_value_writes_its_message_its_subject_and_the_counts(path: Path) -> None:
    async with pelton.open(path, sync="off") as jet:
        bucket = await jet.create_bucket("b")
        assert await pages(path, lambda number: bucket.put(f"key{number % 20}", b"x" * 60)) <= 3.1


async def test_a_value_that_replaces_one_of_another_page_writes_that_page_as_well(path: Path) -> None:
    async with pelton.open(path, sync="off") as jet:
        bucket = await jet.create_bucket("b")
        await jet.publish_batch([(f"$KV.b.key{number}", b"x" * 60) for number in range(5_000)])
        assert await pages(path, lambda number: bucket.put(f"key{23 * number}", b"x" * 60)) <= 4.15


async def test_a_transaction_writes_few_pages(path: Path) -> None:
    async with pelton.open(path, sync="off") as jet:
        await jet.create_stream("done", subjects=["done.>"])
        stream = await jet.create_stream("s", subjects=["s.>"], retention="workqueue")
        consumer = await stream.create_consumer(durable_name="c", max_ack_pending=-1)
        async with jet.transaction() as tx:
            await tx.sql("CREATE TABLE rows(n INTEGER PRIMARY KEY, text TEXT)")
        await jet.publish_batch([(f"s.{number % 7}", b"x" * 60) for number in range(10 * _WRITES)])
        messages = await consumer.fetch(10 * _WRITES)

        async def settle(number: int) -> None:
            async with jet.transaction() as tx:
                for message in messages[10 * number : 10 * number + 10]:
                    await tx.ack(message)
                    await tx.publish("done.1", b"x" * 60)
                await tx.sql("INSERT INTO rows VALUES(?, ?)", (number, "row"))

        assert await pages(path, settle) <= 8


async def test_an_ack_does_not_look_through_all_that_is_pending(path: Path) -> None:
    """By SQLite's steps, which do not wander as times do."""
    steps = Counter[str]()
    counted = ""

    def on_steps() -> bool:
        steps[counted] += 1
        return False

    def watch(connection: apsw.Connection) -> None:
        connection.set_progress_handler(on_steps, 10)

    apsw.connection_hooks.append(watch)
    try:
        async with pelton.open(path, sync="off") as jet:
            for counted, many in (("few", 50), ("many", 5_000)):
                stream = await jet.create_stream(counted, retention="workqueue")
                consumer = await stream.create_consumer(durable_name="c", max_ack_pending=-1)
                await jet.publish_batch([(counted, b"")] * many)
                messages = await consumer.fetch(many)
                steps[counted] = 0
                for message in messages[:40]:
                    await message.ack_sync()
    finally:
        apsw.connection_hooks.remove(watch)
    assert 0 < steps["many"] < 2 * steps["few"]
