"""Reads the orders of a queue for one worker, from its control stream."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import ConsumerNotFoundError, PeltonError
from pelton.api.json_values import UNREADABLE
from pelton.api.store_errors import FINAL_ERRORS
from pelton.queue.backing.outage import can_pass
from pelton.queue.model.orders import Order

if TYPE_CHECKING:
    from pelton.jet import Consumer
    from pelton.queue.define.queue_context import QueueContext

_log: Final = logging.getLogger("pelton.queue")
_decode: Final = msgspec.json.Decoder(Order).decode
_PAGE: Final = 256
_AGAIN_S: Final = 0.5
_PULL_S: Final = 30.0
_INACTIVE_S: Final = 120.0


class OrderReader:
    """Calls ``heed`` with each order that holds, and then with every new one."""

    def __init__(self, queue: QueueContext, heed: Callable[[Order], None]) -> None:
        self._queue = queue
        self._heed = heed
        self._consumer: Consumer | None = None
        self._is_read = False

    async def begin(self) -> None:
        """Read the orders that hold."""
        stream = await self._queue.jet.stream(self._queue.names.control)
        await self.close()
        self._is_read = False
        self._consumer = await stream.create_consumer(
            ack_policy="none", deliver_policy="last_per_subject", filter_subject=">", inactive_threshold=_INACTIVE_S
        )
        while await self._read(0.0):
            pass
        self._is_read = True

    async def follow(self, begun: Callable[[], None]) -> None:
        """Read orders for ever, and call ``begun`` when those that hold are read.

        What is read a second time after an outage changes nothing.
        """
        while True:
            try:
                if self._consumer is None or not self._is_read:
                    await self.begin()
                    begun()
                await self._read(_PULL_S)
            except FINAL_ERRORS:
                raise
            except ConsumerNotFoundError:
                self._consumer = None
            except PeltonError as error:
                if not can_pass(error):
                    raise
                _log.warning(
                    "queue %r: its orders can't be read yet: %s",
                    self._queue.name,
                    error,
                    extra={"queue": self._queue.name},
                )
                await self._queue.clock.sleep(_AGAIN_S)

    async def _read(self, timeout: float) -> bool:
        assert self._consumer is not None, "it has begun"
        if timeout:
            found = await self._consumer.fetch(_PAGE, timeout=timeout)
        else:
            found = await self._consumer.fetch(_PAGE, no_wait=True)
        for message in found:
            # One that cannot be read is of a newer version; other orders still count.
            with suppress(*UNREADABLE):
                self._heed(_decode(message.data))
        return bool(found)

    async def close(self) -> None:
        """Delete the consumer."""
        if self._consumer is not None:
            with suppress(PeltonError):
                await self._consumer.delete()
            self._consumer = None
