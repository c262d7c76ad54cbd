"""A queue whose jobs have ended in every way."""

import asyncio
from pathlib import Path

import pelton
from pelton.api import Backoff

AT_ONCE = Backoff(base=0.001, factor=1.0, cap=0.001, jitter=0.0)


def work(store: Path) -> list[pelton.Outcome]:
    """Run 40 jobs on three keys; return how they ended."""
    return asyncio.run(_work(store))


async def _work(store: Path) -> list[pelton.Outcome]:
    async with pelton.open(store) as jet:
        queue = await jet.queue("garage", exclusive=True)

        @queue.job(max_attempts=3, backoff=AT_ONCE)
        async def repair(car: int, context: pelton.JobContext) -> int:
            if car % 10 == 3:
                raise pelton.PermanentJobError(f"car {car} has no wheel 'w{car}'")
            if car % 10 == 5:
                raise ValueError("never works")
            if car % 10 == 7 and context.attempt == 1:
                raise OSError("works the second time")
            return car

        @queue.job
        async def wash(car: int) -> None:
            if car == 1:
                raise pelton.JobCancelledError("sold")

        await repair.enqueue_many([(n,) for n in range(30)], keys=[f"k{n % 3}" for n in range(30)])
        await wash.enqueue_many([(n,) for n in range(10)])
        await queue.work(until_empty=True, handle_signals=False)
        return [outcome async for outcome in queue.history()]
