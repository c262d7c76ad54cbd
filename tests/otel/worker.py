"""A worker process whose jobs are traced: ``python -m tests.otel.worker ADDRESS`` prints its spans as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

import pelton
from tests.otel.recording import Recording, identity, links_of, parent_of

jobs = pelton.Jobs()


@jobs.job(max_attempts=2, backoff=[0.0])
async def repair(context: pelton.JobContext, car: str) -> str:
    await context.step("look", lambda: car)
    if context.attempt == 1:
        raise ValueError("the first attempt fails")
    context.emit("repaired.car", b"")
    return car


async def main(address: str) -> None:
    recording = Recording()
    async with pelton.open(address) as jet:
        recording.instrument(jet)
        queue = await jet.queue("garage", jobs=jobs)
        await queue.work(until_empty=True, handle_signals=False)
    spans = [
        {
            "name": span.name,
            "id": identity(span),
            "parent": parent_of(span),
            "links": links_of(span),
            "attributes": dict(span.attributes or {}),
            "error": not span.status.is_ok and not span.status.is_unset,
        }
        for span in recording.spans
    ]
    print(json.dumps(spans))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
