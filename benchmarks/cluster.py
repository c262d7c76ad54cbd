"""`python -m benchmarks.cluster`: Pelton on a NATS server beside bare nats-py on the same server, in turn.

128-byte payloads, 1,000 publishes in flight, then fetch(256) with every ack confirmed by the server. A ratio is
the median over the rounds of Pelton's rate to nats-py's of the same round; at least 0.9 is asked.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import nats

import pelton
from benchmarks.load import FETCH, PAYLOAD, WINDOW
from pelton.testing.nats_server import nats_server

MESSAGES = 20_000
ROUNDS = 5
ASKED = 0.9
Rates = tuple[float, float]


async def bare(url: str, name: str) -> Rates:
    """nats-py: publish_async with its own window, then ack_sync."""
    client = await nats.connect(url)
    context = client.jetstream(timeout=30, publish_async_max_pending=WINDOW)
    await context.add_stream(name=name, subjects=[name])
    start = perf_counter()
    for _ in range(MESSAGES):
        await context.publish_async(name, PAYLOAD)
    await context.publish_async_completed()
    published = MESSAGES / (perf_counter() - start)
    subscription = await context.pull_subscribe(name, durable="d", stream=name)
    start, left = perf_counter(), MESSAGES
    while left:
        messages = await subscription.fetch(FETCH, timeout=10)
        await asyncio.gather(*(message.ack_sync(timeout=10) for message in messages))
        left -= len(messages)
    consumed = MESSAGES / (perf_counter() - start)
    await context.delete_stream(name)
    await client.close()
    return published, consumed


async def ours(url: str, name: str, message_ids: bool) -> Rates:
    """Pelton: awaited publishes, then consumer.ack(messages)."""
    async with pelton.open(url, message_ids=message_ids) as jet:
        stream = await jet.create_stream(name)

        async def publish() -> None:
            for _ in range(MESSAGES // WINDOW):
                await jet.publish(name, PAYLOAD)

        start = perf_counter()
        await asyncio.gather(*(publish() for _ in range(WINDOW)))
        published = MESSAGES / (perf_counter() - start)
        consumer = await stream.create_consumer(durable_name="d")
        start, left = perf_counter(), MESSAGES
        while left:
            messages = await consumer.fetch(FETCH, timeout=10)
            await consumer.ack(messages)
            left -= len(messages)
        consumed = MESSAGES / (perf_counter() - start)
        await stream.delete()
    return published, consumed


async def measure(url: str) -> dict[str, list[Rates]]:
    """All rounds, each contender in turn."""
    rounds: dict[str, list[Rates]] = {"nats-py": [], "Pelton": [], "Pelton, message_ids=False": []}
    for number in range(ROUNDS):
        rounds["nats-py"].append(await bare(url, f"bare{number}"))
        rounds["Pelton"].append(await ours(url, f"ids{number}", message_ids=True))
        rounds["Pelton, message_ids=False"].append(await ours(url, f"plain{number}", message_ids=False))
    return rounds


def main() -> None:
    """Print the table; fail when a ratio is below what is asked."""
    with tempfile.TemporaryDirectory() as home, nats_server(Path(home)) as server:
        rounds = asyncio.run(measure(server.url))
    print("| who | published/s | fetched and acked/s | ratios to nats-py |\n|---|---:|---:|---|")
    worst = 1.0
    for who, rates in rounds.items():
        pairs = list(zip(rates, rounds["nats-py"], strict=True))
        ratios = [median(mine[column] / theirs[column] for mine, theirs in pairs) for column in (0, 1)]
        worst = min(worst, *ratios)
        middles = [median(rate[column] for rate in rates) for column in (0, 1)]
        print(f"| {who} | {middles[0]:,.0f} | {middles[1]:,.0f} | {ratios[0]:.2f}x, {ratios[1]:.2f}x |")
    if worst < ASKED:
        raise SystemExit(f"a ratio is below {ASKED:g}")


if __name__ == "__main__":
    main()
