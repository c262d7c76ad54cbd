"""Several processes on one file."""

from __future__ import annotations

from benchmarks.asks import LimitAsk, RatioAsk
from benchmarks.case import FSYNCED, Case, Contender, Metric

_WORKERS = (1, 2, 3, 6)


def _name(workers: int) -> str:
    return "one worker" if workers == 1 else f"{workers} workers"


def _drains(name: str, title: str, bounds: dict[int, float], keys: int, burn_us: int = 0) -> Case:
    return Case(
        name=name,
        title=title,
        how=(
            "Jobs are enqueued beforehand, and drained by worker processes of concurrency 64, which begin together. "
            "`cpu` is that of all workers for each job; `least` is what the least busy one did, beside an equal share."
        ),
        metrics=(Metric("rate", "jobs/s"), Metric("cpu", "us", 0), Metric("least", "x", 2)),
        contenders=tuple(
            Contender(
                _name(workers), "ours.processes:drain", FSYNCED, {"workers": workers, "keys": keys, "burn_us": burn_us}
            )
            for workers in (_WORKERS if len(bounds) > 1 else (1, *bounds))
        ),
        asks=tuple(RatioAsk(_name(workers), (_name(1),), bound) for workers, bound in bounds.items()),
    )


PLAIN = _drains("workers-plain", "Worker processes: no-op jobs", {2: 1.1, 3: 1.1, 6: 1.1}, 0)
KEYED = _drains("workers-exclusive", "Worker processes: exclusive no-op jobs, 4,000 keys", {2: 1, 3: 1, 6: 1}, 4_000)
MANY_KEYS = _drains(
    "workers-exclusive-many", "Worker processes: exclusive no-op jobs, 100,000 keys", {2: 1, 3: 1, 6: 1}, 100_000
)
BUSY = _drains("workers-busy", "Worker processes: jobs of 100 us of CPU each", {2: 1.7}, 0, 100)

ONE, FOUR = "one process, 1,000 in flight", "4 processes, 250 in flight each"
FLIGHT = Case(
    name="publishers",
    title="Publishing processes",
    how="Processes that keep so many awaited publishes in flight, each to a subject of its own; all together.",
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        Contender(ONE, "ours.processes:in_flight", FSYNCED, {"publishers": 1, "each": 1000}),
        Contender(FOUR, "ours.processes:in_flight", FSYNCED, {"publishers": 4, "each": 250}),
    ),
    asks=(RatioAsk(FOUR, (ONE,), 0.9),),
)

LONE_NAME = "a lone publish"
LONE = Case(
    name="lone-publish",
    title="A lone publish beside a busy process",
    how="A publish every 10 ms, awaited, while another process keeps 1,000 in flight.",
    metrics=(Metric("p50", "ms", 2), Metric("p99", "ms", 2)),
    contenders=(Contender(LONE_NAME, "ours.processes:lone", FSYNCED),),
    asks=(LimitAsk(LONE_NAME, 10, "p99", "ms"),),
)

ALL = (PLAIN, KEYED, MANY_KEYS, BUSY, FLIGHT, LONE)
