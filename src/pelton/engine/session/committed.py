"""The effects of a committed transaction: a value, published by the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pelton.engine.pubsub.subscribers import LocalDelivery
from pelton.engine.session.wakes import Wakes

Deliveries = Sequence[LocalDelivery]


class Committed(NamedTuple):
    """``changed``: other processes must read the store again. ``news`` wake waiting pulls of this process.

    ``deliveries`` are messages for subscribers of this process. ``deadlines``: the next deadline (wall nanoseconds) of
    each stream that it used and in which time makes messages. ``has_backlog``: sources left messages for another
    transaction. ``has_batches``: there are open batches, or were.
    """

    changed: bool
    news: Wakes
    deliveries: Deliveries
    deadlines: Mapping[str, int]
    has_backlog: bool
    has_batches: bool
