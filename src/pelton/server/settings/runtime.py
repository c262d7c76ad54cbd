"""What a server runs with: one frozen value, made of what a file and flags say, and what of it a reload may not change.

Only certificates are read here. What the server does not do yet is refused here, by the option that asks for it.
"""

from __future__ import annotations

import os
import posixpath
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from pelton.api import AccountLimits, ConfigError
from pelton.server.settings.grammar import ConfigPosition, SettingsError, SettingsFault
from pelton.server.settings.options import (
    GLOBAL_ACCOUNT,
    OPTIONS,
    SYSTEM_ACCOUNT,
    AccountConfig,
    JetStreamConfig,
    LeafRemoteConfig,
    ServerConfig,
    TlsConfig,
    WebSocketConfig,
)
from pelton.storage import SyncMode
from pelton.wire import WireLimits

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsDoor(msgspec.Struct, frozen=True, kw_only=True):
    """How clients come in by TLS."""

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


def client_context(config: TlsConfig | None) -> ssl.SSLContext:
    """Return how this side uses TLS. Raises ConfigError if a file cannot be used."""
    config = config or TlsConfig()
    try:
        context = ssl.create_default_context(cafile=config.ca_file or None)
        context.minimum_version = _VERSIONS[config.min_version]
        if config.cert_file:
            context.load_cert_chain(config.cert_file, config.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls of the leaf: {config.ca_file!r} or {config.cert_file!r}: {error}") from None
    return context


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
    """How a server listens, and what it grants. Times are seconds, sizes bytes; names are nats-server's."""

    stores: Mapping[str, StoreSettings] = msgspec.field(default_factory=dict)
    """The store of each account, by name; one without has no JetStream. Clients that name none are in `$G`."""
    accounts: Mapping[str, AccountConfig] = msgspec.field(default_factory=dict)
    """The limits of accounts, and what they offer each other, by name."""
    endpoints: tuple[Endpoint, ...] = (Endpoint(),)
    """Where clients connect; nowhere in a program that is a leaf node."""
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
    leaf_remotes: tuple[LeafRemoteConfig, ...] = ()
    """The hubs whose leaf node the server is, each for an account."""

    def __post_init__(self) -> None:
        if not (self.endpoints or self.leaf_remotes):
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


def check_apart(stores: Mapping[str, StoreSettings]) -> None:
    """Raise ConfigError if two accounts have one file, also by a link: they would share all that they store."""
    known: dict[str | tuple[int, int], str] = {}
    for account, store in stores.items():
        file: str | tuple[int, int] = os.path.realpath(store.path)
        with suppress(OSError):
            found = os.stat(store.path)
            file = found.st_dev, found.st_ino
        other = known.setdefault(file, account)
        if other != account:
            raise ConfigError(
                f"accounts {other!r} and {account!r} would share one file, {stores[other].path!r} and {store.path!r}: "
                "give each a file of its own"
            )


# --- what cannot change while a server runs

_SIZES: Final = ("max_memory_store", "max_file_store")
_FIXED_SETTINGS: Final = (
    *("endpoints", "monitoring", "server_name", "domain", "system_account", "max_closed_clients", "leaf_remotes"),
)
_RESTART: Final = "restart the server for it"


def check_configs(old: ServerConfig, new: ServerConfig, places: Mapping[str, ConfigPosition]) -> None:
    """Raise SettingsError with everything that a reload may not change; ``places`` is where keys of ``new`` stand."""
    changed = {path: each for path, each in _fixed_options() if _value(old, path) != _value(new, path)}
    if _without_certificates(old.websocket) != _without_certificates(new.websocket):
        changed["websocket"] = ("websocket",)
    if old.operator is not None or new.operator is not None:
        trusted = [(one.operators, one.trusted_keys) if one else () for one in (old.operator, new.operator)]
        if trusted[0] != trusted[1]:
            changed["operator"] = ("operator", "trusted_keys")
    faults = [
        SettingsFault(_place(keys, places), f"reload is not supported for {name}: {_RESTART}")
        for name, keys in changed.items()
    ]
    faults += _of_stores(old, new, places)
    if faults:
        raise SettingsError(faults)


def _of_stores(old: ServerConfig, new: ServerConfig, places: Mapping[str, ConfigPosition]) -> list[SettingsFault]:
    """JetStream can be turned on and off; while it is on, its folder stays and its sizes only grow."""
    before, after, faults = old.jetstream, new.jetstream, []
    if before is None or after is None:
        return []
    if before.store_dir != after.store_dir:
        at = _place(("jetstream.store_dir", "store_dir", "jetstream"), places)
        faults.append(SettingsFault(at, f"reload is not supported for jetstream.store_dir: {_RESTART}"))
    for name in _SIZES:
        was, now = getattr(before, name), getattr(after, name)
        if was != now and (was < 0 or now < was):
            at = _place((f"jetstream.{name}", "jetstream"), places)
            how = "decreasing" if now >= 0 <= was else "setting or removing"
            faults.append(SettingsFault(at, f"reload is not supported for {how} jetstream.{name}: {_RESTART}"))
    return faults


def _fixed_options() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the options that a reload cannot change, each with the paths of the keys that may set it."""
    for path, option in OPTIONS.items():
        if option.fixed:
            block = path.rpartition(".")[0]
            yield path, tuple(f"{block}.{key}" if block else key for key in option.fixed.split())


def _value(config: ServerConfig, name: str) -> Any:
    found: Any = config
    for part in name.split("."):
        found = None if found is None else getattr(found, part)
    return found or None


def _without_certificates(config: WebSocketConfig | None) -> WebSocketConfig:
    """Return settings without what may change: certificates, and whether clients must show one."""
    config = config or WebSocketConfig()
    tls = config.tls
    return replace(config, tls=None if tls is None else TlsConfig(verify_and_map=tls.verify_and_map))


def _place(keys: tuple[str, ...], places: Mapping[str, ConfigPosition]) -> ConfigPosition | None:
    return next((places[key] for key in keys if key in places), None)


def check_settings(old: ServerSettings, new: ServerSettings) -> None:
    """Raise ConfigError if something differs that a server keeps while it runs."""
    changed = [name for name in _FIXED_SETTINGS if getattr(old, name) != getattr(new, name)]
    doors = [one and (one.tls is None, replace(one, tls=None)) for one in (old.websocket, new.websocket)]
    if doors[0] != doors[1]:
        changed.append("websocket")
    for name in old.stores.keys() & new.stores.keys():
        if replace(old.stores[name], limits=new.stores[name].limits) != new.stores[name]:
            changed.append(f"the store of account {name!r}")
    if changed:
        raise ConfigError(f"{', '.join(changed)} cannot change while the server runs: restart it")


# These are made of several options; all others of one name are what was told.
_MADE: Final = {"accounts", "tls", "websocket", "max_subscriptions", "max_closed_clients", "system_account"}
_SAME: Final = set(ServerSettings.__struct_fields__) & set(ServerConfig.__struct_fields__) - _MADE
_UNLIMITED: Final = -1
_NOWHERE: Final[Mapping[str, ConfigPosition]] = {}


def runtime_settings(
    config: ServerConfig,
    accounts: Mapping[str, AccountConfig],
    *,
    store: str = "",
    sync: SyncMode = "commit",
    key: bytes | None = None,
    system_account: str = SYSTEM_ACCOUNT,
    digest: str = "",
    places: Mapping[str, ConfigPosition] = _NOWHERE,
) -> ServerSettings:
    """Return what a server with these accounts runs with; ``store`` is the file of the global account.

    Raises ConfigError; ``places`` is where keys stand.
    """
    _check(config)
    jetstream = config.jetstream or JetStreamConfig()
    named = dict(accounts) | {GLOBAL_ACCOUNT: accounts.get(GLOBAL_ACCOUNT, AccountConfig(name=GLOBAL_ACCOUNT))}
    stores = {
        name: StoreSettings(path=path, limits=_limits(named[name].jetstream, jetstream), sync=sync, key=key)
        for name, path in _paths(config, named, store).items()
    }
    # As with nats-server, reports are told on the address for clients, unless another is given.
    reports = Endpoint(host=config.http_host or config.host, port=config.http_port) if config.http_port else None
    endpoints = [Endpoint(host=config.host, port=config.port)]
    if config.unix_socket:
        endpoints.append(Endpoint(path=config.unix_socket))
    return ServerSettings(
        stores=stores,
        accounts=accounts,
        endpoints=tuple(endpoints),
        monitoring=reports,
        tls=_tls(config.tls, places.get("tls")),
        websocket=_websocket(config, places.get("websocket.tls")),
        domain=jetstream.domain,
        max_subscriptions=max(config.max_subscriptions, 0),
        auth_timeout=config.authorization.timeout,
        max_closed_clients=max(config.max_closed_clients, 0),
        system_account=system_account,
        max_memory_store=jetstream.max_memory_store,
        max_file_store=jetstream.max_file_store,
        config_digest=digest,
        leaf_remotes=config.leafnodes.remotes if config.leafnodes is not None else (),
        **{name: getattr(config, name) for name in _SAME},
    )


def _check(config: ServerConfig) -> None:
    default, asked = ServerConfig(websocket=WebSocketConfig()), []
    for path, option in OPTIONS.items():
        if option.not_yet and _value(config, path) != _value(default, path):
            asked.append(SettingsFault(None, f"{path} is not supported yet: {option.not_yet}"))
    jetstream = config.jetstream or JetStreamConfig()
    if jetstream.max_request_batch or jetstream.duplicate_window:
        raise ConfigError("jetstream.limits has max_ack_pending only: set the others for each stream and consumer")
    if asked:
        raise SettingsError(asked)


def _tls(config: TlsConfig | None, at: ConfigPosition | None) -> TlsDoor | None:
    if config is None:
        return None
    verify = config.verify or config.verify_and_map
    try:
        context = tls_context(
            config.cert_file, config.key_file, ca_file=config.ca_file, verify=verify, min_version=config.min_version
        )
    except ConfigError as error:
        raise SettingsError([SettingsFault(at, str(error))]) from None
    return TlsDoor(context=context, first=config.handshake_first, timeout=config.timeout, verify=verify)


def _websocket(config: ServerConfig, at: ConfigPosition | None) -> WebSocketDoor | None:
    said = config.websocket
    if said is None or not said.port:
        return None
    return WebSocketDoor(
        host=said.host or config.host,
        port=said.port,
        tls=_tls(said.tls, at),
        same_origin=said.same_origin,
        allowed_origins=said.allowed_origins,
        compression=said.compression,
        timeout=said.handshake_timeout,
        auth_timeout=said.authorization.timeout if said.authorization is not None else 0.0,
    )


def _paths(config: ServerConfig, accounts: Mapping[str, AccountConfig], store: str) -> dict[str, str]:
    """Return the file of each account that has streams; the one of the global account may be given."""
    folder = config.jetstream.store_dir if config.jetstream is not None else ""
    paths = {GLOBAL_ACCOUNT: store} if store else {}
    if config.jetstream is None and not store:
        return paths
    wanted = [name for name, account in accounts.items() if account.jetstream is not None and name not in paths]
    if wanted and not folder:
        raise ConfigError(
            "serve: give the file of a store, or a folder for stores with -sd (jetstream { store_dir: ... }), for "
            + ", ".join(sorted(wanted))
        )
    return paths | {name: posixpath.join(folder, f"{name}.pelton") for name in wanted}


def _limits(account: AccountLimits | None, server: JetStreamConfig) -> AccountLimits:
    """Return an account's limits, where it has none those of the server."""
    own = account or AccountLimits()
    return msgspec.structs.replace(
        own,
        max_memory=server.max_memory_store if own.max_memory == _UNLIMITED else own.max_memory,
        max_storage=server.max_file_store if own.max_storage == _UNLIMITED else own.max_storage,
        max_ack_pending=server.limits.max_ack_pending if own.max_ack_pending == _UNLIMITED else own.max_ack_pending,
    )
