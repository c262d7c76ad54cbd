"""Processes that push to each other are killed and paused: another takes over, nothing is lost, order is kept."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

import pelton
from pelton.engine import pushes
from pelton.engine.salvage import recount
from pelton.jet import Message
from tests.stopping import stand_still
from tests.storage.processes import Child, hear_in_child

_DELIVER = "deliver.here"


async def _consume(pipe: Connection, path: Path, look_s: float) -> None:
    """Take every message and report ``(number, deliveries)``; each is acknowledged after its report."""
    pushes._LOOK_S = look_s  # type: ignore[misc]  # a child of its own, which must not wait for long
    async with pelton.open(path) as jet:
        consumer = await (await jet.stream("S")).consumer("c")

        def say(message: Message) -> None:
            pipe.send((int(message.data), message.metadata.num_delivered))

        consuming = asyncio.ensure_future(consumer.consume(say))
        pipe.send("open")
        await hear_in_child(pipe)
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    pipe.send("closed")


async def _make(path: Path, group: str, messages: int) -> None:
    async with pelton.open(path) as jet:
        stream = await jet.create_stream("S", subjects=["s.>"])
        await stream.create_consumer(durable_name="c", deliver_subject=_DELIVER, deliver_group=group, ack_wait=0.5)
        await jet.publish_batch([("s.a", b"%d" % n) for n in range(messages)])


def _drain(children: list[Child], seen: set[int]) -> None:
    """Read the children's reports so far: a child with unread reports does not continue."""
    for child in children:
        while child.pipe.poll(0.001):
            seen.add(child.hear()[0])


@pytest.mark.parametrize("group", ["", "g"])
async def test_listeners_are_killed_and_come_again(tmp_path: Path, group: str) -> None:
    path = tmp_path / "a.pelton"
    await _make(path, group, 700)
    random, seen = Random(7), set[int]()
    with ExitStack() as stack:

        def start() -> Child:
            child = stack.enter_context(Child(_consume, path, 0.05))
            assert child.hear() == "open"
            return child

        alive = [start() for _ in range(3)]
        async with pelton.open(path) as jet:
            for number in range(6):
                await jet.publish_batch([("s.a", b"%d" % (700 + 50 * number + n)) for n in range(50)])
                # The oldest one pumps; the others are killed now and then as well.
                victim = alive.pop(0 if random.random() < 0.7 else random.randrange(len(alive)))
                victim.pipe.poll(random.uniform(0, 0.01))
                if random.random() < 0.8:
                    victim.kill()
                else:
                    victim.say("leave")
                seen.update(word[0] for word in victim.hear_all() if isinstance(word, tuple))
                alive.append(start())
            consumer = await (await jet.stream("S")).consumer("c")
            while (info := await consumer.info()).num_ack_pending or info.num_pending:
                await asyncio.to_thread(_drain, alive, seen)
        for child in alive:
            child.say("leave")
            seen.update(word[0] for word in child.hear_all() if isinstance(word, tuple))
    assert seen == set(range(1000)), "every message was handled"
    assert recount(str(path)) == []


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_another_pumps_when_the_first_is_gone(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "a.pelton"
    await _make(path, "", 100)
    with ExitStack() as stack:
        first = stack.enter_context(Child(_consume, path, 0.02))
        assert first.hear() == "open"
        assert [first.hear()[0] for _ in range(100)] == list(range(100))
        second = stack.enter_context(Child(_consume, path, 0.02))
        assert second.hear() == "open"
        if how == signal.SIGSTOP:
            stand_still(first.process.pid, path)
        else:
            first.kill()
        try:
            async with pelton.open(path) as jet:
                await jet.publish_batch([("s.a", b"%d" % n) for n in range(100, 200)])
                assert [second.hear() for _ in range(100)] == [(n, 1) for n in range(100, 200)]
        finally:
            if how == signal.SIGSTOP:
                os.kill(first.process.pid or 0, signal.SIGCONT)
        for child in (second, first) if how == signal.SIGSTOP else (second,):
            child.say("leave")
            assert child.hear_all()[-1] == "closed"
    assert recount(str(path)) == []
