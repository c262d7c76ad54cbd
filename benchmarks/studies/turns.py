"""Single calls on `pelton serve` and on nats-server, one on each in turn: ``python -m benchmarks.studies.turns``.

What else the machine does delays all three alike, so that this tells more than rates do when it is busy. The table
shows microseconds for each call, the tenth percentile and the median, and the servers' medians beside Pelton's.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext

from benchmarks.peers.servers import started

CALLS = 600
IGNORED = 50
PAYLOAD = bytes(128)
DEFAULT, ALWAYS, OURS = "nats-server", "nats-server, sync_interval: always", "pelton serve"

Call = Callable[[int], Awaitable[object]]


async def calls(client: Client) -> dict[str, Call]:
    """What is called on one server."""
    js: JetStreamContext = client.jetstream()
    await js.add_stream(name="P", subjects=["p"])
    await js.add_stream(name="F", subjects=["f"])
    bucket = await js.create_key_value(bucket="b")
    for _ in range(CALLS):
        await client.publish("f", PAYLOAD)
    await client.flush()
    consumer = await js.pull_subscribe("f", "c")

    async def fetch(number: int) -> None:
        (message,) = await consumer.fetch(1, timeout=10)
        await message.ack_sync(timeout=10)

    return {
        "publish": lambda number: js.publish("p", PAYLOAD),
        "put": lambda number: bucket.put(f"k{number % 100}", PAYLOAD),
        "get": lambda number: bucket.get(f"k{number % 100}"),
        "fetch(1), ack_sync": fetch,
    }


async def timed(call: Call, number: int) -> float:
    """Microseconds of one call."""
    began = time.perf_counter()
    await call(number)
    return (time.perf_counter() - began) * 1e6


def shown(times: list[float]) -> str:
    """The tenth percentile and the median."""
    kept = sorted(times[IGNORED:])
    return f"{kept[len(kept) // 10]:.0f}, {statistics.median(kept):.0f}"


async def measured(home: Path) -> None:
    """Print the table."""
    async with AsyncExitStack() as stack:
        servers: dict[str, dict[str, Call]] = {}
        for name, always, served in ((DEFAULT, False, False), (ALWAYS, True, False), (OURS, False, True)):
            folder = home / str(len(servers))
            folder.mkdir()
            client = await nats.connect(await stack.enter_async_context(started(folder, always, served)))
            stack.push_async_callback(client.close)
            servers[name] = await calls(client)
        print(f"| | {' | '.join(servers)} | of the default | of `always` |")
        print("|---" * (len(servers) + 3) + "|")
        for what in servers[OURS]:
            times: dict[str, list[float]] = {name: [] for name in servers}
            for number in range(CALLS):
                for name, made in servers.items():
                    times[name].append(await timed(made[what], number))
            ours = statistics.median(times[OURS])
            ratios = [f"{statistics.median(times[name]) / ours:.2f}x" for name in (DEFAULT, ALWAYS)]
            print("|", " | ".join([what, *map(shown, times.values()), *ratios]), "|", flush=True)


def main() -> None:
    """Measure in a folder of its own."""
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(measured(Path(home)))


if __name__ == "__main__":
    main()
