"""What looking at a busy store costs it."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import LimitAsk, RatioAsk
from benchmarks.case import Case, Metric
from benchmarks.roster import pelton

ALONE = "Pelton, alone"
OBSERVED = "Pelton, observed"
_TARGET = "observed:publishing"

CASE = Case(
    name="observed",
    title="A busy store that is looked at",
    how=(
        "1,000 publishes in flight, in a store with 20 other streams and 10,000 waiting jobs; alone, and while `pelton "
        "top` and `pelton dashboard` with a viewer look at it every 2 s and `pelton metrics` every 5 s, each a "
        "process. `own` is the CPU time that a message costs the publisher, `cpu` what these three take in a second."
    ),
    metrics=(Metric("rate", "msgs/s"), Metric("own", "us", 2), Metric("cpu", "ms/s", 1)),
    contenders=(
        replace(pelton(_TARGET, ALONE), options={"sync": "commit", "observed": False}),
        replace(pelton(_TARGET, OBSERVED), options={"sync": "commit", "observed": True}),
    ),
    asks=(RatioAsk(OBSERVED, (ALONE,), 0.97), LimitAsk(OBSERVED, 30, "cpu", "ms/s")),
)
