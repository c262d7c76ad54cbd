"""`pelton serve` as a leaf node of a nats-server, beside a nats-server as leaf node, with nats-py at both ends."""

from __future__ import annotations

from typing import Any

from benchmarks.asks import RatioAsk
from benchmarks.case import FSYNCED, OS_CACHE, Case, Contender, Metric

LEAF = "pelton serve as leaf"
NATS_LEAF = "nats-server as leaf"
FEED = "Pelton, feed"
_NOT_STORED = "not stored: at most once"


def _across(name: str, title: str, how: str, target: str, **options: Any) -> Case:
    contenders = tuple(
        Contender(who, f"peers.nats_leaf:{target}", _NOT_STORED, {"served": served, **options})
        for who, served in ((LEAF, True), (NATS_LEAF, False))
    )
    metrics, asks = (Metric("rate", "msgs/s"),), (RatioAsk(LEAF, (NATS_LEAF,), 0.5),)
    return Case(f"leaf-{name}", f"Leaf: {title}", how, metrics, contenders, asks)


_WAY = "A client at one side publishes, one at the other side counts."

ALL = (
    _across("up", "messages from the edge to the hub", _WAY, "one_way", up=True),
    _across("down", "messages from the hub to the edge", _WAY, "one_way", up=False),
    _across("request", "requests of the hub, answered at the edge", "Each is awaited before the next.", "request"),
    Case(
        name="leaf-source",
        title="Leaf: a stream at the edge catches up with the hub's",
        how="A stream of the hub is filled, then one at the edge is made that sources it; `jet.feed` from hub to file.",
        metrics=(Metric("rate", "msgs/s"),),
        contenders=(
            Contender(LEAF, "peers.nats_leaf:catch_up", FSYNCED, {"served": True, "up": False}),
            Contender(NATS_LEAF, "peers.nats_leaf:catch_up", OS_CACHE, {"served": False, "up": False}),
            Contender(FEED, "peers.nats_leaf:feed", FSYNCED),
        ),
        asks=(RatioAsk(LEAF, (NATS_LEAF,), 1), RatioAsk(LEAF, (FEED,), 1)),
    ),
    Case(
        name="leaf-mirror",
        title="Leaf: a stream at the hub catches up with the edge's",
        how="A stream of the edge is filled, then one at the hub is made that sources it.",
        metrics=(Metric("rate", "msgs/s"),),
        contenders=(
            Contender(LEAF, "peers.nats_leaf:catch_up", OS_CACHE, {"served": True, "up": True}),
            Contender(NATS_LEAF, "peers.nats_leaf:catch_up", OS_CACHE, {"served": False, "up": True}),
        ),
        asks=(RatioAsk(LEAF, (NATS_LEAF,), 1),),
    ),
)
