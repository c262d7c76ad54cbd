"""Keeps prefetched messages: while they wait for a slow program, they use up no deliveries.

Design: a prefetched message stays in this process until the program asks for it. If its ack wait expired before that,
it would be redelivered, here or elsewhere, and with ``max_deliver`` be given up although no program ever saw it. So,
every third of the ack wait, all messages that have been here since the last check get their ack wait restarted
(``in_progress``), in one request. That stops when:

- The process dies, or blocks its event loop: nothing is extended, and others get the messages after their ack wait.
- An embedded store reports that a delivery was replaced: it is dropped, because another client has the message.
- Nothing was handed out for ten minutes: the program hangs, or has left its iteration open. All except messages at
  their last delivery are released, so that others get them, at the price of one delivery.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

from pelton.api import Backend, ConsumerConfig, PeltonError
from pelton.jet.message import Message, ack_of
from pelton.runtime import Runtime, Timer

_log: Final = logging.getLogger("pelton.jet")
_DEFAULT_S: Final = 30.0
_SHARE: Final = 1 / 3
_SHORTEST_S: Final = 0.05
_LONGEST_S: Final = 600.0


class Shelf(Protocol):
    """Holds prefetched messages."""

    def ready(self) -> list[Message]:
        """Return the messages that are ready now."""
        ...

    def drop(self, messages: Iterable[Message]) -> None:
        """Stop handing these out."""
        ...


class PrefetchKeeper:
    """Restarts the ack wait of the messages on a shelf, from :meth:`start` to :meth:`stop`."""

    def __init__(self, backend: Backend, config: ConsumerConfig, where: tuple[str, str], runtime: Runtime) -> None:
        self._backend = backend
        self._where = where
        self._runtime = runtime
        self._clock = runtime.clock
        self._most = config.max_deliver
        self._pause = interval_of(config)
        self._shelf: Shelf | None = None
        self._timer: Timer | None = None
        self._lain: set[Message] = set()
        self._first: Message | None = None
        self._since = 0.0
        self._renewing = False

    def start(self, shelf: Shelf) -> None:
        """Start to keep the messages of a shelf."""
        self._shelf = shelf
        self._set_timer()

    def stop(self) -> None:
        """Stop. Idempotent."""
        self._shelf = None
        self._lain.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self._timer = self._clock.call_later(self._pause, self._look)

    def _look(self) -> None:
        if self._shelf is None:
            return
        self._set_timer()
        ready = self._shelf.ready()
        if self._hangs(ready):
            ready = self._let_go(self._shelf, ready)
        due = [message for message in ready if message in self._lain]
        self._lain = set(ready)
        if due and not self._renewing:
            self._renewing = True
            stream, consumer = self._where
            self._runtime.spawn(self._renew(due), f"pelton keeps messages of {stream}/{consumer}")

    def _hangs(self, ready: list[Message]) -> bool:
        """Whether nothing has been handed out for too long."""
        first, now = ready[0] if ready else None, self._clock.monotonic()
        if first is not self._first:
            self._first, self._since = first, now
        return first is not None and now - self._since > _LONGEST_S

    def _let_go(self, shelf: Shelf, ready: list[Message]) -> list[Message]:
        kept = [message for message in ready if message.delivered.num_delivered >= self._most > 0]
        last = set(kept)
        others = [message for message in ready if message not in last]
        if others:
            shelf.drop(others)
            _log.warning(
                "consumer %s/%s: nothing was taken from its iteration for ten minutes: %d prefetched messages are "
                "released, to be delivered elsewhere; close the iteration, or bound the work on a message by a timeout",
                *self._where,
                len(others),
                extra={"stream": self._where[0], "consumer": self._where[1]},
            )
        return kept

    async def _renew(self, due: list[Message]) -> None:
        try:
            # If the store cannot be asked now, the next check asks again.
            with suppress(PeltonError):
                acks = [ack_of(message.delivered, "progress") for message in due]
                answers = await self._backend.ack(*self._where, acks)
                lost = [message for message, refused in zip(due, answers, strict=True) if refused is not None]
                if lost and self._shelf is not None:
                    self._shelf.drop(lost)
        finally:
            self._renewing = False


def interval_of(config: ConsumerConfig) -> float:
    """Return the time between two checks of a consumer's messages, in seconds."""
    shortest = min(config.backoff, default=config.ack_wait).seconds
    return max((shortest or _DEFAULT_S) * _SHARE, _SHORTEST_S)
