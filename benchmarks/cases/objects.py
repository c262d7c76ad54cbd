"""Object stores: put and get."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import BARE, NATS, NATS_ALWAYS, PELTON, bare, nats, pelton

CASE = Case(
    name="objects",
    title="An object of 64 MiB, put and got",
    how="Bytes in, in the place of the object before; bytes out, with the digest checked. Each awaited.",
    metrics=(Metric("put", "MiB/s"), Metric("get", "MiB/s")),
    contenders=(
        pelton("objects:put_and_get"),
        *nats("nats_objects:put_and_get"),
        replace(bare("put_and_get"), target="peers.bare_objects:put_and_get"),
    ),
    asks=(
        RatioAsk(PELTON, (NATS,), 0.8, metric="put"),
        RatioAsk(PELTON, (NATS_ALWAYS,), 1.3, metric="put"),
        RatioAsk(PELTON, (NATS, NATS_ALWAYS), 15, metric="get"),
        RatioAsk(PELTON, (BARE,), None, metric="put"),
        RatioAsk(PELTON, (BARE,), None, metric="get"),
    ),
)
