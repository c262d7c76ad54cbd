"""A subscription: it is renewed every month, without an end, until its customer cancels it.

Each month is a round of one job, which begins anew with ``raise pelton.Continue(...)``: it keeps its id, and what it
remembers does not grow.

Prints::

    month 1: ann is charged
    month 2: ann is charged
    month 3: ann is charged
    ann has left in month 3: too expensive
"""

import asyncio

import pelton

jobs = pelton.Jobs()
charged: list[int] = []


def charge(customer: str, month: int) -> None:
    """Charge a card: the payment system gets a key such as ``ann-3``, should it be called twice."""
    charged.append(month)
    print(f"month {month}: {customer} is charged")


def seconds_of(month: int) -> float:
    return 0.05 if month < 3 else 30 * 86_400.0  # two short ones, so that you see them pass


@jobs.job
async def subscribe(context: pelton.JobContext, customer: str, month: int = 1) -> str:
    await context.step("charge", charge, customer, month)
    reason = await context.wait_for("cancel", str, timeout=seconds_of(month), default="")
    if not reason:
        raise pelton.Continue(customer, month + 1)
    return f"{customer} has left in month {month}: {reason}"


async def main() -> None:
    async with pelton.open("shop.pelton") as jet:
        shop = await jet.queue("shop", jobs=jobs)
        worker = asyncio.create_task(shop.work())
        job = await shop.options(unique="subscription-ann").enqueue(subscribe, "ann")
        while len(charged) < 3:
            await asyncio.sleep(0.01)
        await job.send("cancel", "too expensive")
        print(await job.value(timeout=30))
        shop.stop()
        await worker


asyncio.run(main())
