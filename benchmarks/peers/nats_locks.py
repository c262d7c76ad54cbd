"""A lock as nats-py's key-value store makes one: create, delete."""

from __future__ import annotations

from benchmarks.case import Run, Sample
from benchmarks.load import one_by_one
from benchmarks.peers.nats_buckets import bucket


async def create_and_delete(run: Run, always: bool) -> Sample:
    """Create and delete one key, again and again."""
    async with bucket(run, always) as (kept, _):

        async def one() -> None:
            await kept.create("lock", b"holder")
            await kept.delete("lock")

        return {"rate": await one_by_one(run.seconds, one)}
