"""litequeue as a job queue: put, pop, call, done. Its own default is WAL with synchronous=NORMAL."""

from __future__ import annotations

from time import perf_counter

from litequeue import LiteQueue

from benchmarks.case import Run, Sample
from benchmarks.load import JobTimes

_TEXT = "x" * 128
"""litequeue stores text only."""


def noop_jobs(run: Run, fsync: bool) -> Sample:
    """Put all, then pop, call and mark each as done."""
    queue = LiteQueue(run.workdir / "litequeue.db")
    queue.conn.execute(f"PRAGMA synchronous={'FULL' if fsync else 'OFF'}")
    total = run.drain // 8
    _batch(queue, total // 10)
    times = _batch(queue, total)
    assert queue.qsize() == 0
    return times.rates(total)


def _batch(queue: LiteQueue, total: int) -> JobTimes:
    begun = perf_counter()
    for _ in range(total):
        queue.put(_TEXT)
    enqueued = perf_counter()
    while (taken := queue.pop()) is not None:
        _noop(taken.data)
        queue.done(taken.message_id)
    return JobTimes(begun, enqueued, perf_counter())


def _noop(_: str) -> None:
    return None
