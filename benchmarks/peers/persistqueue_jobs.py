"""persist-queue's SQLite queues as a job queue: put, get, call, and ack where the queue has acks.

SQLiteQueue deletes a job as it hands it out, so a crash loses it; SQLiteAckQueue keeps it until the ack.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread
from time import perf_counter, sleep
from typing import Any

from persistqueue import SQLiteAckQueue, SQLiteQueue

from benchmarks.case import Run, Sample
from benchmarks.load import PAYLOAD, JobTimes
from benchmarks.stats import percentile

Jobs = Any  # SQLiteQueue or SQLiteAckQueue, whose common base has no ack


def _open(run: Run, fsync: bool, acked: bool, threads: bool = False) -> Jobs:
    """Its WAL file with SQLite's default synchronous=FULL, or with syncing off."""
    kind = SQLiteAckQueue if acked else SQLiteQueue
    jobs: Jobs = kind(str(run.workdir / "persistqueue"), auto_commit=True, multithreading=threads)
    if not fsync:
        jobs._putter.execute("PRAGMA synchronous=OFF")
    return jobs


def noop_jobs(run: Run, fsync: bool, acked: bool) -> Sample:
    """Put all, then get, call and ack each."""
    jobs = _open(run, fsync, acked)
    total = run.drain // 8
    _batch(jobs, total // 10, _noop, acked)
    times = _batch(jobs, total, _noop, acked)
    assert jobs.qsize() == 0
    return times.rates(total)


def _noop(_: bytes) -> None:
    return None


def _batch(jobs: Jobs, total: int, call: Callable[[bytes], None], acked: bool) -> JobTimes:
    begun = perf_counter()
    for _ in range(total):
        jobs.put(PAYLOAD)
    enqueued = perf_counter()
    for _ in range(total):
        taken = jobs.get(block=False, raw=True)
        call(taken["data"])
        if acked:
            jobs.ack(taken)
    return JobTimes(begun, enqueued, perf_counter())


def pick_up(run: Run, fsync: bool) -> Sample:
    """Milliseconds from put to the return of a blocked get in another thread of this process."""
    jobs = _open(run, fsync, acked=True, threads=True)
    started: Queue[float] = Queue()
    samples: list[float] = []
    worker = Thread(target=_worker, args=(jobs, started, run.samples))
    worker.start()
    for _ in range(run.samples):
        sleep(0.005)
        put = perf_counter()
        jobs.put(PAYLOAD)
        samples.append((started.get(timeout=30) - put) * 1e3)
    worker.join()
    return {"p50": percentile(samples, 0.5), "p99": percentile(samples, 0.99)}


def _worker(jobs: SQLiteAckQueue, started: Queue[float], total: int) -> None:
    for _ in range(total):
        taken = jobs.get(raw=True)
        started.put(perf_counter())
        jobs.ack(taken)
