"""The settings of a server, as one frozen value that is checked at the door."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pelton.api import AccountLimits, ConfigError
from pelton.server.settings.config import SYSTEM_ACCOUNT, AccountConfig
from pelton.storage import SyncMode
from pelton.wire import WireLimits

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsDoor(msgspec.Struct, frozen=True, kw_only=True):
    """How clients come in by TLS: ``first`` is True if the handshake comes before the greeting, False if after, or the
    seconds to wait for it. ``verify``: clients show a certificate.
    """

    context: Any
    """An `ssl.SSLContext`, as `tls_context` makes one."""
    first: bool | float = False
    """True if the handshake comes before the greeting, False if after; a number: seconds to wait for it."""
    timeout: float = 2.0
    """How many seconds the handshake may take."""
    verify: bool = False
    """Whether clients must show a certificate."""


def tls_context(
    cert_file: str, key_file: str, *, ca_file: str = "", verify: bool = False, min_version: str = "1.2"
) -> ssl.SSLContext:
    """Return the context of a server that shows the certificate in ``cert_file``, with the key in ``key_file``.

    With ``verify``, clients must show a certificate, signed by an authority in ``ca_file`` (PEM), or by one that the
    system trusts if that is empty. ``min_version``, of TLS, is "1.2" or "1.3". Raises ConfigError if a file cannot be
    used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[min_version]
    for name, path in (("certificate", cert_file), ("key", key_file), *((("authority", ca_file),) if ca_file else ())):
        if not os.path.isfile(path):
            raise ConfigError(f"tls: the file of the {name}, {path!r}, does not exist")
    try:
        context.load_cert_chain(cert_file, key_file)
        if ca_file:
            context.load_verify_locations(ca_file)
        elif verify:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: {cert_file!r}, {key_file!r} or {ca_file!r} cannot be used: {error}") from None
    if verify:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


# --- where and how WebSocket clients come in


class WebSocketDoor(msgspec.Struct, frozen=True, kw_only=True):
    """The listener of WebSocket clients; `timeout` in seconds bounds their handshake.

    A browser tells the origin of its page: with `same_origin` it must be the host that it connects to, with
    `allowed_origins` (``https://example.com``) one of these. Other clients tell none, and are let in.
    """

    host: str = "127.0.0.1"
    """The address of an interface."""
    port: int = -1
    """The port; -1 for any free one."""
    tls: TlsDoor | None = None
    """How clients use TLS; None for not at all."""
    same_origin: bool = False
    """Whether a page must come from the host that it connects to."""
    allowed_origins: tuple[str, ...] = ()
    """The origins that pages may come from (`https://example.com`); empty for any."""
    compression: bool = False
    """Whether messages may be compressed."""
    timeout: float = 2.0
    """How many seconds the handshake may take."""
    auth_timeout: float = 0.0
    """How many seconds a client has to log in; 0 for those of all clients."""

    def admits(self, origin: str, host: str) -> bool:
        """Whether a page of an origin may connect to a host."""
        if not origin:
            return True
        if self.same_origin and origin.partition("://")[2].lower() != host.lower():
            return False
        return not self.allowed_origins or origin.lower() in map(str.lower, self.allowed_origins)


# --- the settings of a server, as one frozen value that is checked at the door

MAX_PENDING: Final = 64 << 20
_LARGEST_PAYLOAD: Final = 64 << 20
_ADDRESS: Final = re.compile(r"(\[[^]]+\]|[^:\s]+)(?::([0-9]{1,5}))?", re.ASCII)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where clients connect: a host and port (-1: any free one), or the path of a Unix socket."""

    host: str = "127.0.0.1"
    """The address of an interface: `0.0.0.0` or `::` for all."""
    port: int = 4222
    """The port; -1 for any free one."""
    path: str = ""
    """The path of a Unix socket, instead of a host and port."""

    def __str__(self) -> str:
        return self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The store of an account: the path of its file, and what may be stored in it through this server."""

    path: str
    """The path of the file."""
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)
    """What may be stored in it through this server."""
    sync: SyncMode = "commit"
    """What an acknowledgement promises: `commit`, `interval` or `off`, as in `pelton.open`."""
    key: bytes | None = None
    """The key of an encrypted file."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a server listens, and what it grants. Times are seconds, sizes bytes; names are nats-server's.

    With ``tls`` all clients use it, except on Unix sockets; those of WebSockets have their own. ``monitoring`` is
    where reports are told over HTTP. ``stores`` has the store of each account; an account without one has no JetStream.
    ``accounts`` has their limits, and what they offer each other; ``system_account`` is the one that may ask for
    reports, "" for none. ``max_closed_clients`` is how many clients that have left are reported.
    """

    stores: Mapping[str, StoreSettings] = msgspec.field(default_factory=dict)
    """The store of each account, by name; one without has no JetStream. Clients that name none are in `$G`."""
    accounts: Mapping[str, AccountConfig] = msgspec.field(default_factory=dict)
    """The limits of accounts, and what they offer each other, by name."""
    endpoints: tuple[Endpoint, ...] = (Endpoint(),)
    """Where clients connect."""
    monitoring: Endpoint | None = None
    """Where reports are told over HTTP; None for nowhere."""
    tls: TlsDoor | None = None
    """How clients use TLS; all but those of Unix sockets and WebSockets do then."""
    websocket: WebSocketDoor | None = None
    """Where WebSocket clients connect; None for nowhere."""
    server_name: str = ""
    """The server's name, without white space; a random one if empty."""
    client_advertise: str = ""
    """Where clients reach the server, ``HOST`` or ``HOST:PORT``, as they are told; empty for where it listens."""
    domain: str = ""
    """The JetStream domain; empty for none."""
    max_payload: int = 1 << 20
    """The largest message, headers included, in bytes."""
    max_control_line: int = 4096
    """The longest line of the protocol, in bytes."""
    max_connections: int = 65_536
    """How many clients may be connected."""
    max_subscriptions: int = 0
    """How many subscriptions a client may have; 0 for any number."""
    max_pending: int = MAX_PENDING
    """How many bytes may wait for a client that reads too slowly, before it is cut."""
    write_deadline: float = 10.0
    """After how many seconds a client is cut that takes nothing of what waits for it."""
    ping_interval: float = 120.0
    """After how many seconds a silent client is asked whether it lives."""
    ping_max: int = 2
    """After how many unanswered pings a client is cut."""
    auth_timeout: float = 2.0
    """How many seconds a client has to say who it is."""
    lame_duck_duration: float = 120.0
    """Over how many seconds `Server.lame_duck` lets clients go."""
    lame_duck_grace_period: float = 10.0
    """How many seconds it waits before it begins."""
    max_closed_clients: int = 1000
    """How many clients that have left are reported."""
    max_memory_store: int = -1
    """How many bytes all streams in memory may have, as reports tell it; -1 for any number. Stores have the limits."""
    max_file_store: int = -1
    """The same for streams in files."""
    config_digest: str = ""
    """The digest of the configuration, as reports tell it; empty for none."""
    system_account: str = SYSTEM_ACCOUNT
    """The account that may ask for reports; empty for none."""

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

        if self.client_advertise and _ADDRESS.fullmatch(self.client_advertise) is None:
            raise ConfigError(f"client_advertise is {self.client_advertise!r}: give HOST or HOST:PORT")

    def told_address(self, endpoint: Endpoint) -> tuple[str, int]:
        """Return the host and port that clients are told of a server that listens on ``endpoint``."""
        found = _ADDRESS.fullmatch(self.client_advertise)
        if found is None:
            return endpoint.host, max(endpoint.port, 0)
        return found[1].strip("[]"), int(found[2] or max(endpoint.port, 0))

    def auth_timeout_of(self, kind: str) -> float:
        """Return how many seconds a client has to say who it is, that connects by ``kind``."""
        own = self.websocket.auth_timeout if self.websocket is not None and kind == "WEBSOCKET" else 0.0
        return own or self.auth_timeout

    @property
    def wire(self) -> WireLimits:
        """The limits of what a client sends."""
        return WireLimits(line=self.max_control_line, payload=self.max_payload)
