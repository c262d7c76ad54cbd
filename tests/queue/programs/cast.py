"""The jobs of random programs, and a worker of them: ``python -m tests.queue.programs.cast <store> <log>``.

A job does what its number says: it succeeds, fails now and then or always, sleeps, is cancelled, does steps. It records
what happens to it; one line, one write, with O_APPEND, so that lines of several processes never mix.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import pelton
from pelton.queue import JobContext, Queue
from tests.kit.judge.queue_history import HistoryEvent, HistoryEventKind

QUEUES = ("shop", "yard")
LEASE_S = 1.0
MAX_ATTEMPTS = 6
Note = Callable[[HistoryEvent], object]
BACKOFF = pelton.Backoff(base=0.05, factor=2, cap=0.2)


class EventLog:
    """A file of events that any number of processes write."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, event: HistoryEvent) -> None:
        os.write(self._file, msgspec.json.encode(event) + b"\n")

    def read(self) -> list[HistoryEvent]:
        return [msgspec.json.decode(line, type=HistoryEvent) for line in Path(self._path).read_bytes().splitlines()]


def draw() -> int:
    """Return a number that no other call returns."""
    return random.getrandbits(60)


class Player:
    """Does what the number of a job says, and records it."""

    def __init__(self, queue: Queue, note: Note) -> None:
        self._queue = queue
        self._note = note

    def _event(self, kind: HistoryEventKind, context: JobContext, name: str, **facts: Any) -> None:
        event = HistoryEvent(
            kind=kind,
            queue=self._queue.name,
            at=time.monotonic_ns(),
            job=context.id,
            key=context.key,
            name=name,
            worker=context.worker,
            token=context.token,
            attempt=context.attempt,
            **facts,
        )
        self._note(event)

    async def play(self, name: str, number: int, context: JobContext, **facts: Any) -> int:
        self._event("start", context, name, **facts)
        try:
            await self._steps(name, number, context)
            self._end(number, context)
        except BaseException:
            self._event("lost" if context.lost else "end", context, name)
            raise
        self._event("end", context, name, state="returned")
        return number

    async def _steps(self, name: str, number: int, context: JobContext) -> None:
        for _ in range(number % 4):
            await asyncio.sleep(0)
        if number % 3 == 0:
            value = await context.step("draw", draw)
            self._event("step", context, name, step="draw", value=str(value))
        if number % 5 == 0:
            await asyncio.sleep(0.003)
        if number % 13 == 0:
            await context.sleep(1.5)
        if number % 6 == 0:
            value = await context.step("again", draw)
            self._event("step", context, name, step="again", value=str(value))

    def _end(self, number: int, context: JobContext) -> None:
        if number % 7 == 0 and context.attempt < 3:
            raise ValueError("it fails now and then")
        if number % 8 == 0 and context.attempt < 2:
            raise pelton.RetryJob(0.02, "again")
        for divisor, error in (
            (11, RuntimeError("it always fails")),
            (17, pelton.Cancel("not wanted")),
            (19, pelton.Discard("no use")),
            (23, pelton.PermanentJobError("wrong")),
        ):
            if number % divisor == 0:
                raise error


def register(queue: Queue, note: Note) -> None:
    player = Player(queue, note)

    @queue.job(max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
    async def wash(number: int, context: JobContext) -> int:
        return await player.play("wash", number, context)

    @queue.job(max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
    async def paint(number: int, context: JobContext) -> int:
        return await player.play("paint", number, context)

    @queue.job(max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
    async def node(number: int, before: list[int | None], adds: int, context: JobContext) -> int:
        assert context.flow is not None
        given = msgspec.json.encode(before).decode()
        if adds:
            more, last = pelton.FlowExtension(context), list[Any]()
            for place in range(adds):
                last = [more.add("node", number=number + place + 1, before=last, adds=0).result]
        return await player.play("node", number, context, flow=context.flow.flow, node=context.flow.node, value=given)

    @queue.job(max_attempts=MAX_ATTEMPTS, backoff=BACKOFF)
    async def hurry(context: JobContext) -> int:
        await player.play("hurry", 1, context)
        # So that a worker takes few of them ahead.
        await asyncio.sleep(0.01)
        return 1


async def main(path: str, log: str) -> None:
    note = EventLog(log).write
    async with pelton.open(path) as jet:
        queues = [await jet.queue(name, create=False) for name in QUEUES]
        for queue in queues:
            register(queue, note)
        print("ready", flush=True)
        await asyncio.gather(*(queue.work(concurrency=3) for queue in queues))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
