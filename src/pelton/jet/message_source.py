"""The message sources of an iteration: pull and push."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from pelton.api import Backend
from pelton.jet.message import Message
from pelton.jet.push import Pushed

# How much a push consumer without a limit buffers while its program is busy; the rest waits in the subscription.
_MOST_READY: Final = 4096


class MessageSource(Protocol):
    """Yields messages as they arrive; some are ready in advance."""

    async def wait(self) -> None:
        """Return when a message may be ready."""
        ...

    def pop(self) -> Message | None:
        """Return the next ready message."""
        ...

    def ready(self) -> list[Message]:
        """Return all ready messages."""
        ...

    def drop(self, messages: Iterable[Message]) -> None:
        """Stop handing these out."""
        ...

    async def close(self) -> list[Message]:
        """Stop taking messages; return the ready ones."""
        ...


def without(ready: deque[Message], messages: Iterable[Message]) -> deque[Message]:
    """Return the ready messages without some of them."""
    gone = set(messages)
    return deque(message for message in ready if message not in gone)


class CallbackBatch:
    """Messages for a callback: ``left`` to be called back with, ``done``, and ``failed``; settled together."""

    def __init__(self, source: MessageSource) -> None:
        self._source = source
        self.left: deque[Message] = deque()
        self.done: list[Message] = []
        self.failed: list[Message] = []

    def take(self, limit: int) -> None:
        """Take ready messages, at most ``limit``."""
        while len(self.left) < limit and (message := self._source.pop()) is not None:
            self.left.append(message)

    def clear(self) -> tuple[list[Message], list[Message]]:
        """Return the messages to acknowledge, and those to give back; forget all."""
        found = self.done, [*self.failed, *self.left]
        self.left, self.done, self.failed = deque(), [], []
        return found

    def ready(self) -> list[Message]:
        """Return the messages that wait for the callback, or to be settled."""
        return [*self.left, *self.done, *self.failed, *self._source.ready()]

    def drop(self, messages: Iterable[Message]) -> None:
        """Do not call back with these; if one is already done, its ack will be rejected."""
        gone = list(messages)
        self.left = without(self.left, gone)
        self._source.drop(gone)


class PushSource:
    """A push consumer's messages, ``prefetch`` at a time."""

    def __init__(self, backend: Backend, pushed: Pushed, prefetch: int) -> None:
        self._backend = backend
        self._pushed = pushed
        self._prefetch = prefetch
        self._ready: deque[Message] = deque()
        # Whether :meth:`wait` is pending; it alone may then take the next message.
        self._awaits = False

    async def wait(self) -> None:
        """Return when a message may be ready. Raises HeartbeatMissedError, StoreClosedError."""
        if self._ready:
            return
        self._awaits = True
        try:
            first = await self._pushed.next()
        finally:
            self._awaits = False
        if first is not None:
            self._ready.extend(Message(self._backend, one) for one in (first, *self._pushed.take(self._prefetch - 1)))

    def pop(self) -> Message | None:
        """Return the next ready message."""
        return self._ready.popleft() if self._ready else None

    def ready(self) -> list[Message]:
        """Return all ready messages, including those pushed since."""
        if not self._awaits and len(self._ready) < _MOST_READY:
            came = self._pushed.take(_MOST_READY - len(self._ready))
            self._ready.extend(Message(self._backend, one) for one in came)
        return list(self._ready)

    def drop(self, messages: Iterable[Message]) -> None:
        """Stop handing these out."""
        self._ready = without(self._ready, messages)

    async def close(self) -> list[Message]:
        """Stop listening; return all ready messages, including those that arrived since."""
        rest = await self._pushed.close()
        return [*self._ready, *(Message(self._backend, one) for one in rest)]
