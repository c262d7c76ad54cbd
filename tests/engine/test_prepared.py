"""A statement is prepared once for a connection, and not anew for what is bound to it (``storage/database.py``).

SQLite's own counter does not tell: what is planned anew asks the authorizer again, so its calls are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import apsw
import pytest

import pelton
from pelton import Jet

Steps = dict[str, Callable[[int], Awaitable[object]]]


@pytest.fixture
def prepared() -> Iterator[Counter[str]]:
    """How often each statement has been prepared, by all connections opened while the test runs."""
    counts: Counter[str] = Counter()
    asked = False

    def on_asked(*_: object) -> int:
        nonlocal asked
        asked = True
        return apsw.SQLITE_OK

    def on_run(event: dict[str, object]) -> None:
        nonlocal asked
        if asked and not event["trigger"]:
            counts[str(event["sql"])] += 1
        asked = False

    def watch(connection: apsw.Connection) -> None:
        connection.authorizer = on_asked
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, on_run)

    apsw.connection_hooks.append(watch)
    yield counts
    apsw.connection_hooks.remove(watch)


async def _steps(jet: Jet, stack: AsyncExitStack) -> Steps:
    stream = await jet.create_stream("s", subjects=["s.>"], allow_direct=True)
    every = await stream.create_consumer(durable_name="every")
    some = await stream.create_consumer(durable_name="some", filter_subject="s.3")
    narrow = await stream.create_consumer(durable_name="narrow", filter_subjects=["s.2", "s.3.>"])
    refused = await stream.create_consumer(durable_name="refused", max_ack_pending=5)
    grouped = await stream.create_consumer(durable_name="grouped", priority_policy="overflow", priority_groups=["g"])
    bucket = await jet.create_bucket("bucket", history=2)
    queue = await jet.queue("queue", exclusive=True)
    claims = await stack.enter_async_context(queue.claims())

    @queue.job
    async def nothing(number: int) -> None: ...

    async def work(number: int) -> None:
        await queue.enqueue_many([nothing.options(key=f"k{n % 5}").bind(n) for n in range(10)])
        left = 10
        while left:
            taken = await claims.take(2, timeout=60)
            for one in taken:
                one.complete()
            await claims.settle(taken)
            left -= len(taken)

    async def update(number: int) -> None:
        entry = await bucket.get("k1")
        await bucket.update("k1", b"%d" % number, entry.revision)

    async def take(consumer: pelton.Consumer) -> None:
        [message] = await consumer.fetch(1)
        await message.ack_sync()

    async def refuse(_: int) -> None:
        [message] = await refused.fetch(1)
        await message.nak()

    async def group(_: int) -> None:
        [message] = await grouped.fetch(1, group="g")
        await message.ack_sync()

    return {
        "nak": refuse,
        "group": group,
        "unique job": lambda number: nothing.options(unique=str(number), key="k").enqueue(1),
        "delayed job": lambda number: nothing.options(delay=100 + number, key="k").enqueue(1),
        "publish": lambda number: jet.publish(f"s.{number % 4}", b"%d" % number),
        "fetch and ack": lambda _: take(every),
        "fetch one subject": lambda _: take(some),
        "fetch by two filters": lambda _: take(narrow),
        "last message": lambda number: stream.get_last_message(f"s.{number % 4}"),
        "put": lambda number: bucket.put(f"k{number % 3}", b""),
        "update": update,
        "exclusive jobs": work,
    }


async def test_nothing_is_prepared_anew_for_what_is_bound(tmp_path: Path, prepared: Counter[str]) -> None:
    async with pelton.open(tmp_path / "a.pelton", sync="off") as jet, AsyncExitStack() as stack:
        steps = await _steps(jet, stack)
        for number in range(80):
            await steps["publish"](number)
        for name, step in steps.items():
            for number in range(9):
                await step(number)
            prepared.clear()
            for number in range(9, 17):
                await step(number)
            # What runs now and then, as folding the log, may be new; nothing is at each step.
            assert {sql: times for sql, times in prepared.items() if times > 4} == {}, name
