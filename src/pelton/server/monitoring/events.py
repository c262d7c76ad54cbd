"""What a server tells the system account by itself: who comes and goes, how it does, and that it ends.

An event is made only if somebody subscribes to it. As on nats-server, clients of the global account come and go unsaid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from pelton.api import rfc3339
from pelton.runtime import Runtime
from pelton.server.connection import ClientConnection
from pelton.server.monitoring.observed import Observed, ReportParameters, server_facts
from pelton.server.monitoring.reports import account_connections, statsz

_ADVISORY: Final = "io.nats.server.advisory.v1."
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 10.0
_SECOND: Final = 1_000_000_000
_GLOBAL: Final = "$G"


class SystemSubscribers(Protocol):
    """The clients of the system account."""

    def receives(self, subject: str) -> bool: ...
    def answer(self, reply: str, block: bytes | None, data: bytes) -> None: ...


class SystemEvents:
    """Sends the events of one server to ``subscribers``."""

    def __init__(self, server: Observed, subscribers: Callable[[], SystemSubscribers | None], runtime: Runtime) -> None:
        self._server = server
        self._subscribers = subscribers
        self._runtime = runtime
        self._clock = runtime.clock
        self._pause = _FIRST_S
        self._next = self._clock.monotonic() + self._pause

    # --- clients

    def connected(self, client: ClientConnection) -> None:
        """Tell that a client was let in."""
        name = client.account_name
        self._tell_connections(name)
        if name != _GLOBAL and self._is_heard(subject := f"$SYS.ACCOUNT.{name}.CONNECT"):
            self._send(subject, "client_connect", {"client": self._client(client)})

    def disconnected(self, client: ClientConnection, reason: str) -> None:
        """Tell that a client has left its account."""
        name = client.account_name
        self._tell_connections(name)
        if name != _GLOBAL and self._is_heard(subject := f"$SYS.ACCOUNT.{name}.DISCONNECT"):
            self._send(subject, "client_disconnect", self._ended(client, reason))

    def refused(self, client: ClientConnection) -> None:
        """Tell that a client was not let in."""
        if self._is_heard(subject := f"$SYS.SERVER.{self._server.id}.CLIENT.AUTH.ERR"):
            self._send(subject, "client_disconnect", self._ended(client, "Authentication Failure"))

    def _tell_connections(self, account: str) -> None:
        for subject in (f"$SYS.ACCOUNT.{account}.SERVER.CONNS", f"$SYS.SERVER.ACCOUNT.{account}.CONNS"):
            if account != _GLOBAL and self._is_heard(subject):
                self._send(subject, "account_connections", account_connections(self._server, account))

    def _client(self, client: ClientConnection) -> dict[str, Any]:
        now, wall = self._clock.monotonic(), self._clock.now()
        told = {
            "start": rfc3339(wall - int((now - client.started) * _SECOND)),
            "host": client.peer.rpartition(":")[0].strip("[]"),
            "id": client.number,
            "acc": client.account_name or _GLOBAL,
            "user": client.user_name or client.options.user,
            "name": client.options.name,
            "lang": client.options.lang,
            "ver": client.options.version,
            "kind": "Client",
            "client_type": "websocket" if client.is_bridged else "nats",
        }
        return {key: value for key, value in told.items() if value}

    def _ended(self, client: ClientConnection, reason: str) -> dict[str, Any]:
        return {
            "client": self._client(client) | {"stop": rfc3339(self._clock.now())},
            # From the client's side, as on nats-server.
            "sent": {"msgs": client.in_msgs, "bytes": client.in_bytes},
            "received": {"msgs": client.out_msgs, "bytes": client.out_bytes},
            "reason": reason,
        }

    # --- the server

    def look(self) -> None:
        """Tell how the server does, if it is time: more often at first."""
        now = self._clock.monotonic()
        if now < self._next:
            return
        self._pause = min(2 * self._pause, _LONGEST_S)
        self._next = now + self._pause
        if self._is_heard(subject := f"$SYS.SERVER.{self._server.id}.STATSZ"):
            self._runtime.spawn(self._tell_stats(subject), "pelton tells how the server does")

    async def _tell_stats(self, subject: str) -> None:
        body = {"server": server_facts(self._server), "statsz": await statsz(self._server, ReportParameters({}))}
        self._publish(subject, body)

    def ends(self, how: str) -> None:
        """Tell that the server ends: ``LAMEDUCK`` or ``SHUTDOWN``."""
        if self._is_heard(subject := f"$SYS.SERVER.{self._server.id}.{how}"):
            self._publish(subject, server_facts(self._server))

    # --- sending

    def _is_heard(self, subject: str) -> bool:
        there = self._subscribers()
        return there is not None and there.receives(subject)

    def _send(self, subject: str, kind: str, what: dict[str, Any]) -> None:
        head = _head(kind, self._runtime)
        self._publish(subject, {**head, "server": server_facts(self._server), **what})

    def _publish(self, subject: str, body: dict[str, Any]) -> None:
        there = self._subscribers()
        if there is not None:
            there.answer(subject, None, msgspec.json.encode(body))


def connections_event(server: Observed, account: str, runtime: Runtime) -> dict[str, Any]:
    """Return the event of how many clients an account has."""
    return (
        _head("account_connections", runtime) | {"server": server_facts(server)} | account_connections(server, account)
    )


def _head(kind: str, runtime: Runtime) -> dict[str, Any]:
    now = rfc3339(runtime.clock.now())
    return {"type": f"{_ADVISORY}{kind}", "id": runtime.ids.new(), "timestamp": now}
