"""One who waits for a lock, in a process of its own: ``python -m tests.locks.waiter ADDRESS LOCK``.

It prints a line with its token when it has the lock, holds it for a moment, and ends.
"""

from __future__ import annotations

import asyncio
import sys

import pelton


async def main(address: str, name: str) -> None:
    async with pelton.open(address) as jet, jet.lock(name) as held:
        print(held.token, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
