"""A busy store with and without those who look at it: `pelton top`, the dashboard with a viewer, metrics."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter, process_time

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import FILTER, PAYLOAD, in_flight
from benchmarks.ours import Sync

_STREAMS = 20
_JOBS = 10_000
_LONGER = 4
_EVERY = "2"
_SCRAPE_EVERY = 5
_TICKS = os.sysconf("SC_CLK_TCK")
# A browser that watches, and a Prometheus that asks; in a process of their own, which is not measured.
_VIEWERS = f"""
import sys, threading, time, urllib.request as web
page, metrics = sys.argv[1:]
def watch():
    for line in web.urlopen(page + "events"):
        if line.startswith(b"data"):
            print("seen", flush=True)
threading.Thread(target=watch, daemon=True).start()
while True:
    web.urlopen(metrics).read()
    time.sleep({_SCRAPE_EVERY})
"""


async def publishing(run: Run, sync: Sync, observed: bool) -> Sample:
    """Publish with many in flight; return the rate, what a message costs this process, and what the others take."""
    path = run.workdir / "busy.pelton"
    async with pelton.open(path, sync=sync) as jet:
        stream = await jet.create_stream("bench", subjects=[FILTER])
        await _fill(jet)
        async with _observers(path, observed) as pids:
            before, begun, own = sum(map(_cpu_ms, pids)), perf_counter(), process_time()
            first = (await stream.info()).state.last_seq
            rate = await in_flight(run.seconds * _LONGER, lambda: jet.publish("bench.a", PAYLOAD))
            took, own = perf_counter() - begun, process_time() - own
            cpu = sum(map(_cpu_ms, pids)) - before
            stored = (await stream.info()).state.last_seq - first
    return {"rate": rate, "own": own * 1e6 / stored, "cpu": cpu / took}


async def _fill(jet: pelton.Jet) -> None:
    for number in range(_STREAMS):
        stream = await jet.create_stream(f"s{number}", subjects=[f"s{number}.>"])
        await stream.create_consumer(durable_name="reader")
        await jet.publish_batch([(f"s{number}.{one}", PAYLOAD) for one in range(100)])
    queue = await jet.queue("jobs")

    @queue.job
    async def noop(number: int) -> None: ...

    await noop.enqueue_many([(number,) for number in range(_JOBS)])


@asynccontextmanager
async def _observers(path: Path, wanted: bool) -> AsyncIterator[list[int]]:
    """Start those who look, and yield the ids of their processes once each has looked."""
    if not wanted:
        yield []
        return
    async with AsyncExitStack() as stack:
        top = await stack.enter_async_context(
            _process("-m", "pelton", "top", str(path), "--every", _EVERY, "--count", "9999")
        )
        await _line(top)
        page = await stack.enter_async_context(_process("-m", "pelton", "dashboard", str(path), "--port", "0"))
        metrics = await stack.enter_async_context(_process("-m", "pelton", "metrics", str(path), "--port", "0"))
        addresses = [(await _line(one)).split()[-1] for one in (page, metrics)]
        viewers = await stack.enter_async_context(_process("-c", _VIEWERS, *addresses))
        await _line(viewers)
        reading = [asyncio.ensure_future(_drain(one)) for one in (top, viewers)]
        yield [one.pid for one in (top, page, metrics)]
        for each in reading:
            each.cancel()


@asynccontextmanager
async def _process(*words: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=PIPE, stdin=DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _line(process: Process) -> str:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "it ended"
    return line.decode().strip()


async def _drain(process: Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass


def _cpu_ms(pid: int) -> float:
    """Return the CPU time of a process in ms (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / _TICKS
