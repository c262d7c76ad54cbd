"""A fan-out: a job calls a thousand others, at most a hundred at a time, and holds no slot while they run.

Prints::

    1000 pictures are looked at: 990 are small, 10 are broken
    each was drawn once: True
"""

import asyncio
import logging
from collections import Counter

import pelton

PICTURES, AT_ONCE = 1000, 100
logging.getLogger("pelton").setLevel(logging.CRITICAL)  # the log would show the failed jobs with their tracebacks
jobs = pelton.Jobs()
drawn: Counter[int] = Counter()


@jobs.job(max_attempts=1)
async def shrink(picture: int) -> str:
    drawn[picture] += 1
    if picture % 100 == 99:
        raise ValueError("this is no picture")
    return f"small {picture}"


@jobs.job
async def album(context: pelton.JobContext, pictures: int) -> list[int]:
    """Call a job for each picture, and return how many are done and how many failed."""
    calls = (context.call(shrink, number) for number in range(pictures))
    found = await context.gather(*calls, at_once=AT_ONCE, return_exceptions=True)
    broken = sum(isinstance(one, pelton.JobFailedError) for one in found)
    return [len(found) - broken, broken]


async def main() -> None:
    async with pelton.open("pictures.pelton") as jet:
        pictures = await jet.queue("pictures", jobs=jobs)
        worker = asyncio.create_task(pictures.work(concurrency=8))
        job = await pictures.enqueue(album, PICTURES)
        done, broken = await job.value(timeout=120)
        print(f"{PICTURES} pictures are looked at: {done} are small, {broken} are broken")
        print(f"each was drawn once: {set(drawn.values()) == {1}}")
        pictures.stop()
        await worker


asyncio.run(main())
