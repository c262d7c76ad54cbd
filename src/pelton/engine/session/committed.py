"""What a committed transaction did that others have to learn of: a value, published by the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pelton.api import Incoming
from pelton.engine.pubsub.bus import Subscriber
from pelton.engine.session.wakes import Wakes

Deliveries = Sequence[tuple[Subscriber, Sequence[Incoming]]]


class Committed(NamedTuple):
    """``changed``: other processes have to look at the store. ``news`` are for waiting pulls of this one.

    ``deliveries`` are messages for subscribers of this process. ``deadlines``: of the streams that it met and in which
    time makes messages, when that is next (wall nanoseconds). ``has_backlog``: sources left messages for another
    transaction. ``has_batches``: there are open batches, or were.
    """

    changed: bool
    news: Wakes
    deliveries: Deliveries
    deadlines: Mapping[str, int]
    has_backlog: bool
    has_batches: bool
