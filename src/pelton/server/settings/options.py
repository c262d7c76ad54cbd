"""The settings of a server, as one frozen value that is checked at the door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from pelton.api import AccountLimits
from pelton.api.errors import ConfigError
from pelton.server.settings.config import SYSTEM_ACCOUNT, AccountConfig
from pelton.server.settings.tls import TlsDoor
from pelton.server.settings.web_socket import WebSocketDoor
from pelton.storage import SyncMode
from pelton.wire import WireLimits

MAX_PENDING: Final = 64 << 20
_LARGEST_PAYLOAD: Final = 64 << 20


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where clients connect: a host and port (-1: any free one), or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 4222
    path: str = ""

    def __str__(self) -> str:
        return self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The store of an account: the path of its file, and what may be stored in it through this server."""

    path: str
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)
    sync: SyncMode = "commit"
    key: bytes | None = None


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a server listens, and what it grants. Times are seconds, sizes bytes; names are nats-server's.

    With ``tls`` all clients use it, except on Unix sockets; those of WebSockets have their own. ``monitoring`` is
    where reports are told over HTTP. ``stores`` has the store of each account; an account without one has no JetStream.
    ``accounts`` has their limits, and what they offer each other; ``system_account`` is the one that may ask for
    reports, "" for none. ``max_closed_clients`` is how many clients that have left are reported.
    """

    stores: Mapping[str, StoreSettings] = msgspec.field(default_factory=dict)
    accounts: Mapping[str, AccountConfig] = msgspec.field(default_factory=dict)
    endpoints: tuple[Endpoint, ...] = (Endpoint(),)
    monitoring: Endpoint | None = None
    tls: TlsDoor | None = None
    websocket: WebSocketDoor | None = None
    server_name: str = ""
    domain: str = ""
    max_payload: int = 1 << 20
    max_control_line: int = 4096
    max_connections: int = 65_536
    max_subscriptions: int = 0
    max_pending: int = MAX_PENDING
    write_deadline: float = 10.0
    ping_interval: float = 120.0
    ping_max: int = 2
    auth_timeout: float = 2.0
    lame_duck_duration: float = 120.0
    lame_duck_grace_period: float = 10.0
    max_closed_clients: int = 1000
    system_account: str = SYSTEM_ACCOUNT

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigError("a server needs a place to listen: a host and port, or a Unix socket")
        if not 0 < self.max_payload <= _LARGEST_PAYLOAD:
            raise ConfigError(f"max_payload is {self.max_payload}: give 1 to {_LARGEST_PAYLOAD} bytes")
        if self.max_payload > self.max_pending:
            raise ConfigError(f"max_pending is {self.max_pending}: it must hold a message of max_payload bytes")
        for name in ("write_deadline", "ping_interval", "auth_timeout", "lame_duck_duration"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a time above 0 seconds")
        if any(character in self.server_name for character in " \t\r\n"):
            raise ConfigError(f"server_name is {self.server_name!r}: leave white space out")

    @property
    def wire(self) -> WireLimits:
        """The limits of what a client sends."""
        return WireLimits(line=self.max_control_line, payload=self.max_payload)
