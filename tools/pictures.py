"""Takes the pictures of the dashboard in the guide: ``make pictures``, with Chromium on the path.

A store is filled as of the last hour, workers go on in it, and Chromium looks at pages of ``pelton dashboard``. Each of
``PICTURES`` becomes a small WebP file beside the guide.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import pelton
from pelton.api import MinuteNote
from pelton.queue.model.naming import QueueNames
from pelton.runtime import Ids, Random
from pelton.testing.clock import ManualClock, ManualRuntime

GUIDE: Final = Path(__file__).parents[1] / "docs" / "guides" / "observing"
WARM_UP_S: Final = 25
"""How long the workers go on before the first picture: they tell what they run every ten seconds."""
MINUTE_NS: Final = 60 * 1_000_000_000


class Picture(NamedTuple):
    """A page, and how it is looked at; ``{flow}`` and ``{job}`` in its path are those of the store."""

    name: str
    path: str
    width: int
    height: int
    is_dark: bool = False


PICTURES: Final = (
    Picture("dashboard", "/", 1400, 860),
    Picture("dashboard-queue", "/queues/garage", 1400, 1180, is_dark=True),
    Picture("dashboard-job", "/queues/garage/jobs/{job}", 1400, 760),
    Picture("dashboard-flow", "/queues/garage/flows/{flow}", 1400, 700),
    Picture("dashboard-stream", "/streams/orders", 1400, 560),
    Picture("dashboard-consumers", "/consumers", 1400, 330),
    Picture("dashboard-phone", "/", 390, 780),
)


async def fill(path: Path) -> None:
    """Make a store in which, for an hour, jobs have waited that nobody takes, and one queue has been at work."""
    now = time.time_ns()
    then = ManualRuntime(clock=ManualClock(now - 75 * MINUTE_NS), random=Random(1), ids=Ids(Random(1)))
    async with pelton.open(path, runtime=then) as jet:
        bulk = await jet.queue("bulk")
        for number in range(1640):
            await bulk.enqueue("resize", path=f"photo{number}.jpg")
        garage = await jet.queue("garage", exclusive=True)
        await garage.schedule("inspection", "inspect", kwargs={"car": "car1"}, cron="0 3 * * *")
        await jet.create_stream("orders", subjects=["orders.>"])
        await jet.create_stream("events", subjects=["events.>"])
        for name in ("invoices", "shipping"):
            await (await jet.stream("orders")).create_consumer(durable_name=name, ack_policy="all")
        for number in range(4000):
            then.clock.advance(1.1)
            await jet.publish(f"orders.{number % 7}", json.dumps({"order": number, "total": number * 7 % 400}).encode())
        invoices = await (await jet.stream("orders")).consumer("invoices")
        for _ in range(4):
            await (await invoices.fetch(1000))[-1].ack()
        await note_hour(jet, now // MINUTE_NS)


async def note_hour(jet: pelton.Jet, minute: int) -> None:
    """Write the points of the charts, as the workers of an hour would have."""
    names, ended, rng = QueueNames("garage"), 40_000, random.Random(3)
    hours: dict[int, list[list[float]]] = {}
    for one in range(minute - 62, minute):
        slow = 1 + 3 * max(0, one - minute + 14) / 14
        ended += rng.randint(480, 620) // (1 if slow == 1 else 2)
        depth = round(4 * rng.uniform(0.7, 1.3) * slow**2)
        wait, run = 0.06 * slow**2 * rng.uniform(0.8, 1.2), 0.11 * slow * rng.uniform(0.9, 1.1)
        point = [one, ended, 0, depth, round(wait, 3), round(wait * 4, 3), round(run, 3), round(run * 2.2, 3)]
        hours.setdefault(one // 60, []).append(point)
        # One of the consumers has never come.
        backlogs = [["orders", "shipping", (one - minute + 75) * 54, 0], ["orders", "invoices", rng.randint(0, 40), 5]]
        await jet.backend.call(MinuteNote(minute=one, data=json.dumps([one, True, backlogs, {}]).encode()))
    for hour, points in hours.items():
        await jet.publish(names.trend_subject(hour % 25), json.dumps(points).encode())


async def work(jet: pelton.Jet) -> tuple[asyncio.Task[None], dict[str, str]]:
    """Let workers go on; return them, and the parts of paths that are known only now."""
    garage, mail = await jet.queue("garage", exclusive=True), await jet.queue("mail")
    rng = random.Random(5)

    @garage.job(max_attempts=3, backoff=[20.0, 40.0])
    async def repair(car: str, part: str) -> str:
        await asyncio.sleep(rng.uniform(0.05, 0.4))
        if part == "brake":
            raise LookupError(f"no spare part B{rng.randint(10, 99)} in stock")
        return f"{car}: {part} replaced"

    @garage.job(max_attempts=1)
    async def paint(car: str, colour: str) -> str:
        await asyncio.sleep(0.3)
        if colour == "chrome":
            raise ValueError(f"no paint for {car}: chrome is not in the catalogue")
        return f"{car} is {colour}"

    @garage.job
    async def tow(context: pelton.JobContext, car: str) -> None:
        context.progress(0.4, "behind the tunnel")
        await asyncio.sleep(3600)

    @mail.job
    async def send(to: str) -> None:
        await asyncio.sleep(0.05)

    await mail.limit(job="send", rate=pelton.Rate(30, per=60))
    await send.enqueue_many([(f"customer{number}@example.com",) for number in range(48)])
    for number in range(3):
        await tow.enqueue(f"van{number}", key=f"van{number}")
    waiting = await tow.enqueue("van1", key="van1")
    flow = await garage.new_flow("order 4711")
    parts = [flow.add(repair, "car12", part) for part in ("door", "bumper")]
    coat = flow.options(after=parts).add(paint, "car12", "chrome")
    polish = flow.options(after=[coat]).add(repair, "car12", "polish")
    flow.options(after=[polish]).add(repair, "car12", "papers")
    handle = await flow.enqueue()
    working = asyncio.gather(
        garage.work(concurrency=12, handle_signals=False), mail.work(concurrency=4, handle_signals=False),
        customers(jet, repair, rng),
    )  # fmt: skip
    return working, {"flow": handle.id, "job": waiting.id}


async def customers(jet: pelton.Jet, repair: pelton.JobFunction, rng: random.Random) -> None:
    """Bring cars and orders, for ever; one of the consumers of the orders is slow."""
    orders = await (await jet.stream("orders")).consumer("invoices")
    for number in range(1_000_000):
        car, part = f"car{rng.randint(1, 60)}", rng.choice(["door", "bumper", "tyre", "lamp", "brake"])
        await repair.enqueue(car, part, key=car)
        await jet.publish(f"orders.{number % 7}", json.dumps({"order": number, "car": car}).encode())
        for message in await orders.fetch(60, timeout=0.1):
            await message.ack()
        await asyncio.sleep(0.1)


async def take(picture: Picture, url: str, paths: dict[str, str], folder: Path) -> None:
    """Let Chromium take a picture."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or sys.exit("chromium is not on the path")
    colours = ["--blink-settings=preferredColorScheme=0"] if picture.is_dark else []
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", *colours]
    target = folder / f"{picture.name}.webp"
    size = f"--window-size={picture.width},{picture.height}"
    command = [browser, *options, size, f"--screenshot={target}", url + picture.path.format(**paths)]
    running = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    try:
        await asyncio.wait_for(running.wait(), 60)
    except TimeoutError:
        running.kill()
        raise
    print(f"{target} ({target.stat().st_size // 1000} kB)")


async def main(folder: Path, warm_up_s: float) -> None:
    """Fill a store, work in it, and take every picture."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "workshop.pelton"
        await fill(path)
        async with pelton.open(path) as jet:
            working, paths = await work(jet)
            command = [sys.executable, "-m", "pelton", "dashboard", str(path), "--port", "0", "--allow-actions"]
            page = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            try:
                assert page.stdout is not None
                url = (await page.stdout.readline()).decode().split()[-1].rstrip("/")
                await asyncio.sleep(warm_up_s)
                for picture in PICTURES:
                    await take(picture, url, paths, folder)
            finally:
                page.terminate()
                await page.wait()
                working.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await working


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=GUIDE)
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, metavar="SECONDS")
    chosen = parser.parse_args()
    asyncio.run(main(chosen.folder, chosen.warm_up))
