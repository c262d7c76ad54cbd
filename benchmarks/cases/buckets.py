"""Key-value buckets: get, put, watch, list."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.asks import FloorAsk, LimitAsk, RatioAsk
from benchmarks.case import Case, Contender, Metric
from benchmarks.roster import NATS, NATS_ALWAYS, PELTON, PELTON_OFF, nats, pelton

_RATE = (Metric("rate", "ops/s"),)


def _read(ours: str, theirs: str) -> tuple[Contender, Contender]:
    """Return the contenders of a case that only reads."""
    return (
        replace(pelton(f"buckets:{ours}"), guarantee="reads what is stored, checksums verified"),
        Contender(NATS, f"peers.nats_buckets:{theirs}", "reads what is stored", {"always": False}),
    )


GET = Case(
    name="bucket-get",
    title="Get a key of a bucket, awaiting each",
    how="1,000 keys of 128 bytes, one after another, by direct get.",
    metrics=_RATE,
    contenders=_read("get", "get"),
    asks=(RatioAsk(PELTON, (NATS,), 15),),
)
PUT = Case(
    name="bucket-put",
    title="Put a key of a bucket, awaiting each",
    how="1,000 keys of 128 bytes, one after another.",
    metrics=_RATE,
    contenders=(
        pelton("buckets:put_each"),
        *nats("nats_buckets:put_each"),
        pelton("buckets:put_each", PELTON_OFF, sync="off"),
    ),
    asks=(RatioAsk(PELTON, (NATS,), 0.75), RatioAsk(PELTON, (NATS_ALWAYS,), 1.6)),
)
PUT_IN_FLIGHT = Case(
    name="bucket-put-in-flight",
    title="1,000 puts in flight",
    how="1,000 awaited puts at every moment; nats-py, which has one put at a time, awaits each.",
    metrics=_RATE,
    contenders=(pelton("buckets:put_in_flight"), *nats("nats_buckets:put_each")),
    asks=(RatioAsk(PELTON, (NATS,), 10),),
)
WATCH = Case(
    name="bucket-watch",
    title="Put to watcher in another process",
    how="A put every 10 ms to a watcher that waits in another process; from the call of put.",
    metrics=(Metric("p50", "ms", 3), Metric("p99", "ms", 3)),
    contenders=(pelton("buckets:watch"), *nats("nats_buckets:watch")),
    asks=(LimitAsk(PELTON, 2, "p50", "ms"),),
)
KEYS = Case(
    name="bucket-keys",
    title="List the keys of a bucket",
    how="1,000,000 keys, for nats-py 100,000; iterated over to the end.",
    metrics=(Metric("rate", "keys/s"),),
    contenders=_read("keys", "keys"),
    asks=(FloorAsk(PELTON, 300_000, "rate", " keys/s"),),
)
ALL = (GET, PUT, PUT_IN_FLIGHT, WATCH, KEYS)
