"""What the reports need to know of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from typing import Any, Final, Protocol

import msgspec

from pelton.api import rfc3339
from pelton.runtime import Clock
from pelton.server.connection import ClientConnection
from pelton.server.resolver import AccountResolver
from pelton.server.router import Router
from pelton.server.settings import ServerSettings
from pelton.wire import ServerHello

Call = Callable[[Any], Awaitable[Any]]
# JetStream, archives of streams in its binary format, and one that only clusters have.
_JETSTREAM_FLAGS: Final = 7


class TrafficTotals(msgspec.Struct):
    """Counts of a server since its start, of the clients that have left."""

    connections: int = 0
    slow_consumers: int = 0
    stale_connections: int = 0
    in_msgs: int = 0
    out_msgs: int = 0
    in_bytes: int = 0
    out_bytes: int = 0


class ObservedAccount:
    """An account: its clients, their subscriptions, and its JetStream API, if it has one.

    ``num_own`` counts the subscriptions of the server itself in it.
    """

    def __init__(
        self,
        name: str,
        clients: Sized,
        subscriptions: Router,
        call: Call | None,
        num_own: Callable[[], int],
    ) -> None:
        self.name = name
        self.num_own = num_own
        self._clients = clients
        self._subscriptions = subscriptions
        self._call = call

    @property
    def has_jetstream(self) -> bool:
        """Whether it has a store."""
        return self._call is not None

    @property
    def num_clients(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    @property
    def num_subscriptions(self) -> int:
        """How many subscriptions they and the server have."""
        return len(self._subscriptions) + self.num_own()

    @property
    def num_inserts(self) -> int:
        """How many subscriptions there were since the start, of the server those that it has."""
        return self._subscriptions.inserted + self.num_own()

    async def call(self, request: Any) -> Any:
        """Make a request to its JetStream API."""
        assert self._call is not None
        return await self._call(request)


class Observed(Protocol):
    """A server; ``begun`` is when it started, ``configured`` when its settings were read (wall nanoseconds).

    ``resolver`` keeps the accounts of operator mode, if they are in a folder. ``closed_clients`` has what was known of
    those that have left, the last ones.
    """

    settings: ServerSettings
    clock: Clock
    id: str
    name: str
    begun: int
    configured: int
    resolver: AccountResolver | None

    @property
    def totals(self) -> TrafficTotals: ...
    def about(self) -> ServerHello: ...
    @property
    def clients(self) -> Sequence[ClientConnection]: ...
    @property
    def observed_accounts(self) -> Mapping[str, ObservedAccount]: ...
    @property
    def closed_clients(self) -> Sequence[dict[str, Any]]: ...

    def kick(self, number: int) -> bool:
        """Let a client go; False if there is none of the number."""
        ...

    def send_away(self, number: int) -> bool:
        """Ask a client to go elsewhere, as in lame duck mode; False if there is none of the number."""
        ...

    def next_number(self) -> int:
        """Return the number of the next report or event."""
        ...

    async def reload_settings(self) -> None:
        """Read the settings again. Raises ConfigError."""
        ...


def server_facts(server: Observed) -> dict[str, Any]:
    """Return what each answer and event says of its server."""
    about = server.about()
    return {
        "name": server.name,
        "host": about.host,
        "id": server.id,
        "ver": about.version,
        "jetstream": about.jetstream,
        "flags": _JETSTREAM_FLAGS if about.jetstream else 0,
        "seq": server.next_number(),
        "time": rfc3339(server.clock.now()),
        **({"domain": about.domain} if about.domain else {}),
    }
