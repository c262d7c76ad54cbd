"""A push consumer with a callback, every message acknowledged."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import FSYNCED, Case, Contender, Metric
from benchmarks.roster import NATS, NATS_ALWAYS, PELTON, nats, pelton

_CONFIRMED = NATS_ALWAYS + ", acks confirmed"

CASE = Case(
    name="push-callback",
    title="push consumer with a callback",
    how=(
        "`consume(callback)`, explicit acks, until all stored messages are acknowledged: Pelton's acks are durable, "
        "in groups; nats-py sends its acks and does not wait, or waits for each to be confirmed."
    ),
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        pelton("pushed:callbacks"),
        *nats("nats_pushed:callbacks", unawaited_acks=True),
        Contender(_CONFIRMED, "peers.nats_pushed:confirmed", FSYNCED, {"always": True}),
    ),
    asks=(RatioAsk(PELTON, (NATS,), 0.6), RatioAsk(PELTON, (_CONFIRMED,), 8), RatioAsk(PELTON, (NATS_ALWAYS,), 8)),
)
