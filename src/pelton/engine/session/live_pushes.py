"""Push consumers receive a message in the transaction that stores it, before another one can replace it.

Design: a pump (``delivery/pump.py``) reads what its consumer has not received after it was committed. By then, the
limits of the stream may have removed it: in a bucket that keeps one revision of a key, the next write does. So when
limits are about to be applied to a stream, its push consumers first receive everything that it holds, whichever
process writes: subscribers of this process in memory, those of others through the outbox (``pubsub/bus.py``).

What waits for a subscriber is bounded. A consumer that is further behind, because its subscriber reads too slowly or is
still receiving what was there before, is left to its pump, and misses what is replaced meanwhile. So is one
whose configuration holds messages back: a rate limit, or acks by flow control.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from operator import attrgetter
from typing import Final, Protocol

from pelton.api import Delivered, Incoming, PullRequest
from pelton.consumers import ConsumerLog, Delivery, Interest
from pelton.engine.pubsub.bus import Bus
from pelton.engine.session.consumers import ConsumerRegistry
from pelton.streams import StreamLog

_log: Final = logging.getLogger("pelton.engine")
# So much is delivered at most within the transaction of a writer.
_MOST: Final = 16_384
_MOST_BYTES: Final = 16 << 20


class PushRegistry(Protocol):
    """The owner of the streams and consumers."""

    consumers: ConsumerRegistry
    interests: dict[StreamLog, Interest]

    def use(self, log: StreamLog, /) -> StreamLog: ...
    def use_consumer(self, consumer: ConsumerLog, /) -> ConsumerLog: ...


class LivePushes:
    """Delivers to the subscribers of ``bus`` what the open transaction has stored in the streams of ``owner``."""

    def __init__(self, owner: PushRegistry, bus: Bus, now: Callable[[], int]) -> None:
        self._owner = owner
        self._bus = bus
        self._now = now
        self._late: set[int] = set()

    @property
    def streams(self) -> Container[int]:
        """The row ids of streams that have push consumers."""
        return self._owner.consumers.pushed_of

    def deliver(self, stream: int) -> None:
        """Deliver what a stream holds to its push consumers; everything that was changed so far is written."""
        bus, consumers = self._bus, self._owner.consumers.pushed_of.get(stream, ())
        is_routed, bus.is_routed = bus.is_routed, False
        try:
            for consumer in sorted(consumers, key=attrgetter("id")):
                config = consumer.config
                if not config.rate_limit_bps and config.ack_policy != "flow_control":
                    self._deliver(consumer)
        finally:
            bus.is_routed = is_routed

    def _deliver(self, consumer: ConsumerLog) -> None:
        reserve = self._bus.reserve(consumer.config)
        if reserve is None:
            return
        log, now, room = self._owner.use(consumer.log), self._now(), min(reserve, _MOST)
        if self._owner.use_consumer(consumer).is_idle(now):
            # It has expired, even if no sweep has removed it yet.
            return
        if consumer.count_ahead() + consumer.waiting > room:
            self._is_late(consumer)
            return
        delivery = Delivery(
            consumer,
            PullRequest(batch=room, max_bytes=_MOST_BYTES),
            now,
            self._owner.consumers.token_floor,
            self._owner.interests.get(log),
        )
        if found := delivery.run():
            self._late.discard(consumer.id)
            self._bus.deliver(consumer.config.deliver_subject, incoming(found))
        consumer.flush()

    def _is_late(self, consumer: ConsumerLog) -> None:
        if consumer.id in self._late:
            return
        self._late.add(consumer.id)
        stream, name = consumer.log.name, consumer.name
        _log.warning(
            "push consumer %s/%s is %d messages behind: it does not receive what is replaced until it has caught up",
            stream,
            name,
            consumer.ahead + consumer.waiting,
            extra={"stream": stream, "consumer": name},
        )


def incoming(delivered: list[Delivered]) -> list[Incoming]:
    """Return deliveries as messages for the subscribers of a deliver subject."""
    return [Incoming(one.subject, one.data, one.headers, "", one) for one in delivered]
