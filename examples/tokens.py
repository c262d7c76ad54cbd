"""An inbox before a work stream: workers get one message per subject at a time, and no subject waits for another.

The inbox keeps every message. The work stream is sourced from it and holds one message per subject: an ack lets the
next message of its subject in, in the same transaction. Workers can hold a message as long as they like.

Prints::

    held: lamp 0, door 0
    still waiting in the inbox: 2
    lamp: 0, 1, 2
    door: 0
"""

import asyncio
from collections import defaultdict

import pelton

seen: dict[str, list[str]] = defaultdict(list)


async def main() -> None:
    async with pelton.open("house.pelton") as jet:
        await jet.create_stream("inbox", subjects=["house.>"], max_msgs_per_subject=10)
        work = await jet.create_stream(
            "work",
            retention="workqueue",
            max_msgs_per_subject=1,
            discard="new",
            discard_new_per_subject=True,
            sources=[{"name": "inbox"}],
        )
        workers = await work.create_consumer(
            durable_name="workers", deliver_subject="deliver.work", deliver_group="crew", ack_wait=2
        )
        for number in range(3):
            await jet.publish("house.lamp", str(number).encode())
        await jet.publish("house.door", b"0")

        async with asyncio.timeout(60):
            held: list[pelton.Message] = []
            async for message in workers.messages():
                held.append(message)
                if len(held) == 2:
                    print("held:", ", ".join(f"{name(each)} {each.data.decode()}" for each in held))
                    print("still waiting in the inbox:", (await work.info()).sources[0].lag)
                    for each in held:
                        await each.in_progress()
                        await done(each)
                if len(held) > 2:
                    await done(message)
                if len(held) == 4:
                    break
        for subject, numbers in seen.items():
            print(f"{subject}: {', '.join(numbers)}")


def name(message: pelton.Message) -> str:
    return message.subject.rpartition(".")[2]


async def done(message: pelton.Message) -> None:
    seen[name(message)].append(message.data.decode())
    await message.ack()


asyncio.run(main())
