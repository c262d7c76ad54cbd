"""Pelton on a NATS server beside bare nats-py on one of its own: what the same API costs there."""

from __future__ import annotations

from benchmarks.asks import RatioAsk
from benchmarks.case import OS_CACHE, Case, Contender, Metric
from benchmarks.roster import NATS, PELTON

PLAIN = "Pelton, message_ids=False"

CASE = Case(
    name="on-server",
    title="The same API on a NATS server",
    how=(
        "1,000 publishes in flight, then fetch(256) and every ack confirmed by the server: Pelton through its cluster "
        "backend, nats-py by itself (`publish_async`, `ack_sync`)."
    ),
    metrics=(Metric("rate", "published/s"), Metric("acked", "fetched and acked/s")),
    contenders=(
        Contender(PELTON, "ours.on_server:publish_and_ack", OS_CACHE, {"message_ids": True}),
        Contender(NATS, "peers.nats_acked:publish_and_ack", OS_CACHE),
        Contender(PLAIN, "ours.on_server:publish_and_ack", OS_CACHE, {"message_ids": False}),
    ),
    asks=tuple(RatioAsk(who, (NATS,), 0.9, metric) for who in (PELTON, PLAIN) for metric in ("rate", "acked")),
)
