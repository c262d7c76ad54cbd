"""A candidate in its own process: ``python -m tests.locks.candidate ADDRESS NAME LOG TTL``.

While it leads it writes lines ``lead NS TOKEN`` to its log. A line means that at NS (CLOCK_MONOTONIC, one for all
processes) it led: the time is read first, then the term is checked. So a line is never wrong because the process was
paused between the two, however long. ``lost NS TOKEN`` ends a term cleanly; SIGTERM ends the candidate.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import pelton
from pelton import Term


async def main(address: str, name: str, log: str, ttl: str) -> None:
    with Path(log).open("a", buffering=1) as lines:

        async def lead(term: Term) -> None:
            while True:
                now = time.monotonic_ns()
                if not term.is_held:
                    return
                lines.write(f"lead {now} {term.token}\n")
                await asyncio.sleep(0.005)

        def lost(term: Term) -> None:
            lines.write(f"lost {time.monotonic_ns()} {term.token}\n")

        async with pelton.open(address) as jet:
            election = jet.elect("s", name=name, ttl=float(ttl), on_won=lead, on_lost=lost)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, election.stop)
            lines.write(f"up {time.monotonic_ns()} 0\n")
            await election.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
