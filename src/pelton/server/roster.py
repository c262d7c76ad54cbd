"""The clients of a server: those that are connected, the last ones that have left, and what all of them did."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from pelton.api import rfc3339
from pelton.server.connection import STALE_CONNECTION, ClientConnection
from pelton.server.monitoring import Observed, TrafficTotals
from pelton.server.monitoring.connections import client_facts
from pelton.server.output import SLOW_CONSUMER

_KICKED: Final = "Kicked"
_COUNTS: Final = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")


class ClientRoster:
    """The clients of a server, by their numbers; ``most_closed`` is how many that have left are remembered.

    A connection that is being closed is reported no more, but counts until it is.
    """

    def __init__(self, most_closed: int) -> None:
        self.totals: TrafficTotals = TrafficTotals()
        self.closed: deque[dict[str, Any]] = deque(maxlen=most_closed)
        self._clients: dict[int, ClientConnection] = {}
        self._closing: dict[int, ClientConnection] = {}

    def __len__(self) -> int:
        return len(self._clients) + len(self._closing)

    def all(self) -> list[ClientConnection]:
        """Return those that are connected."""
        return list(self._clients.values())

    def closing(self) -> list[ClientConnection]:
        """Return those whose connections are being closed."""
        return list(self._closing.values())

    def add(self, client: ClientConnection) -> None:
        """Count a new connection."""
        self._clients[client.number] = client
        self.totals.connections += 1

    def remove(self, server: Observed, number: int) -> ClientConnection | None:
        """Report a client no more, and remember what was known of it; return it unless that was done before."""
        gone = self._clients.pop(number, None)
        if gone is None:
            return None
        self._closing[number] = gone
        for name in _COUNTS:
            setattr(self.totals, name, getattr(self.totals, name) + getattr(gone, name))
        self.totals.slow_consumers += gone.reason == SLOW_CONSUMER
        self.totals.stale_connections += gone.reason == STALE_CONNECTION
        stop = {"stop": rfc3339(server.clock.now()), "reason": gone.reason}
        self.closed.append({**client_facts(server, gone), **stop})
        return gone

    def released(self, number: int) -> None:
        """Count the connection of a ``number`` no more: it is closed."""
        self._closing.pop(number, None)

    def get(self, number: int) -> ClientConnection | None:
        """Return a client, or None."""
        return self._clients.get(number)

    def kick(self, number: int) -> bool:
        """Let a client go; False if there is none of the number."""
        client = self._clients.get(number)
        if client is not None:
            client.close(_KICKED)
        return client is not None
