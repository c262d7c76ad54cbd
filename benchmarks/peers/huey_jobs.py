"""huey's SqliteHuey: no-op jobs in one process, and the time an idle consumer takes to notice one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from threading import Event
from time import perf_counter, sleep

from huey import SqliteHuey

from benchmarks.case import Run, Sample
from benchmarks.load import JobTimes
from benchmarks.stats import percentile


def _open(run: Run, fsync: bool) -> SqliteHuey:
    logging.getLogger("huey").setLevel(logging.ERROR)
    return SqliteHuey("bench", filename=str(run.workdir / "huey.db"), fsync=fsync)


def noop_jobs(run: Run, fsync: bool) -> Sample:
    """Enqueue all, then dequeue and execute each in this thread: the fastest way huey offers."""
    huey = _open(run, fsync)
    ran: list[None] = []

    @huey.task()
    def noop() -> None:
        ran.append(None)

    total = run.drain // 4
    _batch(huey, noop, total // 10)
    times = _batch(huey, noop, total)
    assert len(ran) == total + total // 10
    return times.rates(total)


def _batch(huey: SqliteHuey, task: Callable[[], object], total: int) -> JobTimes:
    begun = perf_counter()
    for _ in range(total):
        task()
    enqueued = perf_counter()
    while (job := huey.dequeue()) is not None:
        huey.execute(job)
    return JobTimes(begun, enqueued, perf_counter())


def pick_up(run: Run, fsync: bool) -> Sample:
    """Milliseconds from enqueueing to the start of the job; its consumer polls, idle for a while before each.

    The idle time is random: a fixed one would fall in step with the polling.
    """
    huey = _open(run, fsync)
    started, at = Event(), [0.0]

    @huey.task()
    def noop() -> None:
        at[0] = perf_counter()
        started.set()

    consumer = huey.create_consumer(workers=1, periodic=False, check_worker_health=False)
    consumer.start()
    samples = []
    idle = Random(0)
    for _ in range(max(5, run.samples // 20)):
        sleep(idle.uniform(0.4, 1.2))
        started.clear()
        enqueued = perf_counter()
        noop()
        started.wait(30)
        samples.append((at[0] - enqueued) * 1e3)
    consumer.stop(graceful=True)
    return {"p50": percentile(samples, 0.5), "p99": percentile(samples, 0.99)}
