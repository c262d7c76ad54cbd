"""How fast `pelton copy` is, from a file to three servers with three replicas: ``python -m benchmarks.studies.copies``.

Each part of a store is copied by itself, and compared, as the command does. The time is that of the command, with its
start; the processor's time is that of the command and of the three servers.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pelton
from tests.kit.nats_server import NatsCluster, nats_cluster

SIZE = 256
MESSAGES = 200_000
STREAMS = 20
KEYS = 20_000
OBJECTS = 8
OBJECT_BYTES = 8 * 2**20
JOBS = 10_000
TIMEOUT_S = 300


class Part(NamedTuple):
    """A part of the store: what it is, the names of its streams, and its messages and bytes."""

    title: str
    streams: list[str]
    messages: int
    size: int


async def make(path: str) -> list[Part]:
    """Make the store that is copied."""
    body = os.urandom(SIZE)
    async with pelton.open(path, sync="off") as jet:
        orders = await jet.create_stream("orders", subjects=["orders.>"])
        for begin in range(0, MESSAGES, 1000):
            await jet.publish_batch([(f"orders.{begin + number}", body) for number in range(1000)])
        for name in ("packer", "biller"):
            consumer = await orders.create_consumer(durable_name=name, max_ack_pending=-1)
            for message in await consumer.fetch(1000):
                await message.ack()
        small = [f"branch{number}" for number in range(STREAMS)]
        for name in small:
            await jet.create_stream(name, subjects=[f"{name}.>"])
            await jet.publish_batch([(f"{name}.{number}", body) for number in range(1000)])
        bucket = await jet.create_bucket("stock")
        await asyncio.gather(*(bucket.put(f"article{number}", body) for number in range(KEYS)))
        files = await jet.create_objects("files")
        for number in range(OBJECTS):
            await files.put(f"film{number}", os.urandom(OBJECT_BYTES))
        garage = await jet.queue("garage")

        @garage.job
        async def repair(car: str) -> None:
            """Never run here."""

        await garage.enqueue_many([repair.bind(f"car{number}") for number in range(JOBS)])
        queue = [name for name in await jet.stream_names() if name.startswith("JOBS_garage")]
        titles = {
            f"a stream of {MESSAGES:,} messages of {SIZE} bytes, two consumers": ["orders"],
            f"{STREAMS} streams of 1,000 messages": small,
            f"a bucket of {KEYS:,} keys": ["KV_stock"],
            f"{OBJECTS} objects of {OBJECT_BYTES >> 20} MiB": ["OBJ_files"],
            f"a queue with {JOBS:,} jobs": queue,
        }
        parts = []
        for title, names in titles.items():
            states = [(await (await jet.stream(name)).info()).state for name in names]
            parts.append(
                Part(title, names, sum(state.messages for state in states), sum(state.bytes for state in states))
            )
        return parts


def cpu_of(cluster: NatsCluster) -> float:
    """Return the seconds of processor time that the servers have used."""
    tick, used = os.sysconf("SC_CLK_TCK"), 0
    for server in cluster.servers:
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / tick


def copied(path: str, cluster: NatsCluster, names: list[str]) -> tuple[float, float, float]:
    """Copy streams; return the seconds, those of the command's processor time, and those of the servers'."""
    command = [sys.executable, "-m", "pelton", "copy", path, cluster.url, "--replicas", "3", "--json"]
    for name in names:
        command += ["--stream", name]
    before, servers, began = resource.getrusage(resource.RUSAGE_CHILDREN), cpu_of(cluster), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, own, cpu_of(cluster) - servers


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder, nats_cluster(Path(folder) / "servers") as cluster:
        path = os.path.join(folder, "shop.pelton")
        parts = asyncio.run(make(path))
        print("| copied | seconds | messages/s | MB/s | command's CPU s | servers' CPU s |")
        print("|---|---|---|---|---|---|")
        for part in parts:
            took, own, servers = copied(path, cluster, part.streams)
            rates = f"{part.messages / took:,.0f} | {part.size / took / 1e6:,.1f}"
            print(f"| {part.title} | {took:.1f} | {rates} | {own:.1f} | {servers:.1f} |", flush=True)


if __name__ == "__main__":
    main()
