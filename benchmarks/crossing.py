"""The delay from publish in one process to receive in another: the publisher's part and the receiver's.

The payload carries the monotonic clock, which all processes of one machine share. The clock is read
before the publish begins, so a durable publish's fsync is inside the figure.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from time import monotonic_ns

from benchmarks.case import Sample
from benchmarks.load import PAYLOAD
from benchmarks.stats import percentile

Ready = Callable[[], None]
Got = Callable[[bytes], None]
_WARM_UP = 10
_GAP = 0.01
_PATIENCE = 60.0


def stamp() -> bytes:
    """Return a payload of the usual size that begins with the time."""
    return str(monotonic_ns()).encode().ljust(len(PAYLOAD))


async def crossing(samples: int, receiver: str, place: str, publish: Callable[[bytes], Awaitable[object]]) -> Sample:
    """Return p50 and p99 in milliseconds; `receiver` is "module:function", `place` its path or URL."""
    total = samples + _WARM_UP
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.crossing", receiver, place, str(total)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).resolve().parent.parent,
    )
    assert process.stdout is not None
    if await asyncio.wait_for(process.stdout.readline(), _PATIENCE) != b"ready\n":
        raise RuntimeError("the receiver did not start")
    for _ in range(total):
        await asyncio.sleep(_GAP)
        await publish(stamp())
    line = await asyncio.wait_for(process.stdout.readline(), _PATIENCE)
    await process.wait()
    delays = json.loads(line)[_WARM_UP:]
    return {"p50": percentile(delays, 0.5), "p99": percentile(delays, 0.99)}


def main() -> None:
    receiver, place, total = sys.argv[1:]
    module, function = receiver.split(":")
    receive = getattr(import_module(f"benchmarks.{module}"), function)
    delays: list[float] = []

    def got(data: bytes) -> None:
        delays.append((monotonic_ns() - int(data)) / 1e6)

    asyncio.run(receive(place, int(total), lambda: print("ready", flush=True), got))
    print(json.dumps(delays), flush=True)


if __name__ == "__main__":
    main()
