"""What a job costs, in calls: counted, so that it depends on no machine. The bounds only fall."""

from __future__ import annotations

import sys
from math import inf
from pathlib import Path
from types import FrameType

import pytest

import pelton
from pelton.queue.run import slots
from tests.queue.helpers import drain

JOBS = 2_000
KEYS = 500


@pytest.mark.parametrize(("exclusive", "most"), [(False, 56), (True, 83)])
async def test_a_job_costs_so_many_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exclusive: bool, most: int
) -> None:
    """From a pull to its settlement, on the thread of the event loop: calls of functions, and of those of C."""
    # On a slow machine, fewer would be settled together.
    monkeypatch.setattr(slots, "_LONGEST_S", inf)
    calls = 0

    def count(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async with pelton.open(tmp_path / "store.pelton", sync="off") as jet:
        queue = await jet.queue("garage", exclusive=exclusive)

        @queue.job
        async def wash(number: int) -> None: ...

        await queue.enqueue_many([wash.options(key=f"car{n % KEYS}").bind(n) for n in range(JOBS)])
        sys.setprofile(count)
        try:
            await drain(queue, concurrency=64)
        finally:
            sys.setprofile(None)
    assert calls / JOBS <= most
