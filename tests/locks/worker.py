"""A lock user in its own process: ``python -m tests.locks.worker ADDRESS NAME LOG TTL REGISTER``.

It takes the lock, writes to its log while it holds it, releases it, and starts again, until it is killed. A line
``hold NS TOKEN`` means that at NS (CLOCK_MONOTONIC, one for all processes) it held the lock: the time is read first,
then the lock is checked. So a line is never wrong because the process was paused between the two, however long.

It also writes to a register on disk that refuses tokens older than it has seen: ``wrote NS TOKEN``, or ``refused``.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import time
from pathlib import Path

import pelton
from pelton import LockLease, LockLostError

_TURNS = 40


def write(register: Path, token: int) -> bool:
    """Write under a token; return whether no newer one has been seen."""
    with register.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        seen = [int(line) for line in file]
        if seen and seen[-1] > token:
            return False
        file.write(f"{token}\n")
        return True


async def main(address: str, name: str, log: str, ttl: str, register: str) -> None:
    with Path(log).open("a", buffering=1) as lines:

        async def use(held: LockLease) -> None:
            for turn in range(_TURNS):
                now = time.monotonic_ns()
                if not held.is_held:
                    return
                lines.write(f"hold {now} {held.token}\n")
                if turn % 10 == 0:
                    kind = "wrote" if write(Path(register), held.token) else "refused"
                    lines.write(f"{kind} {time.monotonic_ns()} {held.token}\n")
                await asyncio.sleep(0.005)

        async with pelton.open(address) as jet:
            lines.write(f"up {time.monotonic_ns()} 0\n")
            while True:
                try:
                    async with jet.lock("s", ttl=int(ttl)) as held:
                        await use(held)
                except LockLostError as lost:
                    lines.write(f"lost {time.monotonic_ns()} {lost.token}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
