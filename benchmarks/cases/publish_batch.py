"""Batches of 1,000, one reply per batch.

nats-py has no batches: its fastest publish is 1,000 in flight, with which the target compares. The server's
atomic batches, with headers written by hand, are beside it.
"""

from __future__ import annotations

from benchmarks.asks import RatioAsk, ReferenceAsk
from benchmarks.case import FSYNCED, OS_CACHE, Case, Contender, Metric
from benchmarks.references import GO_PUBLISH
from benchmarks.roster import BARE, NATS, PELTON, bare, nats, pelton

ATOMIC = "nats-py, atomic batches by hand"
ATOMIC_ALWAYS = "nats-py, atomic batches by hand, sync_interval: always"
_TARGET = "peers.nats_streams:publish_atomic_batches"

CASE = Case(
    name="publish-batch",
    title="Batches of 1,000",
    how="`publish_batch` of 1,000, each batch awaited; beside it nats-py's fastest, 1,000 in flight.",
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        pelton("streams:publish_batch"),
        nats("nats_streams:publish_in_flight")[0],
        Contender(ATOMIC, _TARGET, OS_CACHE, {"always": False}),
        Contender(ATOMIC_ALWAYS, _TARGET, FSYNCED, {"always": True}),
        bare("publish_batch"),
    ),
    asks=(
        RatioAsk(PELTON, (NATS,), 4),
        ReferenceAsk(PELTON, GO_PUBLISH, 1),
        RatioAsk(PELTON, (ATOMIC, ATOMIC_ALWAYS), None, label="the server's atomic batches by hand"),
        RatioAsk(PELTON, (BARE,), None),
    ),
)
