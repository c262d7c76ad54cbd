"""Pelton's object store."""

from __future__ import annotations

import pelton
from benchmarks.case import Run, Sample
from benchmarks.objects import BUCKET, CONTENT, NAME, rates
from benchmarks.ours import Sync


async def put_and_get(run: Run, sync: Sync) -> Sample:
    """Put an object of bytes, get it as bytes."""
    async with pelton.open(run.workdir / "bench.pelton", sync=sync) as jet:
        store = await jet.create_objects(BUCKET)
        return await rates(run.seconds, lambda: store.put(NAME, CONTENT), lambda: store.get(NAME))
