"""Which clients of a cluster are still connected.

A client that others may ask about subscribes to a subject of its own. To check on it, send a request to that subject:
a server reports no responders at once, and it unsubscribes a client as soon as the connection ends, which even a killed
process cannot prevent. A client whose machine vanished is detected by its server's pings, after minutes.
"""

from __future__ import annotations

from typing import Final

import nats.errors

from pelton.api import PeltonError, ServerPermissionError
from pelton.cluster.client import NatsClient
from pelton.cluster.connection import Connection, Interrupted

_ROUND_TRIP_S: Final = 2


class Presence:
    """The subject that stands for this client, and checks of other clients."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client: NatsClient | None = None
        self._subject = ""
        self._may_ask = True

    async def subject(self) -> str:
        """Return the subject that has a subscriber for as long as the connection is open."""
        client = await self._connection.client()
        if client is not self._client:
            subject = self._connection.new_inbox()
            await client.listen(subject, _ignore)
            self._client, self._subject = client, subject
        return self._subject

    async def is_unheard(self, subject: str) -> bool:
        """Whether a subject has no subscribers; False if our server does not report it."""
        if not self._may_ask:
            return False
        try:
            return await self._connection.is_unheard(subject, _ROUND_TRIP_S)
        except ServerPermissionError:
            # The request would be refused, and logged, each time.
            self._may_ask = False
        except (Interrupted, PeltonError, nats.errors.Error, OSError):
            pass
        return False


def _ignore(subject: str, reply: str, block: bytes | None, data: bytes) -> None:
    """Ignore the request: that it has a subscriber is the reply."""
