"""A transactional outbox without a relay: the order's row and the job that ships it are stored together, or neither.

The job records what it did in the same transaction that completes it, so a crash in between does nothing twice.

Prints::

    refused, with its job: an order of 0
    orders: 3, jobs: 3
    shipped: Ada (2 apples), Alan (1 pears), Grace (5 plums)
    shipped again: nothing
"""

import asyncio

import pelton

jobs = pelton.Jobs()


@jobs.job(max_attempts=5)
async def ship(context: pelton.JobContext, number: int) -> None:
    async with context.transaction() as tx:
        # The job ends with this row, or is tried again without it.
        await tx.sql("UPDATE orders SET shipped = 1 WHERE number = ?", (number,))


async def order(jet: pelton.Jet, shop: pelton.Queue, customer: str, what: str, amount: int) -> None:
    async with jet.transaction() as tx:
        [(number,)] = await tx.sql(
            "INSERT INTO orders(customer, what, amount) VALUES(?, ?, ?) RETURNING number", (customer, what, amount)
        )
        # No worker sees the job before the row is committed.
        await tx.queue(shop).enqueue(ship, number)


async def main() -> None:
    async with pelton.open("shop.pelton") as jet:
        shop = await jet.queue("shop", jobs=jobs)
        async with jet.transaction() as tx:
            await tx.sql(
                "CREATE TABLE orders(number INTEGER PRIMARY KEY, customer TEXT, what TEXT, "
                "amount INTEGER CHECK(amount > 0), shipped INTEGER DEFAULT 0)"
            )
        await order(jet, shop, "Ada", "apples", 2)
        await order(jet, shop, "Grace", "plums", 5)
        try:
            await order(jet, shop, "Bob", "nothing", 0)
        except pelton.SqlConstraintError:
            print("refused, with its job: an order of 0")
        await order(jet, shop, "Alan", "pears", 1)
        async with jet.transaction() as tx:
            [(orders,)] = await tx.sql("SELECT count(*) FROM orders")
        print(f"orders: {orders}, jobs: {(await shop.counts()).pending}")

        await shop.work(until_empty=True)
        async with jet.transaction() as tx:
            rows = await tx.sql("SELECT customer, amount, what FROM orders WHERE shipped = 1 ORDER BY customer")
        print("shipped:", ", ".join(f"{customer} ({amount} {what})" for customer, amount, what in rows))
        await shop.work(until_empty=True)
        print("shipped again: nothing" if (await shop.counts()).completed == orders else "shipped again: something")


if __name__ == "__main__":
    asyncio.run(main())
