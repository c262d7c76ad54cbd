"""fetch(256), then an ack for each message."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import BARE, NATS, NATS_ALWAYS, NATSIO, PELTON, bare, nats, natsio, pelton

CASE = Case(
    name="fetch-ack-each",
    title="fetch(256), an ack for each",
    how=(
        "Pelton awaits a durable ack for each message (gathered); the NATS clients send their acks and do "
        "not wait. The yardstick selects 256 rows and awaits a durable delete for each."
    ),
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        pelton("streams:fetch_many"),
        *nats("nats_streams:fetch_many", unawaited_acks=True),
        natsio("fetch_many", unawaited_acks=True),
        bare("fetch_many"),
    ),
    asks=(
        RatioAsk(PELTON, (NATS,), 1.8),
        RatioAsk(PELTON, (NATS_ALWAYS,), None),
        RatioAsk(PELTON, (NATSIO,), None),
        RatioAsk(PELTON, (BARE,), None),
    ),
)
