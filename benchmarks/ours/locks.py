"""Pelton's locks: acquire and release."""

from __future__ import annotations

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import one_by_one
from benchmarks.ours import Sync
from benchmarks.reading import checked


async def acquire_and_release(run: Run, sync: Sync) -> Sample:
    """Acquire and release an uncontended lock; its token must grow."""
    last = 0
    async with pelton.open(run.workdir / "bench.pelton", sync=sync) as jet:

        async def one() -> None:
            nonlocal last
            async with jet.lock("bench", ttl=30) as held:
                checked(held.token > last)
                last = held.token

        return {"rate": await one_by_one(run.seconds, one)}
