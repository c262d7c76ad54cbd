"""Publish, awaiting each: bound by the disk's fsync where the reply means durable."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import BARE, NATS, NATS_ALWAYS, PELTON, PELTON_OFF, bare, nats, pelton

CASE = Case(
    name="publish-each",
    title="Publish, awaiting each",
    how="One publisher, each publish awaited before the next. The yardstick is one row a commit in SQLite.",
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        pelton("streams:publish_each"),
        *nats("nats_streams:publish_each"),
        bare("publish_each"),
        pelton("streams:publish_each", PELTON_OFF, sync="off"),
    ),
    asks=(
        RatioAsk(PELTON, (NATS,), 0.75),
        RatioAsk(PELTON, (NATS_ALWAYS,), 1.6),
        RatioAsk(PELTON, (BARE,), None),
    ),
)
