"""The page of a queue in an incident: ``python -m benchmarks.studies.incident [WAITING [TROUBLED [PATH]]]``.

A provider is down: a store in which WAITING jobs wait for a worker, TROUBLED are tried again in an hour, as many are
held for a limit, and as many are dead letters. The table shows the milliseconds of each look at it, the first time and
the median of five: what the page asks for, what `pelton jobs ls` does, and the page itself, for one viewer and for six.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2 as httpx

import pelton
from pelton import dashboard, observe
from pelton.queue import JobState

WAITING, TROUBLED = 500_000, 30_000
BATCH = 10_000
TIMES = 5
VIEWERS = 6


async def filled(jet: pelton.Jet, waiting: int, troubled: int) -> None:
    """Make the store."""
    logging.getLogger("pelton.queue").setLevel(logging.CRITICAL)
    shop = await jet.queue("shop")

    @shop.job(backoff=pelton.Backoff(base=3600.0, cap=3600.0, jitter=0.0))
    async def charge(order: int) -> None:
        raise ConnectionError(f"the provider does not answer ({order % 7})")

    @shop.job(max_attempts=1)
    async def parse(order: int) -> None:
        raise ValueError(f"no such order: {order}")

    @shop.job
    async def send(order: int) -> None:
        await asyncio.sleep(0)

    await shop.limit(job="send", rate=pelton.Rate(1, per=3600))
    for job in (charge, parse, send):
        for begin in range(0, troubled, BATCH):
            await shop.enqueue_many([job.bind(order=number) for number in range(begin, begin + BATCH)])
    working = asyncio.ensure_future(shop.work(concurrency=200, handle_signals=False))
    while (counts := await shop.counts()).pending:
        await asyncio.sleep(2)
    print(f"made: {counts}", file=sys.stderr)
    shop.stop()
    await working
    for begin in range(0, waiting, BATCH):
        await shop.enqueue_many([send.bind(order=number) for number in range(begin, begin + BATCH)])


def looks(jet: pelton.Jet) -> dict[str, Callable[[], Awaitable[object]]]:
    """What is measured."""

    async def listed(state: JobState | None, job: str = "") -> None:
        await observe.list_jobs(jet, "shop", observe.JobSelection(state=state or "", job=job))

    async def page(viewers: int, *, again: int = 0) -> None:
        app = dashboard.app(jet)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://testserver", timeout=120
        ) as browser:
            pages = await asyncio.gather(*(browser.get("/queues/shop") for _ in range(viewers)))
            pages += [await browser.get("/queues/shop") for _ in range(again)]
            assert {one.status_code for one in pages} == {200}

    return {
        "queue_summary": lambda: observe.queue_summary(jet, "shop"),
        "jobs ls --state running": lambda: listed("running"),
        "jobs ls --state retrying": lambda: listed("retrying"),
        "jobs ls --state held": lambda: listed("held"),
        "jobs ls --job nosuch": lambda: listed(None, "nosuch"),
        "page of the queue, the first viewer": lambda: page(1),
        "dead letters, newest first": lambda: observe.list_dead_letters(jet, "shop"),
        "dead letters by error": lambda: observe.group_dead_letters(jet, "shop"),
        "one job": lambda: observe.job_with_details(jet, "shop", "7"),
        f"page of the queue, {VIEWERS} at once": lambda: page(VIEWERS),
        "page of the queue, the first viewer and 10 after": lambda: page(1, again=10),
    }


async def measured(path: Path) -> None:
    """Print the table."""
    print("| look | first, ms | median, ms | CPU, ms |\n|---|---|---|---|")
    async with pelton.open(path, read_only=True) as jet:
        for name, look in looks(jet).items():
            times, cpu = list[float](), time.process_time()
            for _ in range(TIMES):
                began = time.perf_counter()
                await look()
                times.append((time.perf_counter() - began) * 1000)
                if times[-1] > 5000:
                    break
            spent = (time.process_time() - cpu) * 1000 / len(times)
            print(f"| {name} | {times[0]:.0f} | {statistics.median(times):.0f} | {spent:.0f} |", flush=True)


async def studied(path: Path, waiting: int, troubled: int) -> None:
    """Make a store, unless there is one, and measure."""
    if not path.exists():
        async with pelton.open(path) as jet:
            await filled(jet, waiting, troubled)
    await measured(path)


def main() -> None:
    """Measure a store of its own, or the one of PATH, which is kept."""
    numbers = [int(each) for each in sys.argv[1:3]]
    with tempfile.TemporaryDirectory() as home:
        path = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(home) / "incident.pelton"
        asyncio.run(studied(path, *[*numbers, *(WAITING, TROUBLED)[len(numbers) :]]))


if __name__ == "__main__":
    main()
