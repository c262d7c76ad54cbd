"""Exclusive keys where the place that keeps the jobs has no such thing: on a NATS cluster (docs/decisions/0017)."""

from pelton.queue.keys.supply import KeyedSupply
from pelton.queue.keys.views import KeyedViews

__all__ = ["KeyedSupply", "KeyedViews"]
