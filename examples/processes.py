"""Two processes on one file: each wakes the other, without a server and without polling.

Prints::

    asked 3 questions
    1 + 1 = 2
    2 + 2 = 4
    3 + 3 = 6
"""

import asyncio
import multiprocessing

import pelton

STORE = "sums.pelton"


async def answer() -> None:
    """Wait for questions and publish answers, in the other process."""
    async with pelton.open(STORE) as jet:
        questions = await (await jet.stream("questions")).consumer("solver")
        for _ in range(3):
            (message,) = await questions.fetch(1, timeout=30)
            number = int(message.data)
            await jet.publish("answers", f"{number} + {number} = {number + number}".encode())
            await message.ack()


def solver() -> None:
    asyncio.run(answer())


async def main() -> None:
    async with pelton.open(STORE) as jet:
        questions = await jet.create_stream("questions", retention="workqueue")
        await questions.create_consumer(durable_name="solver")
        answers = await (await jet.create_stream("answers")).create_consumer(durable_name="asker")
        # "spawn" starts a fresh process. A forked one would have to open the store itself, too.
        other = multiprocessing.get_context("spawn").Process(target=solver)
        other.start()
        acks = await jet.publish_batch([("questions", b"%d" % number) for number in (1, 2, 3)])
        print(f"asked {len(acks)} questions")
        for _ in range(3):
            (message,) = await answers.fetch(1, timeout=30)
            print(message.data.decode())
            await message.ack()
        other.join()


if __name__ == "__main__":
    asyncio.run(main())
