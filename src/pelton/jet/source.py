"""Where an iteration gets its messages from: pulled, or pushed."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from pelton.api import Backend
from pelton.jet.message import Message
from pelton.jet.push import Pushed


class Source(Protocol):
    """Messages as they come; some lie ready."""

    async def wait(self) -> None:
        """Return when a message may lie ready."""
        ...

    def pop(self) -> Message | None:
        """Return the next message that lies ready."""
        ...

    async def close(self) -> list[Message]:
        """Take no more; return those that lie ready."""
        ...


def take(source: Source, limit: int) -> list[Message]:
    """Return what lies ready, at most ``limit`` messages."""
    taken: list[Message] = []
    while len(taken) < limit and (message := source.pop()) is not None:
        taken.append(message)
    return taken


class PushSource:
    """A push consumer's messages, ``prefetch`` at a time."""

    def __init__(self, backend: Backend, pushed: Pushed, prefetch: int) -> None:
        self._backend = backend
        self._pushed = pushed
        self._prefetch = prefetch
        self._ready: deque[Message] = deque()

    async def wait(self) -> None:
        """Return when a message may lie ready. Raises HeartbeatMissedError, StoreClosedError."""
        first = await self._pushed.next()
        if first is not None:
            self._ready.extend(Message(self._backend, one) for one in (first, *self._pushed.take(self._prefetch - 1)))

    def pop(self) -> Message | None:
        """Return the next message that lies ready."""
        return self._ready.popleft() if self._ready else None

    async def close(self) -> list[Message]:
        """Listen no more; return those that lie ready, or came meanwhile."""
        rest = await self._pushed.close()
        return [*self._ready, *(Message(self._backend, one) for one in rest)]
