"""Pelton: several processes on one file: workers that drain a queue, publishers side by side, a lone publisher."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import pelton
from benchmarks.case import Run, Sample
from benchmarks.stats import percentile

_CONCURRENCY = 64
_PAYLOAD = b"x" * 128
_READY = "ready"
# Each process begins and ends once, and collects its modules' garbage once, which is not to be measured.
_TIMES = 4


async def drain(run: Run, workers: int, keys: int, burn_us: int = 0) -> Sample:
    """No-op jobs, enqueued beforehand, that worker processes drain; ``keys`` 0: not exclusive.

    ``cpu``: microseconds of all workers a job; ``least``: what the least busy worker did, beside an equal share.
    """
    path, total = run.workdir / "jobs.pelton", run.drain * (1 if burn_us else _TIMES)
    async with pelton.open(path) as jet:
        queue = await jet.queue("bench", exclusive=keys > 0)
        noop = queue.job(_job(burn_us, []))
        for begin in range(0, total, 1000):
            numbers = range(begin, min(begin + 1000, total))
            names = [f"key{n % keys}" for n in numbers] if keys else None
            await noop.enqueue_many([()] * len(numbers), keys=names)
    async with _children("work", [{"path": str(path), "burn_us": burn_us}] * workers) as children:
        begun = perf_counter()
        found = await _answers(children)
    ran = [each["ran"] for each in found]
    assert sum(ran) == total, f"{sum(ran)} runs of {total}"
    took = max(each["ended"] for each in found) - begun
    least = min(ran) * workers / total
    return {"rate": total / took, "cpu": sum(each["cpu"] for each in found) / total * 1e6, "least": least}


async def in_flight(run: Run, publishers: int, each: int) -> Sample:
    """Publishes of processes that keep ``each`` of them in flight, all together a second."""
    path = run.workdir / "stream.pelton"
    await _stream(path)
    asked = {"path": str(path), "each": each, "seconds": run.seconds}
    async with _children("publish", [asked] * publishers) as children:
        found = await _answers(children)
    return {"rate": sum(one["published"] / one["took"] for one in found)}


async def lone(run: Run) -> Sample:
    """Milliseconds of a publish that is awaited, while another process publishes as fast as it can."""
    path = run.workdir / "stream.pelton"
    await _stream(path)
    busy = {"path": str(path), "each": 1000, "seconds": run.samples * 0.012}
    async with _children("publish", [busy]) as children, pelton.open(path) as jet:
        answers = asyncio.create_task(_answers(children))
        waits: list[float] = []
        for _ in range(run.samples):
            await asyncio.sleep(0.01)
            begun = perf_counter()
            await jet.publish("s.lone", _PAYLOAD)
            waits.append((perf_counter() - begun) * 1e3)
        await answers
    return {"p50": percentile(waits, 0.5), "p99": percentile(waits, 0.99)}


async def _stream(path: Path) -> None:
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])


def _job(burn_us: int, ran: list[None]) -> Any:
    async def noop() -> None:
        ran.append(None)
        end = process_time() + burn_us / 1e6 if burn_us else 0.0
        while burn_us and process_time() < end:
            pass

    return noop


# --- processes


@asynccontextmanager
async def _children(verb: str, asked: Sequence[dict[str, Any]]) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Processes that are ready; the block begins as they do."""
    pipe = asyncio.subprocess.PIPE
    module = "benchmarks.ours.processes"
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, verb, json.dumps(each), stdin=pipe, stdout=pipe
        )
        for each in asked
    ]
    try:
        for child in children:
            assert child.stdin is not None
            assert child.stdout is not None
            line = (await child.stdout.readline()).decode().strip()
            assert line == _READY, line
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"\n")
        yield children
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
            await child.wait()


async def _answers(children: Sequence[asyncio.subprocess.Process]) -> list[dict[str, float]]:
    async def answer(child: asyncio.subprocess.Process) -> dict[str, float]:
        assert child.stdout is not None
        found: dict[str, float] = json.loads(await child.stdout.readline())
        await child.wait()
        return found

    return await asyncio.gather(*map(answer, children))


async def _until_told() -> None:
    print(_READY, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def work(path: str, burn_us: int) -> dict[str, float]:
    """One worker process."""
    async with pelton.open(path) as jet:
        queue = await jet.queue("bench")
        ran: list[None] = []
        queue.job(_job(burn_us, ran))
        await _until_told()
        cpu = process_time()
        await queue.work(concurrency=_CONCURRENCY, until_empty=True, handle_signals=False)
        spent, ended = process_time() - cpu, perf_counter()
    return {"ran": len(ran), "cpu": spent, "ended": ended}


async def publish(path: str, each: int, seconds: float) -> dict[str, float]:
    """One publishing process."""
    async with pelton.open(path) as jet:
        await _until_told()
        begun = perf_counter()
        published = 0

        async def one(number: int) -> None:
            nonlocal published
            while perf_counter() - begun < seconds:
                await jet.publish(f"s.{number}", _PAYLOAD)
                published += 1

        await asyncio.gather(*map(one, range(each)))
        return {"published": published, "took": perf_counter() - begun}


if __name__ == "__main__":
    _verbs: dict[str, Any] = {"work": work, "publish": publish}
    print(json.dumps(asyncio.run(_verbs[sys.argv[1]](**json.loads(sys.argv[2])))), flush=True)
