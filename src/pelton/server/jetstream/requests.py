"""The requests of clients that are being answered: a client that has too many is not heard until half of them are.

All that one client asks for in a round of the event loop would be answered in the next one, and others wait that long.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from pelton.server.ports import Client

_MOST: Final = 32


class OpenRequests:
    """Counts them by their clients."""

    def __init__(self) -> None:
        self._open: Counter[Client] = Counter()
        self._held: set[Client] = set()

    def begin(self, client: Client) -> None:
        """Count a request."""
        self._open[client] += 1
        if self._open[client] >= _MOST and client not in self._held:
            self._held.add(client)
            client.hold()

    def end(self, client: Client) -> None:
        """Count a request no more: it was answered."""
        self._open[client] -= 1
        left = self._open[client]
        if not left:
            del self._open[client]
        if client in self._held and 2 * left <= _MOST:
            self._held.discard(client)
            client.release()
