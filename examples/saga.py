"""A saga: what an order has done is undone, the last thing first, when it fails for good or is cancelled.

Prints::

    order 1: parcel 1
    order 2: charge 2, reserve 2, release 2, refund 2: NoCourierError
    order 3: charge 3, reserve 3, release 3, refund 3: JobCancelledError
"""

import asyncio
import logging

import pelton

logging.getLogger("pelton").setLevel(logging.CRITICAL)  # the log would show the failed job with its traceback
jobs = pelton.Jobs()
done: list[str] = []


class NoCourierError(Exception):
    """Nobody fetches the parcel."""


def note(what: str, order: int) -> int:
    """Do something in another system, which gives a receipt: sent twice, it is to do it once."""
    done.append(f"{what} {order}")
    return order


def fetch(order: int) -> str:
    if order == 2:
        raise NoCourierError("all vans are out")
    return f"parcel {order}"


@jobs.job(max_attempts=2, backoff=[0.05])
async def buy(context: pelton.JobContext, order: int) -> str:
    receipt = await context.step("charge", note, "charge", order)
    await context.on_failure(note, "refund", receipt)
    place = await context.step("reserve", note, "reserve", order)
    await context.on_failure(note, "release", place)
    if order == 3:
        await context.sleep(86_400)
    return await context.step("fetch", fetch, order)


async def main() -> None:
    async with pelton.open("shop.pelton") as jet:
        shop = await jet.queue("shop", jobs=jobs)
        worker = asyncio.create_task(shop.work())
        print(f"order 1: {await (await shop.enqueue(buy, 1)).value(timeout=30)}")
        for order in (2, 3):
            done.clear()
            job = await shop.enqueue(buy, order)
            if order == 3:
                while (await job.info()).state != "scheduled":
                    await asyncio.sleep(0.01)
                await job.cancel(reason="the customer has changed their mind")
            outcome = await job.outcome(timeout=30)
            print(f"order {order}: {', '.join(done)}: {outcome.error.partition(':')[0]}")
        shop.stop()
        await worker


asyncio.run(main())
