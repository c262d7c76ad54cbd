"""Streams and jobs without await, from plain functions and threads.

Prints::

    8 threads stored 80 messages
    received 80
    squares: [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]
"""

from concurrent.futures import ThreadPoolExecutor

import pelton

with pelton.sync.open("numbers.pelton") as jet:
    stream = jet.create_stream("numbers")
    with ThreadPoolExecutor(8) as threads:
        acks = list(threads.map(lambda number: jet.publish("numbers", b"%d" % number), range(80)))
    print(f"8 threads stored {len(acks)} messages")

    received = 0
    for message in stream.create_consumer(durable_name="reader"):
        message.ack()
        received += 1
        if received == len(acks):
            break
    print("received", received)

    queue = jet.queue("squares")

    @queue.job
    def square(number: int) -> int:
        return number * number

    handles = square.enqueue_many([(number,) for number in range(10)])
    queue.work(until_empty=True)
    print("squares:", [handle.outcome(timeout=10).value() for handle in handles])
