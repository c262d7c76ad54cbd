"""Waiting for the end of a job outlasts the loss of its consumer."""

import asyncio

import pytest

from pelton import Consumer, Jet
from pelton.api import ServerTimeoutError
from pelton.queue import Queue
from tests.queue.conftest import ON_BOTH
from tests.queue.helpers import drain


async def test_an_outcome_is_awaited_again_where_the_consumer_is_lost(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.job
    async def job() -> int:
        return 7

    handle = await job.enqueue()
    await drain(queue)
    losses = [ServerTimeoutError("nats://n", "no answer for 30 s")]
    fetch = Consumer.fetch

    async def lost_once(self: Consumer, *args: object, **fields: object) -> object:
        if losses:
            raise losses.pop()
        return await fetch(self, *args, **fields)  # type: ignore[arg-type]  # handed on

    monkeypatch.setattr(Consumer, "fetch", lost_once)
    assert (await handle.outcome(timeout=30)).value() == 7
    assert not losses
    assert await (await queue.jet.stream(queue.names.history)).consumer_names() == []


@ON_BOTH
async def test_an_outcome_is_awaited_though_the_server_has_forgotten_who_awaits_it(jet: Jet) -> None:
    queue = await jet.queue("garage")

    @queue.job
    async def job() -> int:
        return 7

    handle = await job.enqueue()
    history, awaited = await jet.stream(queue.names.history), asyncio.create_task(handle.outcome(timeout=30))
    while not (names := await history.consumer_names()):
        await asyncio.sleep(0.01)
    # As a server does with one whose client was not heard for seconds.
    await history.delete_consumer(names[0])
    await drain(queue)
    assert (await awaited).value() == 7
    assert await history.consumer_names() == []
