"""What all connections of an event loop share: the buffer they read into, and the end of a round, when they write.

A client that floods would have the loop for as long as its bytes take. So it gets little at a time as long as others
send something, too, and more only if it has been alone for a while, when there is nobody to wait for it. A client that
has not logged in gets as much as a login may be long.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

_SIZE: Final = 32 << 10
_BESIDE_OTHERS: Final = 8 << 10
_ALONE_AFTER: Final = 64
_LOGIN: Final = 4 << 10


class SharedBuffer:
    """One buffer for all connections of an event loop; each names itself by a number."""

    def __init__(self) -> None:
        self.whole: memoryview[int] = memoryview(bytearray(_SIZE))
        self._part = self.whole[:_BESIDE_OTHERS]
        self.for_login: memoryview[int] = self.whole[:_LOGIN]
        self._reader = -1
        self._in_a_row = 0
        # How often anything was read.
        self.reads = 0

    def room_for(self, reader: int) -> memoryview:
        """Return where a connection reads into."""
        if reader != self._reader:
            self._reader, self._in_a_row = reader, 0
            return self._part
        self._in_a_row += 1
        return self.whole if self._in_a_row > _ALONE_AFTER else self._part

    def taken(self, size: int) -> bytes:
        """Return what was read."""
        self.reads += 1
        return bytes(self.whole[:size])


class Flushed(Protocol):
    """What gathers output in a round of the event loop, and writes it at its end."""

    def flush(self) -> None: ...


class RoundEnd:
    """The connections that have gathered output in this round of the event loop."""

    def __init__(self) -> None:
        self._unflushed: list[Flushed] = []

    def flush_later(self, client: Flushed) -> None:
        """Write what gathers for a client at the end of this round."""
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unflushed.append(client)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for client in unflushed:
            client.flush()
