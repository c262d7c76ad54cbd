"""Reads the orders of a queue for one worker, from its control stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from pelton.api import ConsumerNotFoundError, PeltonError
from pelton.api.json_values import UNREADABLE
from pelton.jet.follower import Follower
from pelton.jet.outage import is_busy
from pelton.queue.model.orders import Order, decode

if TYPE_CHECKING:
    from pelton.jet import Message
    from pelton.queue.define.queue_context import QueueContext

_PAGE: Final = 256
_PULL_S: Final = 30.0
_INACTIVE_S: Final = 120.0


def order_reader(
    queue: QueueContext, heed: Callable[[Order], None], begun: Callable[[], None] = lambda: None
) -> Follower[Message]:
    """Return what calls ``heed`` with each order that holds, then ``begun``, and then ``heed`` with every new one.

    What is read a second time after an outage changes nothing.
    """

    async def saw(one: Message | None) -> None:
        if one is None:
            begun()
            return
        # One that cannot be read is of a newer version; other orders still count.
        with suppress(*UNREADABLE):
            heed(decode(one.data))

    outage = queue.outage("its orders", is_busy)
    return Follower(partial(_pulled, queue), saw, outage.wait, outage.is_over)


async def _pulled(queue: QueueContext) -> AsyncGenerator[Message | None, None]:
    """Yield orders by a consumer, which costs an idle worker less than being pushed to."""
    stream = await queue.jet.stream(queue.names.control)
    consumer = await stream.create_consumer(
        ack_policy="none", deliver_policy="last_per_subject", filter_subject=">", inactive_threshold=_INACTIVE_S
    )
    try:
        while found := await consumer.fetch(_PAGE, no_wait=True):
            for message in found:
                yield message
        yield None
        while True:
            for message in await consumer.fetch(_PAGE, timeout=_PULL_S):
                yield message
    except ConsumerNotFoundError:
        # It was away for too long: the next one begins at once.
        return
    finally:
        with suppress(PeltonError):
            await consumer.delete()
