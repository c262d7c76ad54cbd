"""The cost of encryption."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Contender, Metric
from benchmarks.roster import pelton

PLAIN = "Pelton, plain"
ENCRYPTED = "Pelton, encrypted"


def _store(name: str, *, key: bool) -> Contender:
    return replace(pelton("vault:encrypted", name), options={"sync": "commit", "key": key})


CASE = Case(
    name="encryption",
    title="A store with a key, and one without",
    how="Publishing each, 1,000 in flight and batches of 1,000; then `fetch(256)` without acks.",
    metrics=(
        Metric("each", "msgs/s"),
        Metric("in_flight", "msgs/s"),
        Metric("batches", "msgs/s"),
        Metric("fetched", "msgs/s"),
    ),
    contenders=(_store(PLAIN, key=False), _store(ENCRYPTED, key=True)),
    asks=tuple(
        RatioAsk(ENCRYPTED, (PLAIN,), 0.75, metric=metric) for metric in ("each", "in_flight", "batches", "fetched")
    ),
)
