"""fetch(1), then an ack the other side confirms: the careful worker."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import BARE, NATS, NATS_ALWAYS, PELTON, bare, nats, pelton

CASE = Case(
    name="fetch-one",
    title="fetch(1), a confirmed ack",
    how="One message at a time: Pelton's `ack()` is durable when it returns; nats-py by `ack_sync()`.",
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        pelton("streams:fetch_one"),
        *nats("nats_streams:fetch_one"),
        bare("fetch_one"),
    ),
    asks=(
        RatioAsk(PELTON, (NATS,), 1.5),
        RatioAsk(PELTON, (NATS_ALWAYS,), None),
        RatioAsk(PELTON, (BARE,), None),
    ),
)
