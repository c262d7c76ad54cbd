"""No-op jobs end to end in one process: enqueued, run, finished."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import RatioAsk, ReferenceAsk
from benchmarks.case import Case, Contender, Metric
from benchmarks.references import GOALPOST_DRAIN
from benchmarks.roster import (
    ACK_QUEUE,
    ACK_QUEUE_OFF,
    LITEQUEUE,
    LITEQUEUE_OFF,
    ON_SERVERS,
    PELTON,
    PELTON_OFF,
    pelton,
    queues,
)

EACH = "Pelton, enqueue awaited each"
_FSYNCED = queues("noop_jobs", fsync=True)
_UNSYNCED = queues("noop_jobs", fsync=False)
_BEST = "the best Python queue, fsynced"
_BEST_OFF = "the best Python queue, syncing off"
_BEST_ON_SERVER = "the best Python queue on a server"
_KEEPS = "the best that keeps a running job through a crash"


def _names(contenders: tuple[Contender, ...]) -> tuple[str, ...]:
    return tuple(contender.name for contender in contenders)


CASE = Case(
    name="noop-jobs",
    title="No-op jobs end to end, one process",
    how=(
        "All are enqueued, then worked off. Pelton enqueues in bulk and works 256 at a time (and, beside it, "
        "enqueues one by one); the peers have no bulk: huey is dequeued and executed in one thread, "
        "persist-queue and litequeue are put, got, called and acked; those on a server enqueue one by one, too. "
        "`rate` counts from the first enqueue, `drain` from the last."
    ),
    metrics=(Metric("rate", "jobs/s"), Metric("drain", "jobs/s")),
    contenders=(
        pelton("jobs:noop_jobs"),
        *_FSYNCED,
        *ON_SERVERS,
        pelton("jobs:noop_jobs", PELTON_OFF, sync="off"),
        *_UNSYNCED,
        replace(
            pelton("jobs:noop_jobs", EACH),
            options={"sync": "commit", "bulk": False},
        ),
    ),
    asks=(
        RatioAsk(PELTON, _names(_FSYNCED), 3, label=_BEST),
        RatioAsk(PELTON, _names(_FSYNCED), 3, "drain", _BEST),
        RatioAsk(PELTON_OFF, _names(_UNSYNCED), 3, label=_BEST_OFF),
        RatioAsk(PELTON_OFF, _names(_UNSYNCED), 3, "drain", _BEST_OFF),
        ReferenceAsk(PELTON, GOALPOST_DRAIN, 5, "drain"),
        RatioAsk(PELTON, (ACK_QUEUE, LITEQUEUE), None, "drain", _KEEPS),
        RatioAsk(PELTON_OFF, (ACK_QUEUE_OFF, LITEQUEUE_OFF), None, "drain", _KEEPS),
        RatioAsk(EACH, _names(_FSYNCED), None, label=_BEST),
        RatioAsk(PELTON, _names(ON_SERVERS), 3, label=_BEST_ON_SERVER),
        RatioAsk(PELTON, _names(ON_SERVERS), 3, "drain", _BEST_ON_SERVER),
    ),
)
