"""A store that holds millions of messages on 1,000 subjects: opening it, its memory, publishing to it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from time import perf_counter

import pelton
from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, FILTER, PAYLOAD, in_flight, one_by_one
from benchmarks.ours import Sync

STREAM = "bench"
_STORE = "big.pelton"
_SUBJECTS = [f"bench.{number}" for number in range(BATCH)]
_BATCH = [(subject, PAYLOAD) for subject in _SUBJECTS]


async def build(run: Run) -> Sample:
    """Fill the store that all rounds of the case share."""
    start = perf_counter()
    async with pelton.open(run.shared / _STORE) as jet:
        await jet.create_stream(STREAM, subjects=[FILTER])
        for _ in range(run.big // BATCH):
            await jet.publish_batch(_BATCH)
    return {"seconds": perf_counter() - start}


async def measure(run: Run, sync: Sync, full: bool) -> Sample:
    """Open a store (the big one, or an empty one), publish in three ways."""
    path = (run.shared if full else run.workdir) / _STORE
    if not full:
        await _create(path, sync)
    # Opening loads modules when it is first used: they are no part of what this store takes (``studies/imports.py``).
    async with pelton.open("memory:"):
        pass
    start = perf_counter()
    async with pelton.open(path, sync=sync) as jet:
        stream = await jet.stream(STREAM)
        opened = perf_counter() - start
        stored = (await stream.info()).state.messages
        assert stored >= run.big if full else stored == 0, f"{stored} messages stored"
        await jet.publish_batch(_BATCH)
        resident = resident_mb()
        return {"open": opened * 1e3, "memory": resident} | await _rates(jet, run.seconds)


async def _create(path: Path, sync: Sync) -> None:
    async with pelton.open(path, sync=sync) as jet:
        await jet.create_stream(STREAM, subjects=[FILTER])


async def _rates(jet: pelton.Jet, seconds: float) -> Sample:
    subject = _SUBJECTS[0]
    return {
        "each": await one_by_one(seconds, lambda: jet.publish(subject, PAYLOAD)),
        "in flight": await in_flight(seconds, lambda: jet.publish(subject, PAYLOAD)),
        "batches": await one_by_one(seconds, lambda: jet.publish_batch(_BATCH), each=BATCH),
    }


def resident_mb() -> float:
    """The most this process ever had resident, in MB (Linux tells its own, others the kernel's count)."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
