"""Forwarding a store to a NATS server, beside publishing there with nats-py."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import OS_CACHE, Case, Contender, Metric
from benchmarks.roster import NATS

FEED = "Pelton, feed"

CASE = Case(
    name="feed",
    title="From a store to a NATS server",
    how=(
        "`jet.feed` of a full store, each message once and in order; nats-py publishes as many with 1,000 in flight "
        "(`publish_async`)."
    ),
    metrics=(Metric("rate", "msgs/s"),),
    contenders=(
        Contender(FEED, "ours.sourcing:to_server", OS_CACHE),
        Contender(NATS, "peers.nats_streams:publish_in_flight", OS_CACHE, {"always": False}),
    ),
    asks=(RatioAsk(FEED, (NATS,), 0.8),),
)
