"""What a point of a backup costs: by pages that have changed, and by rows that are new or have changed.

``python -m benchmarks.studies.backups [FOLDER] [MESSAGES]``: a store with that many messages (a million), and points
after rounds of a mixed load: messages that are published, delivered and acknowledged, keys of a bucket, jobs. It prints
the table of ``benchmarks/results/backups.md``. CPU seconds, of this process; the load is not counted.
"""

from __future__ import annotations

import asyncio
import os
import sys
import zlib
from collections.abc import Callable
from contextlib import closing
from hashlib import blake2b
from random import Random
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import pelton
from pelton.moving import ContinuousBackup
from pelton.storage import ReadOnlyDatabase
from pelton.storage.pages import page_snapshot

_BATCH = 1000
_ROUNDS = 5


def order(random: Random) -> tuple[str, bytes]:
    note = bytes(random.choices(b"abcdefgh ", k=60)).decode()
    text = f'{{"customer":{random.randrange(10**6)},"item":"spade {random.randrange(10**4)}","note":"{note}"}}'
    return f"orders.{random.randrange(1000)}", text.encode()


async def fill(path: str, messages: int, random: Random) -> None:
    async with pelton.open(path, sync="off") as jet:
        stream = await jet.create_stream("orders", subjects=["orders.>"])
        await stream.create_consumer(durable_name="packer", deliver_policy="new", max_ack_pending=-1)
        await jet.create_bucket("stock")
        for _ in range(messages // _BATCH):
            await jet.publish_batch([order(random) for _ in range(_BATCH)])
        stock = await jet.bucket("stock")
        for number in range(2000):
            await stock.put(f"item{number}", b"%d" % number)


async def load(path: str, share: int, random: Random) -> None:
    """Publish that many messages, deliver and acknowledge most of them, change keys, and run jobs."""
    async with pelton.open(path, sync="off") as jet:
        for _ in range(max(share // _BATCH, 1)):
            await jet.publish_batch([order(random) for _ in range(min(share, _BATCH))])
        consumer = await (await jet.stream("orders")).consumer("packer")
        for _ in range(max(share // _BATCH, 1)):
            for message in (await consumer.fetch(_BATCH, no_wait=True))[10:]:
                await message.ack()
        stock = await jet.bucket("stock")
        for _ in range(share // 20):
            await stock.put(f"item{random.randrange(2000)}", b"%d" % random.randrange(1000))
        mail = await jet.queue("mail")

        @mail.job
        async def send(to: int) -> int:
            return to

        for number in range(share // 50):
            await send.enqueue(number)
        await mail.work(until_empty=True, handle_signals=False, concurrency=8)


class Rows:
    """Points by rows: messages after the last ones, and what has changed in all other tables."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._seen: dict[bytes, None] = {}

    def point(self, path: str) -> int:
        """Return the bytes of a point."""
        written, seen = 0, {}
        with closing(ReadOnlyDatabase(path)) as store, store.reading():
            tables = [str(name) for (name,) in store.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
            for table in tables:
                rows: list[bytes] = []
                if table.startswith("m_"):
                    found = store.execute(f"SELECT * FROM {table} WHERE seq>?", (self._last.get(table, 0),)).fetchall()
                    rows = [repr(row).encode() for row in found]
                    self._last[table] = max([self._last.get(table, 0), *(int(row[0]) for row in found)])
                    # What was removed is told by the sequences that are left.
                    left = store.execute(f"SELECT seq FROM {table}").fetchall()
                    seen[blake2b(repr(left).encode(), digest_size=16).digest()] = None
                else:
                    for row in store.execute(f"SELECT * FROM {table}"):
                        line = repr(row).encode()
                        digest = blake2b(table.encode() + line, digest_size=16).digest()
                        seen[digest] = None
                        if digest not in self._seen:
                            rows.append(line)
                written += len(zlib.compress(b"\n".join(rows), 1))
        self._seen = seen
        return written


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = process_time()
    found = work()
    return process_time() - begun, found


def row(name: str, *cells: object) -> None:
    print(
        "| " + " | ".join([name, *(f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in cells)]) + " |"
    )


def main(folder: str, messages: int) -> None:
    path, random = os.path.join(folder, "shop.pelton"), Random(1)
    backups, rows = ContinuousBackup(os.path.join(folder, "backup")), Rows()
    asyncio.run(fill(path, messages, random))
    print(f"{messages:,} messages, {os.path.getsize(path) / 1e6:,.0f} MB\n")
    print("| point | by pages: CPU s | by pages: MB | by rows: CPU s | by rows: MB |\n|---|---|---|---|---|")
    for name, share in [
        ("full", 0),
        ("nothing new", 0),
        *[("1 % new", messages // 100)] * _ROUNDS,
        ("0.01 %", messages // 10_000),
    ]:
        if share:
            asyncio.run(load(path, share, random))
        pages, point = timed(lambda: backups.add(path))
        seconds, size = timed(lambda: rows.point(path))
        row(name, pages, point.written / 1e6, seconds, size / 1e6)
    print("\n| part of a point | CPU s |\n|---|---|")
    with page_snapshot(path, None) as snapshot:
        row("digests of all pages", timed(snapshot.digests)[0])
        row("verifying pages and messages", timed(snapshot.damage)[0])
    row("`pelton verify`, for a full point", timed(lambda: pelton.verify(path))[0])
    row("restoring the last point, verified", timed(lambda: backups.restore(os.path.join(folder, "again.pelton")))[0])
    points = len(backups.points())
    print(f"\n{points} points, of which {sum(not point.parent for point in backups.points())} full")


if __name__ == "__main__":
    with TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as made:
        main(made, int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
