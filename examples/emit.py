"""A job whose result is a message: the message and the job's completion take effect together, or neither does.

Prints::

    invoices: [b'3 shovels: 36 EUR', b'1 rake: 9 EUR']
    tried: 3 times for 2 jobs
"""

import asyncio
import logging

import pelton

attempts = 0
logging.getLogger("pelton").setLevel(logging.ERROR)  # a warning would show why the first attempt failed


async def main() -> None:
    async with pelton.open("shop.pelton") as jet:
        invoices = await jet.create_stream("invoices", subjects=["invoices.>"])
        shop = await jet.queue("shop")

        @shop.job(backoff=pelton.Backoff(base=0.01))
        async def bill(context: pelton.JobContext, what: str, price: int) -> None:
            global attempts
            attempts += 1
            context.emit("invoices.new", f"{what}: {price} EUR".encode())
            if what == "3 shovels" and context.attempt == 1:
                raise ConnectionError("the printer is off")  # the emitted message is dropped, the job is retried

        await bill.enqueue("3 shovels", 36)
        await shop.work(until_empty=True)
        await bill.enqueue("1 rake", 9)
        await shop.work(until_empty=True)

        consumer = await invoices.create_consumer(ack_policy="none")
        print("invoices:", [message.data for message in await consumer.fetch(10)])
        print(f"tried: {attempts} times for 2 jobs")


asyncio.run(main())
