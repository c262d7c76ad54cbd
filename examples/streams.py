"""Publish to a stream and consume from it.

Prints::

    stored as 1 and 2
    the id is known: True, still stored as 1
    orders.eu.1 b'two shovels' for colour red
    orders.us.7 b'one rake'
    left in the stream: 0
"""

import asyncio

import pelton


async def main() -> None:
    async with pelton.open("orders.pelton") as jet:
        stream = await jet.create_stream("orders", subjects=["orders.>"], retention="workqueue")

        # Each call returns when the message is on disk.
        first = await jet.publish("orders.eu.1", b"two shovels", msg_id="o-1", headers={"Colour": "red"})
        second = await jet.publish("orders.us.7", b"one rake", msg_id="o-2")
        print(f"stored as {first.seq} and {second.seq}")

        # Publishing again with the same message id is harmless.
        again = await jet.publish("orders.eu.1", b"two shovels", msg_id="o-1")
        print(f"the id is known: {again.duplicate}, still stored as {again.seq}")

        consumer = await stream.create_consumer(durable_name="shipping", ack_wait=30)
        for message in await consumer.fetch(10):
            colour = f" for colour {message.headers['Colour']}" if "Colour" in message.headers else ""
            print(message.subject, f"{message.data!r}{colour}")
            await message.ack()
        print("left in the stream:", (await stream.info()).state.messages)


asyncio.run(main())
