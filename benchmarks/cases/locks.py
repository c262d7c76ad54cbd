"""Locks: acquire and release."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import NATS, NATS_ALWAYS, PELTON, PELTON_OFF, nats, pelton

CASE = Case(
    name="lock",
    title="Acquire and release a lock that nobody else wants",
    how="One lock, again and again; nats-py has no locks: create and delete of one key of a bucket.",
    metrics=(Metric("rate", "pairs/s"),),
    contenders=(
        pelton("locks:acquire_and_release"),
        *nats("nats_locks:create_and_delete"),
        pelton("locks:acquire_and_release", PELTON_OFF, sync="off"),
    ),
    asks=(RatioAsk(PELTON, (NATS,), 1), RatioAsk(PELTON, (NATS_ALWAYS,), None)),
)
