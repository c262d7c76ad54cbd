"""Sourcing: from a stream to one that sources or mirrors it in the same store."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import FSYNCED, Case, Contender, Metric

PUBLISH = "Pelton, published in batches"
SOURCE = "Pelton, through a source"
MIRROR = "Pelton, through a mirror"


def _within(name: str, kind: str) -> Contender:
    return Contender(name, "ours.sourcing:within", FSYNCED, {"kind": kind})


CASE = Case(
    name="sourcing",
    title="A source or a mirror is filled",
    how="A stream is filled by `publish_batch` of 1,000, each awaited; then one that takes all of it is made.",
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(_within(PUBLISH, "publish"), _within(SOURCE, "source"), _within(MIRROR, "mirror")),
    asks=(RatioAsk(SOURCE, (PUBLISH,), 0.5), RatioAsk(MIRROR, (PUBLISH,), 0.5)),
)
