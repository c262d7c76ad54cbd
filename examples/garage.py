"""An exclusive queue: at most one job per car at a time, in order; cars do not wait for each other.

Prints::

    waiting: 5 jobs
    done: 4, failed: 1
    car1: wash, paint, polish
    car2: paint
    dead letter: repair of car3, PermanentJobError: car3 is scrap
"""

import asyncio
import logging
from collections import defaultdict

import pelton

log: dict[str, list[str]] = defaultdict(list)
logging.getLogger("pelton").setLevel(logging.CRITICAL)  # an error would show why car3's job failed, with the traceback


async def main() -> None:
    async with pelton.open("garage.pelton") as jet:
        garage = await jet.queue("garage", exclusive=True)

        @garage.job
        async def repair(car: str, what: str) -> str:
            if car == "car3":
                raise pelton.PermanentJobError("car3 is scrap")
            log[car].append(what)
            return f"{car} needs no {what} any more"

        await repair.enqueue("car1", "wash", key="car1")
        await repair.enqueue_many([("car1", "paint"), ("car1", "polish")], keys=["car1", "car1"])
        await repair.enqueue("car2", "paint", key="car2")
        await repair.enqueue("car3", "paint", key="car3")
        print(f"waiting: {(await garage.counts()).pending} jobs")

        await garage.work(concurrency=8, until_empty=True)

        counts = await garage.counts()
        print(f"done: {counts.completed}, failed: {counts.failed}")
        for car in sorted(log):
            print(f"{car}: {', '.join(log[car])}")
        async for dead in garage.dead_letters():
            print(f"dead letter: {dead.outcome.job} of {dead.outcome.key}, {dead.outcome.error}")


asyncio.run(main())
