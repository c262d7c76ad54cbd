"""Openers of a store of which some cannot use the wake-up folder: they are not considered gone, and are woken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pelton
from pelton import Jet
from pelton.storage.wake import WakeChannel

SOON = 30.0


class Openers(NamedTuple):
    """One that was refused the folder, and two that have it."""

    refused: Jet
    one: Jet
    two: Jet


@pytest.fixture
async def openers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Openers]:
    path = tmp_path / "a.pelton"
    with monkeypatch.context() as patched:
        patched.setattr(WakeChannel, "_join", lambda self: False)
        refused = await pelton.open(path)
    async with refused, pelton.open(path) as one, pelton.open(path) as two:
        await one.create_stream("s", subjects=["s.>"])
        yield Openers(refused, one, two)


async def test_what_one_without_a_socket_publishes_reaches_the_others(openers: Openers) -> None:
    consumer = await (await openers.one.stream("s")).create_consumer(durable_name="c")
    waiting = asyncio.ensure_future(consumer.next(timeout=None))
    async with asyncio.timeout(SOON), await openers.two.subscribe("s.>") as listening:
        await asyncio.sleep(0)
        await openers.refused.publish("s.1", b"here")
        message = await waiting
        assert message is not None
        assert message.data == b"here"
        heard = await listening.next()
        assert heard is not None
        assert heard.data == b"here"


async def test_one_without_a_socket_goes_on_listening(openers: Openers) -> None:
    async with asyncio.timeout(SOON), await openers.refused.subscribe("s.>") as listening:
        for number in range(3):
            await openers.one.publish("s.1", b"%d" % number)
            # A dead one is removed by the next publish.
            await openers.two.publish("s.2", b"")
        heard = [await listening.next() for _ in range(6)]
    assert [one.data for one in heard if one is not None and one.data] == [b"0", b"1", b"2"]


async def test_a_push_consumer_reaches_one_without_a_socket(openers: Openers) -> None:
    stream = await openers.one.stream("s")
    await stream.create_consumer(durable_name="c", deliver_subject="to.me")
    consumer = await (await openers.refused.stream("s")).consumer("c")
    received: list[bytes] = []

    async def receive() -> None:
        async for message in consumer.messages():
            received.append(message.data)
            if len(received) == 2:
                return

    async with asyncio.timeout(SOON):
        receiving = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        await openers.one.publish("s.1", b"1")
        await openers.two.publish("s.1", b"2")
        await receiving
    assert received == [b"1", b"2"]


async def test_a_pull_of_one_without_a_socket_keeps_its_turn(openers: Openers) -> None:
    settings = {"durable_name": "c", "priority_policy": "prioritized", "priority_groups": ["g"]}
    await (await openers.one.stream("s")).create_consumer(**settings)
    preferred = await (await openers.refused.stream("s")).consumer("c")
    other = await (await openers.one.stream("s")).consumer("c")
    async with asyncio.timeout(SOON):
        first = asyncio.ensure_future(preferred.next(timeout=None, group="g", priority=0))
        while not (await preferred.info()).num_waiting:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(other.next(timeout=None, group="g", priority=5))
        while (await other.info()).num_waiting != 2:
            await asyncio.sleep(0)
        await openers.two.publish("s.1", b"")
        assert await first is not None
    second.cancel()


async def test_who_holds_a_lock_without_a_socket_keeps_it(openers: Openers) -> None:
    held = await openers.refused.lock("car1").acquire()
    assert await openers.one.lock("car1").try_acquire() is None
    waiting = asyncio.ensure_future(openers.refused.lock("car2").acquire())
    async with asyncio.timeout(SOON):
        second = await waiting
        in_line = asyncio.ensure_future(openers.refused.lock("car1").acquire())
        assert await openers.one.lock("car1").try_acquire() is None
        await held.release()
        await (await in_line).release()
        await second.release()
