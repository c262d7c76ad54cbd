"""Which clients of a cluster are still there.

A client that may be asked about listens to a subject of its own. Whoever asks sends a request to it: a server answers
at once where nobody listens, and it stops listening for a client as soon as the connection ends, which a process that
is killed cannot prevent. A client whose machine vanished is found out by its server's pings, after minutes.
"""

from __future__ import annotations

from typing import Final

import nats.errors

from pelton.api import PeltonError, ServerPermissionError
from pelton.cluster.client import NatsClient
from pelton.cluster.connection import Connection, Interrupted

_ROUND_TRIP_S: Final = 2


class Presence:
    """The subject that stands for one client, and questions about others."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client: NatsClient | None = None
        self._subject = ""
        self._may_ask = True

    async def subject(self) -> str:
        """Return the subject that is listened to for as long as the connection is open."""
        client = await self._connection.client()
        if client is not self._client:
            subject = self._connection.new_inbox()
            await client.listen(subject, _ignore)
            self._client, self._subject = client, subject
        return self._subject

    async def is_unheard(self, subject: str) -> bool:
        """Whether nobody listens to a subject; False where our server does not say."""
        if not self._may_ask:
            return False
        try:
            return await self._connection.is_unheard(subject, _ROUND_TRIP_S)
        except ServerPermissionError:
            # It would be refused, and logged, each time.
            self._may_ask = False
        except (Interrupted, PeltonError, nats.errors.Error, OSError):
            pass
        return False


def _ignore(subject: str, reply: str, block: bytes | None, data: bytes) -> None:
    """Take no notice: that somebody listens is the answer."""
