"""Read stored messages 1,000 at a time."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Contender, Metric
from benchmarks.roster import NATS, PELTON, pelton

CASE = Case(
    name="get-batch",
    title="Read messages in batches of 1,000",
    how="100,000 messages; each batch awaited. nats-py has no helper: its answers are gathered by hand.",
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        replace(pelton("reads:batches"), guarantee="reads what is stored, checksums verified"),
        Contender(NATS, "peers.nats_reads:batches", "reads what is stored"),
    ),
    asks=(RatioAsk(PELTON, (NATS,), 15),),
)
