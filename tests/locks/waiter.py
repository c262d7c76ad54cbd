"""A waiter for a lock in its own process: ``python -m tests.locks.waiter ADDRESS LOCK [HOW]``.

It prints a line with its token when it has the lock, holds it for a moment, and ends. HOW it waits: ``block``,
``task`` (in the background of a program that never closes the store), or ``blocking`` (without an event loop).
"""

from __future__ import annotations

import asyncio
import signal
import sys

import pelton


async def block(address: str, name: str) -> None:
    async with pelton.open(address) as jet, jet.lock(name) as held:
        print(held.token, flush=True)


async def task(address: str, name: str) -> None:
    jet = await pelton.open(address)
    waiting = asyncio.create_task(jet.lock(name).acquire())
    await asyncio.Event().wait()
    await waiting


def blocking(address: str, name: str) -> None:
    with pelton.sync.open(address) as jet, jet.lock(name) as held:
        print(held.token, flush=True)


def main(address: str, name: str, how: str = "block") -> None:
    # The parent process may ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if how == "blocking":
        blocking(address, name)
    else:
        asyncio.run({"block": block, "task": task}[how](address, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
