"""Batches of 1,000 into streams that transform subjects, or republish what they store."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import RatioAsk
from benchmarks.case import Case, Contender, Metric
from benchmarks.roster import pelton

PLAIN = "Pelton, as it is"
TRANSFORM = "Pelton, subject_transform"
UNHEARD = "Pelton, republish that nobody hears"
HEARD = "Pelton, republish to a listener"
STORED = "Pelton, republish into a second stream"


def _publishes(name: str, kind: str) -> Contender:
    return replace(pelton("mapped:publish_batch", name), options={"sync": "commit", "kind": kind})


CASE = Case(
    name="publish-mapped",
    title="Batches of 1,000, renamed or said again",
    how=(
        "`publish_batch` of 1,000, each awaited. The transform has a `partition` and a `wildcard`. The listener is "
        "in the same process. A second stream that takes what is republished stores every message once more."
    ),
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        _publishes(PLAIN, "plain"),
        _publishes(TRANSFORM, "transform"),
        _publishes(UNHEARD, "unheard"),
        _publishes(HEARD, "heard"),
        _publishes(STORED, "stored"),
    ),
    asks=(
        RatioAsk(TRANSFORM, (PLAIN,), 0.5),
        RatioAsk(UNHEARD, (PLAIN,), 0.5),
        RatioAsk(HEARD, (PLAIN,), 0.5),
        RatioAsk(STORED, (PLAIN,), None),
    ),
)
