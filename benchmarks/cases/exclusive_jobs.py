"""Jobs of exclusive keys, in a file and on a NATS server."""

from __future__ import annotations

from benchmarks.asks import LimitAsk, RatioAsk
from benchmarks.case import FSYNCED, OS_CACHE, Case, Contender, Metric
from benchmarks.roster import PELTON

SERVER = "Pelton on nats-server"
FREE = "Pelton on nats-server, not exclusive"

CASE = Case(
    name="exclusive-jobs",
    title="Jobs of exclusive keys",
    how=(
        "No-op jobs of 256 keys are enqueued, then worked off 32 at a time by one worker (`drain`). Then a chain of "
        "jobs of one key: from the end of one job's function to the start of the next one's (`p50`, `p99`)."
    ),
    metrics=(Metric("drain", "jobs/s"), Metric("p50", "ms", 2), Metric("p99", "ms", 2)),
    contenders=(
        Contender(PELTON, "ours.exclusive:keyed_jobs", FSYNCED, {"server": False}),
        Contender(SERVER, "ours.exclusive:keyed_jobs", OS_CACHE, {"server": True}),
        Contender(FREE, "ours.exclusive:keyed_jobs", OS_CACHE, {"server": True, "exclusive": False}),
    ),
    asks=(
        LimitAsk(SERVER, 20, "p50", "ms"),
        RatioAsk(SERVER, (FREE,), None, "drain"),
    ),
)
