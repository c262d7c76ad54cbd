"""`python -m benchmarks.studies.many_streams`: the time to create and delete 1,000 streams, one by one and in flight.

On a slow disk, most of it is one sync per stream: the time for as many plain syncs is measured beside it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time

import pelton

STREAMS = 1_000


def syncs(folder: str) -> float:
    """Return the seconds that as many syncs of a small file take."""
    with open(os.path.join(folder, "file"), "wb", buffering=0) as file:
        start = time.perf_counter()
        for _ in range(STREAMS):
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
        return time.perf_counter() - start


async def main() -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        print(f"| {STREAMS:,} syncs of this disk | {syncs(folder):.1f} s |")
        async with await pelton.open(os.path.join(folder, "a.pelton")) as jet:
            start = time.perf_counter()
            for number in range(STREAMS):
                await jet.create_stream(f"s{number}", subjects=[f"s{number}.>"])
            print(f"| {STREAMS:,} streams made one by one | {time.perf_counter() - start:.1f} s |")
            start = time.perf_counter()
            for number in range(STREAMS):
                await jet.delete_stream(f"s{number}")
            print(f"| deleted one by one | {time.perf_counter() - start:.1f} s |")
            start = time.perf_counter()
            await asyncio.gather(*(jet.create_stream(f"s{n}", subjects=[f"s{n}.>"]) for n in range(STREAMS)))
            print(f"| made in flight together | {time.perf_counter() - start:.1f} s |")


if __name__ == "__main__":
    asyncio.run(main())
