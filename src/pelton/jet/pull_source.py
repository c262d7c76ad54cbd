"""Prefetches from a pull consumer: the next pull starts before the last one is used up (ADR-37).

Design: Messages that were pulled and not handed out wait in a buffer, at most ``prefetch`` messages and ``max_bytes``.
If pulls take round trips, the next one starts when the buffer is half empty, for as much as there is room; embedded,
where they take none, when it is empty, so that no message waits here that others could have. Closing ends a pull in
progress, which gives back its messages, and returns what is left in the buffer, to be given back as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from pelton.api import from_reply
from pelton.jet.message import Message
from pelton.jet.message_source import without
from pelton.runtime import Tasks

Fetch = Callable[[int, int], Awaitable[list[Message]]]
"""Waits for messages, given their maximum number and bytes (0: any); empty when the first is larger."""

_OVERHEAD: Final = 200
_CONFLICT: Final = 409


class PrefetchLimit(NamedTuple):
    """Limits of the buffer; ``max_bytes`` 0 is no limit."""

    prefetch: int
    max_bytes: int = 0


class PullSource:
    """The messages of one consumer, as they arrive. ``overlaps``: pulls take round trips."""

    def __init__(self, fetch: Fetch, room: PrefetchLimit, where: tuple[str, str], *, overlaps: bool) -> None:
        self._fetch = fetch
        self._room = room
        self._where = where
        self._overlaps = overlaps
        self._tasks = Tasks()
        self._pull: asyncio.Task[None] | None = None
        self._buffer: deque[Message] = deque()
        self._bytes = 0
        self._error: Exception | None = None
        self._narrow = False

    async def wait(self) -> None:
        """Return when there is at least one message. Raises as :meth:`Consumer.fetch`."""
        while not self._buffer:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._overlaps:
                # The pull is not awaited itself: if this waiter is cancelled it continues, until the source is closed.
                await asyncio.wait([self._pulled()])
            else:
                await self._pull_once()

    def pop(self) -> Message | None:
        """Return the next message, None if none is ready."""
        if not self._buffer:
            return None
        message = self._buffer.popleft()
        self._bytes -= _size(message)
        if not self._buffer:
            self._narrow = False
        if self._overlaps and self._has_room():
            self._pulled()
        return message

    def ready(self) -> list[Message]:
        """Return the ready messages."""
        return list(self._buffer)

    def drop(self, messages: Iterable[Message]) -> None:
        """Stop handing these out: others have them, or will."""
        self._buffer = without(self._buffer, messages)
        self._bytes = sum(map(_size, self._buffer))

    async def close(self) -> list[Message]:
        """Stop pulling; return the messages pulled and not handed out."""
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.cancel()
            await asyncio.wait([pull])
        left = list(self._buffer)
        self._buffer.clear()
        return left

    def _has_room(self) -> bool:
        """Whether the buffer is half empty and may be filled."""
        if self._narrow or self._error is not None or 2 * len(self._buffer) > self._room.prefetch:
            return False
        return 2 * self._bytes <= self._room.max_bytes or not self._room.max_bytes

    def _pulled(self) -> asyncio.Task[None]:
        """Return the pull in progress, starting one if necessary."""
        if self._pull is None or self._pull.done():
            self._pull = self._tasks.spawn(self._pull_or_note(), f"pelton pulls from {'/'.join(self._where)}")
        return self._pull

    async def _pull_or_note(self) -> None:
        try:
            await self._pull_once()
        except Exception as error:  # whatever it is: :meth:`wait` raises it
            self._error = error

    async def _pull_once(self) -> None:
        room, held = self._room, len(self._buffer)
        found = await self._fetch(room.prefetch - held, max(room.max_bytes - self._bytes, 1) if room.max_bytes else 0)
        self._buffer.extend(found)
        self._bytes += sum(map(_size, found))
        if not found and held:
            # The next message is larger than the free space: it has to wait until the buffer is empty.
            self._narrow = True
        elif not found:
            stream, consumer = self._where
            raise from_reply(_CONFLICT, 0, "Message Size Exceeds MaxBytes", stream=stream, consumer=consumer)


def _size(message: Message) -> int:
    d = message.delivered
    return len(d.subject) + len(d.data) + len(d.headers or b"") + _OVERHEAD
