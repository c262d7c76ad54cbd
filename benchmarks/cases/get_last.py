"""Read the last message of a subject, awaiting each."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Contender, Metric
from benchmarks.roster import NATS, PELTON, pelton

CASE = Case(
    name="get-last",
    title="Read the last message of a subject, awaiting each",
    how="100,000 messages of 1,000 subjects; direct gets of one subject after another.",
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        replace(pelton("reads:last_of_subject"), guarantee="reads what is stored, checksums verified"),
        Contender(NATS, "peers.nats_reads:last_of_subject", "reads what is stored"),
    ),
    asks=(RatioAsk(PELTON, (NATS,), 15),),
)
