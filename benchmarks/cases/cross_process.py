"""From publish in one process to receive in another."""

from __future__ import annotations

from benchmarks.asks import LimitAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import PELTON, nats, pelton

CASE = Case(
    name="cross-process",
    title="Publish to receive in another process",
    how="A message every 10 ms to a fetch(1) that waits in another process; from the call of publish.",
    metrics=(Metric("p50", "ms", 3), Metric("p99", "ms", 3)),
    contenders=(
        pelton("latency:publish_to_receive"),
        *nats("nats_latency:publish_to_receive"),
    ),
    asks=(LimitAsk(PELTON, 2, "p50", "ms"),),
)
