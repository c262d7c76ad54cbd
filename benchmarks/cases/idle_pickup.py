"""How soon an idle worker in the same process starts a job."""

from __future__ import annotations

from benchmarks.asks import LimitAsk
from benchmarks.case import FSYNCED, Case, Contender, Metric
from benchmarks.roster import ACK_QUEUE, HUEY, PELTON, nats, pelton

CASE = Case(
    name="idle-pickup",
    title="Idle worker picks a job up, same process",
    how=(
        "From the call that enqueues to the start of the job, the enqueueing's own durable write included. "
        "huey's consumer polls (its default: 0.1 s, growing while idle); the others are woken."
    ),
    metrics=(Metric("p50", "ms", 3), Metric("p99", "ms", 3)),
    contenders=(
        pelton("jobs:pick_up"),
        *nats("nats_latency:pick_up"),
        Contender(HUEY, "peers.huey_jobs:pick_up", FSYNCED, {"fsync": True}),
        Contender(ACK_QUEUE, "peers.persistqueue_jobs:pick_up", FSYNCED, {"fsync": True}),
    ),
    asks=(LimitAsk(PELTON, 1, "p50", "ms"),),
)
