"""The measured processes: one that works or publishes by itself, through a writer, or as the writer of all.

``python -m benchmarks.prototypes.one_writer.children WHAT`` says when it is ready, begins at a line on standard input,
and prints what it did; a writer does that only at another line, when nobody needs it any more.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Literal, cast

import msgspec

import pelton
from benchmarks.prototypes.one_writer.remote import AskingBackend
from benchmarks.prototypes.one_writer.serving import WritesForAll
from pelton.api import Backend
from pelton.runtime import system_runtime

READY = "ready"
CONCURRENCY = 64
_LONGEST_S = 120.0
PAYLOAD = b"x" * 128

Role = Literal["alone", "writer", "threaded", "asker"]
WRITERS = ("writer", "threaded")
# For how long one that computes keeps its event loop, in seconds of CPU.
_COMPUTED_S = 0.05
_PAUSE_S = 0.01


class Part(msgspec.Struct, frozen=True):
    """What one process does.

    Its ``role`` is to write by itself, to write for all, the same on a thread of its own, or to ask. ``verb``: "work"
    (jobs of ``burn_us`` of CPU each), "publish" (``each`` in flight for ``seconds``), "compute" for ``seconds``, "wait"
    for a publish now and then, or "" for a writer that does nothing else.
    """

    path: str
    role: Role
    verb: Literal["work", "publish", "compute", "wait", ""]
    each: int = 0
    seconds: float = 0.0
    burn_us: int = 0


class Done(msgspec.Struct, frozen=True):
    """How many jobs or messages one process was through with, its CPU seconds, and when it began and ended.

    ``waits``: seconds that each publish of verb "wait" took.
    """

    count: int
    cpu: float
    began: float
    ended: float
    waits: list[float] = []


async def noop() -> None:
    """Do nothing: the job."""


def _address(path: str) -> str:
    return path + ".writer"


@asynccontextmanager
async def opened(part: Part) -> AsyncIterator[pelton.Jet]:
    """Open the store, or connect to the process that has it open."""
    if part.role == "asker":
        async with _asking(part.path) as jet:
            yield jet
    elif part.role == "threaded":
        async with _thread(part.path), _asking(part.path) as jet:
            yield jet
    else:
        async with pelton.open(part.path) as jet:
            if part.role == "alone":
                yield jet
                return
            serving = WritesForAll(jet.backend)
            await serving.listen(_address(part.path))
            yield jet
            await serving.close()


@asynccontextmanager
async def _asking(path: str) -> AsyncIterator[pelton.Jet]:
    backend = AskingBackend(_address(path))
    yield pelton.Jet(cast(Backend, backend), system_runtime())
    await backend.close()


@asynccontextmanager
async def _thread(path: str) -> AsyncIterator[None]:
    """Write for all on a thread with an event loop of its own."""
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with opened(Part(path, "writer", "")):
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert await asyncio.to_thread(ready.wait, _LONGEST_S)
    yield
    over.set()
    await asyncio.to_thread(thread.join)


async def _line() -> None:
    await asyncio.to_thread(sys.stdin.readline)


async def _warmed_up() -> None:
    """Import what work imports, so that it is not measured once for each process."""
    async with pelton.open("memory:") as jet:
        queue = await jet.queue("bench", exclusive=True)
        await queue.job(noop).enqueue_many([(), ()], keys=["a", "b"])
        await queue.work(until_empty=True, handle_signals=False)
        await jet.create_stream("s", subjects=["s.>"])
        await asyncio.gather(*(jet.publish("s.a", PAYLOAD) for _ in range(20)))
    gc.collect()


async def _work(jet: pelton.Jet, burn_us: int) -> Callable[[], Awaitable[int]]:
    queue = await jet.queue("bench")
    ran: list[None] = []

    @queue.job(name="noop")
    async def counted() -> None:
        ran.append(None)
        end = process_time() + burn_us / 1e6 if burn_us else 0.0
        while burn_us and process_time() < end:
            pass

    async def run() -> int:
        await queue.work(concurrency=CONCURRENCY, until_empty=True, handle_signals=False)
        return len(ran)

    return run


async def _publish(jet: pelton.Jet, each: int, seconds: float) -> Callable[[], Awaitable[int]]:
    published = 0

    async def one(number: int, until: float) -> None:
        nonlocal published
        while perf_counter() < until:
            await jet.publish(f"s.{number}", PAYLOAD)
            published += 1

    async def run() -> int:
        until = perf_counter() + seconds
        await asyncio.gather(*(one(number, until) for number in range(each)))
        return published

    return run


async def _compute(seconds: float) -> int:
    """Keep the event loop busy, as a job does that computes."""
    until = perf_counter() + seconds
    turns = 0
    while perf_counter() < until:
        end = process_time() + _COMPUTED_S
        while process_time() < end:
            pass
        turns += 1
        await asyncio.sleep(0)
    return turns


async def _wait(jet: pelton.Jet, seconds: float, waits: list[float]) -> int:
    until = perf_counter() + seconds
    while (begun := perf_counter()) < until:
        await jet.publish("s.lone", PAYLOAD)
        waits.append(perf_counter() - begun)
        await asyncio.sleep(_PAUSE_S)
    return len(waits)


async def _nothing() -> int:
    return 0


async def carried_out(part: Part) -> Done:
    """Do one process's part."""
    async with opened(part) as jet:
        run: Callable[[], Awaitable[int]] = _nothing
        waits: list[float] = []
        if part.verb == "work":
            run = await _work(jet, part.burn_us)
        elif part.verb == "publish":
            run = await _publish(jet, part.each, part.seconds)
        elif part.verb == "compute":
            run = partial(_compute, part.seconds)
        elif part.verb == "wait":
            run = partial(_wait, jet, part.seconds, waits)
        await _warmed_up()
        print(READY, flush=True)
        await _line()
        cpu, began = process_time(), perf_counter()
        count = await run()
        ended = perf_counter()
        if part.role in WRITERS:
            await _line()
        return Done(count, process_time() - cpu, began, ended, waits)


async def measured(parts: list[Part]) -> list[Done]:
    """Start the processes, the writer first; return what each did, once all are through."""
    pipe = asyncio.subprocess.PIPE
    module = "benchmarks.prototypes.one_writer.children"
    children: list[asyncio.subprocess.Process] = []
    try:
        for part in parts:
            what = msgspec.json.encode(part).decode()
            child = await asyncio.create_subprocess_exec(sys.executable, "-m", module, what, stdin=pipe, stdout=pipe)
            children.append(child)
            if part.role in WRITERS:
                # The others connect to it.
                assert await _said(child) == READY
        for child, part in zip(children, parts, strict=True):
            assert part.role in WRITERS or await _said(child) == READY
        for child in children:
            _tell(child)
        writers = [child for child, part in zip(children, parts, strict=True) if part.role in WRITERS]
        found = {child: await _said(child) for child in children if child not in writers}
        for child in writers:
            _tell(child)
            found[child] = await _said(child)
        return [msgspec.json.decode(found[child], type=Done) for child in children]
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
            await child.wait()
        Path(_address(parts[0].path)).unlink(missing_ok=True)


async def _said(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    return (await asyncio.wait_for(child.stdout.readline(), _LONGEST_S)).decode().strip()


def _tell(child: asyncio.subprocess.Process) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")


if __name__ == "__main__":
    print(
        msgspec.json.encode(asyncio.run(carried_out(msgspec.json.decode(sys.argv[1], type=Part)))).decode(), flush=True
    )
