"""Durable functions: an order waits for a person, who is reminded, and calls other jobs; nothing is held meanwhile.

Prints::

    ann is asked
    ann is reminded
    bob is asked
    order 7: bob says yes, parcels 1, 2, 3, receipt 7
    cathy is asked
    order 8: charged 8, refunded 8: the van broke down
"""

import asyncio
import logging

import pelton

logging.getLogger("pelton").setLevel(logging.CRITICAL)  # the log would show the failed job with its traceback
jobs = pelton.Jobs()


@jobs.job
async def charge(order: int) -> str:
    return f"receipt {order}"


@jobs.job
async def refund(receipt: str) -> str:
    return f"refunded {receipt.removeprefix('receipt ')}"


@jobs.job(max_attempts=1)
async def pack(order: int, parcel: int) -> str:
    if order == 8:
        raise ConnectionError("the van broke down")
    return f"{parcel}"


told: list[str] = []


def ask(whom: str, how: str) -> None:
    told.append(f"{whom} is {how}")
    print(told[-1])


async def approve(context: pelton.JobContext, person: str, stand_in: str) -> str:
    """Ask a person, remind them, and then ask somebody else."""
    await context.step(f"ask {person}", ask, person, "asked")
    for how in ("reminded", ""):
        if answer := await context.wait_for("answer", str, timeout=0.2, default=""):
            return answer
        if how:
            await context.step(f"remind {person}", ask, person, how)
    await context.step(f"ask {stand_in}", ask, stand_in, "asked")
    return await context.wait_for("answer", str)


@jobs.job(max_attempts=1)
async def fulfil(context: pelton.JobContext, order: int, person: str) -> str:
    answer = await approve(context, person, "bob")
    receipt = await context.call(charge, order)
    try:
        parcels = await context.gather(*(context.call(pack, order, number) for number in (1, 2, 3)))
    except pelton.JobFailedError as error:
        undone = await context.call(refund, receipt)
        return f"charged {order}, {undone}: {error.error.partition(': ')[2].partition(' (')[0]}"
    return f"{answer}, parcels {', '.join(parcels)}, {receipt}"


async def until_asked(person: str) -> None:
    """Return when a person was asked: other programs would send them a link, and answer when it is followed."""
    while f"{person} is asked" not in told:
        await asyncio.sleep(0.01)


async def main() -> None:
    async with pelton.open("shop.pelton") as jet:
        shop = await jet.queue("shop", jobs=jobs)
        worker = asyncio.create_task(shop.work(concurrency=1))

        job = await shop.enqueue(fulfil, 7, "ann")
        await until_asked("bob")
        await job.send("answer", "bob says yes")
        print(f"order 7: {await job.value(timeout=30)}")

        job = await shop.enqueue(fulfil, 8, "cathy")
        await until_asked("cathy")
        await job.send("answer", "cathy says yes")
        print(f"order 8: {await job.value(timeout=30)}")

        shop.stop()
        await worker


asyncio.run(main())
