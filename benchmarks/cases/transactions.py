"""Transactions: 10 publishes, 10 acks and a row of the user's own, one commit each."""

from __future__ import annotations

from benchmarks.asks import FloorAsk, RatioAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import BARE, PELTON, bare, pelton

EACH = f"{PELTON}, 21 calls"

CASE = Case(
    name="transactions",
    title="`jet.transaction()`: 10 publishes, 10 acks, a row of one's own",
    how="`tx.publish_batch`, `tx.ack(*messages)` and `tx.sql`, or 21 calls; bare: the same rows.",
    metrics=(Metric("rate", "transactions/s"),),
    contenders=(
        pelton("transactions:transact"),
        pelton("transactions:transact_each", EACH),
        bare("transact"),
    ),
    asks=(FloorAsk(PELTON, 3_000, "rate", "/s"), RatioAsk(PELTON, (BARE,), None)),
)
