"""The cost of many consumers and of many unsettled messages: ``python -m benchmarks.studies.consumers``.

Everything is measured in one process against itself: with and without the consumers or the unsettled messages.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
from pathlib import Path
from statistics import median

import pelton
from pelton.runtime import stopwatch

DATA = bytes(128)
PAGE = 4096


async def publishing(jet: pelton.Jet, batches: int = 40) -> float:
    start = stopwatch()
    for _ in range(batches):
        await jet.publish_batch([(f"s.x.{number % 7}", DATA) for number in range(1000)])
    return batches * 1000 / (stopwatch() - start)


async def many_filters(home: Path) -> str:
    """Measure publishing beside 1,000 push consumers and 1,000 waiting pulls whose filters do not match."""
    async with pelton.open(home / "filters.pelton") as jet:
        stream = await jet.create_stream("S", subjects=["s.>"])
        await publishing(jet, 5)
        before = await publishing(jet)
        tasks = []
        for number in range(1000):
            push = {"deliver_subject": f"d.{number}", "filter_subject": f"s.f.{number}"}
            pushed = await stream.create_consumer(durable_name=f"p{number}", **push)
            tasks.append(asyncio.ensure_future(pushed.consume(lambda message: None)))
            pulled = await stream.create_consumer(durable_name=f"w{number}", filter_subject=f"s.g.{number}")
            tasks.append(asyncio.ensure_future(pulled.fetch(1, timeout=None)))
        ratio = median([await publishing(jet) for _ in range(3)]) / before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return f"| publishing in batches beside 1,000 push consumers and 1,000 waiting pulls | 0.5x | {ratio:.2f}x |"


async def many_unsettled(home: Path) -> str:
    """Measure a consumer with 100,000 messages delivered and not settled, beside one without any."""
    async with pelton.open(home / "unsettled.pelton") as jet:
        stream = await jet.create_stream("S", subjects=["s.>"])
        for _ in range(160):
            await jet.publish_batch([("s.x", DATA)] * 1000)
        full, empty = [
            await stream.create_consumer(durable_name=name, max_ack_pending=-1, ack_wait=3600) for name in ("f", "e")
        ]
        held = 0
        while held < 100_000:
            held += len(await full.fetch(1000))
        ratios = []
        for _ in range(3):
            rates = []
            for consumer in (empty, full):
                start = stopwatch()
                for _ in range(40):
                    await consumer.ack(await consumer.fetch(256))
                rates.append(1 / (stopwatch() - start))
            ratios.append(rates[1] / rates[0])
    return f"| fetch(256) and ack with 100,000 unsettled | 0.7x | {median(ratios):.2f}x |"


async def many_idle(home: Path) -> str:
    """Measure 10,000 unused consumers: memory, and processor time within two seconds."""
    async with pelton.open(home / "idle.pelton", sync="off") as jet:
        stream = await jet.create_stream("S", subjects=["s.>"])
        before = _resident()
        for number in range(10_000):
            await stream.create_consumer(durable_name=f"c{number}", filter_subject=f"s.{number}")
        grown = (_resident() - before) / 1e6
        busy = _busy()
        await asyncio.sleep(2)
        busy = _busy() - busy
    return f"| 10,000 idle consumers | under 100 MB, no CPU | {grown:.0f} MB, {busy * 1000:.1f} ms of 2 s |"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def _busy() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main() -> None:
    print("| what | asked | measured |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=".") as home:
        for measure in (many_idle, many_filters, many_unsettled):
            print(await measure(Path(home)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
