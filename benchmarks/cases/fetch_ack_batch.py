"""fetch(256), then one call that acks them all."""

from __future__ import annotations

from benchmarks.asks import RatioAsk, ReferenceAsk
from benchmarks.case import Case, Metric
from benchmarks.references import GO_FETCH
from benchmarks.roster import BARE, NATS, PELTON, bare, nats, pelton

CASE = Case(
    name="fetch-ack-batch",
    title="fetch(256), one call ack(messages)",
    how="`await consumer.ack(messages)` is durable when it returns; nats-py has no such call and acks each.",
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        pelton("streams:fetch_batch"),
        *nats("nats_streams:fetch_many", unawaited_acks=True),
        bare("fetch_batch"),
    ),
    asks=(
        RatioAsk(PELTON, (NATS,), 2.5),
        ReferenceAsk(PELTON, GO_FETCH, None),
        RatioAsk(PELTON, (BARE,), None),
    ),
)
