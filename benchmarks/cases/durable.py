"""Durable functions: their steps, signals between processes, and what waits for a month."""

from __future__ import annotations

from benchmarks.asks import FloorAsk, LimitAsk, RatioAsk
from benchmarks.case import FSYNCED, Case, Contender, Metric
from benchmarks.roster import PELTON, pelton

STEPS = "Pelton, steps"
NONE, WAITING, SLEEPING = "Pelton, no jobs", "Pelton, 100,000 jobs wait", "Pelton, 100,000 jobs sleep"
DBOS_SQLITE, DBOS_POSTGRES = "DBOS on SQLite", "DBOS on PostgreSQL"
_IN_POSTGRES = "fsynced before the reply, by PostgreSQL"


def _with(name: str, target: str, **options: object) -> Contender:
    return Contender(name, f"ours.durable:{target}", FSYNCED, {"sync": "commit", **options})


def _dbos(target: str) -> tuple[Contender, ...]:
    return (
        Contender(DBOS_SQLITE, f"peers.dbos_functions:{target}", FSYNCED, {"server": False}),
        Contender(DBOS_POSTGRES, f"peers.dbos_functions:{target}", _IN_POSTGRES, {"server": True}),
    )


STEP = Case(
    name="durable-steps",
    title="Durable steps",
    how=(
        "Jobs of ten steps each that do nothing, 64 at a time, beside jobs that do nothing: steps or jobs a second. "
        "DBOS: a tenth of the jobs, as async workflows of a queue, 64 at a time."
    ),
    metrics=(Metric("rate", "1/s"),),
    contenders=(_with(PELTON, "worked", steps=0), _with(STEPS, "worked", steps=10), *_dbos("worked")),
    asks=(
        FloorAsk(STEPS, 5_000, "rate", " steps/s"),
        RatioAsk(STEPS, (DBOS_SQLITE,), None),
        RatioAsk(STEPS, (DBOS_POSTGRES,), None),
    ),
)
RESUME = Case(
    name="durable-resume",
    title="A signal resumes a job that waits, in another process",
    how=(
        "A signal every 10 ms to one job after the other, which a worker of another process has given back; from the "
        "call of send to where the wait returns. DBOS is told to poll every millisecond on SQLite (default: 1 s), and "
        "keeps each workflow that waits in memory."
    ),
    metrics=(Metric("p50", "ms", 3), Metric("p99", "ms", 3)),
    contenders=(pelton("durable:resume_across"), *_dbos("resume_across")),
    asks=(LimitAsk(PELTON, 5, "p50", "ms"),),
)
IDLE = Case(
    name="durable-idle",
    title="An idle worker beside 100,000 jobs that sleep or wait",
    how=(
        "CPU time in a second, and resident memory more than before the worker began (`--quick`: 4,000 jobs). The jobs "
        "sleep for a month, or wait for a signal without a timeout."
    ),
    metrics=(Metric("cpu", "ms/s", 2), Metric("memory", "MB", 1)),
    contenders=tuple(
        _with(name, "idle_beside", store=store)
        for name, store in ((NONE, "none"), (WAITING, "waiting"), (SLEEPING, "sleeping"))
    ),
    asks=tuple(
        LimitAsk(name, limit, metric, unit)
        for name in (WAITING, SLEEPING)
        for limit, metric, unit in ((5, "cpu", "ms/s"), (5, "memory", "MB"))
    ),
    prepare="ours.durable:fill",
)
ALL = (STEP, RESUME, IDLE)
