"""1,000 publishes in flight: what group commit is for."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import BARE, NATS, NATS_ALWAYS, NATSIO, PELTON, bare, nats, natsio, pelton

CASE = Case(
    name="publish-in-flight",
    title="1,000 publishes in flight",
    how=(
        "1,000 awaited publishes at every moment; nats-py by `publish_async` with its own window of 1,000. "
        "The yardstick is the plainest asyncio group commit over SQLite."
    ),
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        pelton("streams:publish_in_flight"),
        *nats("nats_streams:publish_in_flight"),
        natsio("publish_in_flight"),
        bare("publish_in_flight"),
    ),
    asks=(
        RatioAsk(PELTON, (NATS,), 1.4),
        RatioAsk(PELTON, (NATS_ALWAYS,), 10),
        RatioAsk(PELTON, (NATSIO,), None),
        RatioAsk(PELTON, (BARE,), None),
    ),
)
