"""Read a stored message by its sequence, awaiting each."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Contender, Metric
from benchmarks.roster import NATS, PELTON, pelton

CASE = Case(
    name="get-by-sequence",
    title="Read a message by sequence, awaiting each",
    how="100,000 messages of 1,000 subjects; direct gets here and there, one after another.",
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        replace(pelton("reads:by_sequence"), guarantee="reads what is stored, checksums verified"),
        Contender(NATS, "peers.nats_reads:by_sequence", "reads what is stored"),
    ),
    asks=(RatioAsk(PELTON, (NATS,), 15),),
)
