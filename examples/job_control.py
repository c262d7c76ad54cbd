"""The life of jobs: delayed, retried, cancelled, paused, failed for good and redriven.

Prints::

    in an hour: scheduled
    flaky: completed after 3 attempts
    cancelled: True, it is cancelled: the customer has changed her mind
    paused: 1 waiting, 0 completed more
    resumed: completed
    dead letter: pay, PermanentJobError: the card has expired
    redriven: paid with visa
    drained: nobody holds a job
"""

import asyncio
import logging

import pelton

logging.getLogger("pelton").setLevel(logging.CRITICAL)  # the log would show each failed attempt with its traceback
jobs = pelton.Jobs()


@jobs.job(max_attempts=5, backoff=pelton.Backoff(base=0.05))
async def flaky(context: pelton.JobContext) -> int:
    if context.attempt < 3:
        raise ConnectionError("the other side does not answer")
    return context.attempt


@jobs.job
async def pay(card: str) -> str:
    if card == "expired":
        raise pelton.PermanentJobError("the card has expired")
    return f"paid with {card}"


async def main() -> None:
    async with pelton.open("office.pelton") as jet:
        office = await jet.queue("office", jobs=jobs)
        worker = asyncio.create_task(office.work(concurrency=4))

        later = await office.options(delay=3600).enqueue(pay, "visa")
        print(f"in an hour: {(await later.info()).state}")

        tried = await (await office.enqueue(flaky)).outcome(timeout=30)
        print(f"flaky: {tried.state} after {tried.attempt} attempts")

        cancelled = await later.cancel(reason="the customer has changed her mind")
        print(f"cancelled: {cancelled}, {(await later.outcome()).error.replace('was', 'is')}")

        await office.pause(job="pay")
        held = await office.enqueue(pay, "visa")
        await asyncio.sleep(0.2)
        counts = await office.counts()
        print(f"paused: {counts.unfinished} waiting, {counts.completed - 1} completed more")
        await office.resume(job="pay")
        print(f"resumed: {(await held.outcome(timeout=30)).state}")

        failed = await office.enqueue(pay, "expired")
        await failed.outcome(timeout=30)
        async for letter in office.dead_letters():
            print(f"dead letter: {letter.outcome.job}, {letter.outcome.error}")
        again = await office.redrive(failed.id, args={"card": "visa"})
        print(f"redriven: {await again.value(timeout=30)}")

        await office.drain(timeout=30)
        print("drained: nobody holds a job" if not (await office.counts()).running else "not drained")
        office.stop()
        await worker


if __name__ == "__main__":
    asyncio.run(main())
