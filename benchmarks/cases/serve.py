"""`pelton serve` beside nats-server, with the same client on both: nats-py, and NATS's client for C."""

from __future__ import annotations

from typing import Any

from benchmarks.asks import Ask, LimitAsk, RatioAsk
from benchmarks.case import FSYNCED, OS_CACHE, Case, Contender, Metric
from benchmarks.roster import NATS, NATS_ALWAYS

SERVED = "nats-py on pelton serve"
_NOT_STORED = "not stored: at most once"


def _core(name: str, title: str, how: str, target: str, asked: float, **options: Any) -> Case:
    contenders = tuple(
        Contender(who, f"peers.nats_core:{target}", _NOT_STORED, {"served": served, **options})
        for who, served in ((SERVED, True), (NATS, False))
    )
    return Case(f"serve-{name}", f"Served: {title}", how, (Metric("rate", "msgs/s"),), contenders, (
        RatioAsk(SERVED, (NATS,), asked),
    ))  # fmt: skip


def _stored(name: str, title: str, target: str, of_default: float, of_always: float | None) -> Case:
    target = f"peers.{target}"
    contenders = (
        Contender(SERVED, target, FSYNCED, {"always": False, "served": True}),
        Contender(NATS, target, OS_CACHE, {"always": False}),
        Contender(NATS_ALWAYS, target, FSYNCED, {"always": True}),
    )
    return Case(
        name=f"serve-{name}",
        title=f"Served: {title}",
        how="nats-py on `pelton serve`, which fsyncs before it answers, and on nats-server.",
        metrics=(Metric("rate", "msgs/s"),),
        contenders=contenders,
        asks=(RatioAsk(SERVED, (NATS,), of_default), RatioAsk(SERVED, (NATS_ALWAYS,), of_always)),
    )


_C, _C_NATS, _C_ALWAYS = "C on pelton serve", "C", "C, sync_interval: always"
_C_METRICS = (Metric("rate", "msgs/s"), Metric("cpu", "us of the server's CPU a message", 2))
_C_TIMES = (Metric("p50", "us"), Metric("p99", "us"))
_Bound = tuple[float | None, float | None]


def _in_c(name: str, title: str, asked: _Bound, is_stored: bool = True, is_awaited: bool = False) -> Case:
    """A case with the client for C: `asked` are the ratios to nats-server's default, and to `always`."""
    of_default, of_always = asked
    target, options = "peers.nats_c:measured", {"what": name}
    contenders = (
        Contender(_C, target, FSYNCED if is_stored else _NOT_STORED, {"served": True, **options}),
        Contender(_C_NATS, target, OS_CACHE if is_stored else _NOT_STORED, options),
        *((Contender(_C_ALWAYS, target, FSYNCED, {"always": True, **options}),) if is_stored else ()),
    )
    asks: list[Ask] = [RatioAsk(_C, (_C_NATS,), of_default)]
    if is_stored:
        asks.append(RatioAsk(_C, (_C_ALWAYS,), of_always))
    if of_always is not None:
        asks.append(LimitAsk(_C, 3_000, "p99", "us"))
    return Case(
        name=f"serve-c-{name}",
        title=f"Served to C: {title}",
        how="libnats in a program of its own on `pelton serve`, which fsyncs before it answers, and on nats-server.",
        metrics=_C_METRICS + (_C_TIMES if is_awaited else ()),
        contenders=contenders,
        asks=tuple(asks),
        prepare="peers.nats_c:compile_client",
    )


_WAY = "One client publishes, another counts what it receives."

ALL = (
    _core("core", "one client to another", _WAY, "one_to_one", 0.6, subjects=1, headers=False),
    _core("core-1000", "by 1,000 subjects and a wildcard", _WAY, "one_to_one", 0.9, subjects=1_000, headers=False),
    _core("core-headers", "with headers", _WAY, "one_to_one", 0.5, subjects=1, headers=True),
    _core("core-100000", "by 100,000 subjects", _WAY, "one_to_one", 0.2, subjects=100_000, headers=False),
    _core("request", "request and reply", "Each request is awaited before the next.", "request", 0.7),
    _core("fan-out", "one client to 500", "The 500 only count bytes.", "fan_out", 1.5),
    _stored("publish", "publish, awaiting each", "nats_streams:publish_each", 0.33, 0.8),
    _stored("crowd", "8 clients publish, awaiting each", "nats_streams:publish_crowd", 0.2, 1.7),
    _stored("flight", "1,000 publishes in flight", "nats_streams:publish_in_flight", 0.65, 5),
    _stored("fetch-many", "fetch(256), then ack", "nats_streams:fetch_many", 0.65, None),
    _stored("fetch-one", "fetch(1), then ack_sync", "nats_streams:fetch_one", 0.33, None),
    _stored("put", "put in a bucket", "nats_buckets:put_each", 0.33, None),
    _stored("get", "get from a bucket", "nats_buckets:get", 0.65, None),
    _in_c("publish", "publish to nobody", (None, None), is_stored=False),
    _in_c("fan-out", "one client to 10", (0.6, None), is_stored=False),
    _in_c("request", "request and reply", (None, None), is_stored=False, is_awaited=True),
    _in_c("store", "publish to a stream, awaiting each", (None, 1.0), is_awaited=True),
    _in_c("in-flight", "1,000 publishes in flight", (0.7, None)),
    _in_c("pull", "fetch(500), then ack", (0.7, None)),
    _in_c("ordered", "ordered consumer", (0.6, None)),
    _in_c("put", "put in a bucket", (None, 1.0), is_awaited=True),
    _in_c("get", "get from a bucket", (0.8, None), is_awaited=True),
)
