"""From what a file and flags say to what a server runs with, and what of it cannot change while it runs.

**From what a file and flags say to what a server runs with. Only certificates are read here.** What the server does not
do yet is refused here, by the field that asks for it: nothing is silently ignored.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from pelton.api import AccountLimits, ConfigError
from pelton.server.settings.config import (
    GLOBAL_ACCOUNT,
    SYSTEM_ACCOUNT,
    AccountConfig,
    JetStreamConfig,
    ServerConfig,
    TlsConfig,
    WebSocketConfig,
)
from pelton.server.settings.grammar import ConfigPosition
from pelton.server.settings.options import Endpoint, ServerSettings, StoreSettings, TlsDoor, WebSocketDoor, tls_context
from pelton.server.settings.section import SettingsError, SettingsFault
from pelton.storage import SyncMode

# By field, the keys that may set it. Those of a block that is not there have their defaults.
_FIXED: Final[dict[str, tuple[str, ...]]] = {
    "server_name": ("server_name",),
    "host": ("host", "listen"),
    "port": ("port", "listen"),
    "unix_socket": ("unix_socket",),
    "http_host": ("http",),
    "http_port": ("http_port", "http"),
    "max_subscriptions": ("max_subscriptions",),
    "max_pending": ("max_pending",),
    "lame_duck_duration": ("lame_duck_duration",),
    "lame_duck_grace_period": ("lame_duck_grace_period",),
    "max_closed_clients": ("max_closed_clients",),
    "no_auth_user": ("no_auth_user",),
    "system_account": ("system_account",),
    "no_system_account": ("no_system_account",),
    "jetstream.domain": ("jetstream.domain",),
    "tls.verify_and_map": ("tls.verify_and_map",),
}
_SIZES: Final = ("max_memory_store", "max_file_store")
_FIXED_SETTINGS: Final = ("endpoints", "monitoring", "server_name", "domain", "system_account", "max_closed_clients")
_RESTART: Final = "restart the server for it"


def check_configs(old: ServerConfig, new: ServerConfig, places: Mapping[str, ConfigPosition]) -> None:
    """Raise SettingsError with everything that a reload may not change; ``places`` is where keys of ``new`` stand."""
    changed = {name: keys for name, keys in _FIXED.items() if _value(old, name) != _value(new, name)}
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


_NOT_YET: Final = {
    "allow_non_tls": "with TLS, all clients use it",
    "https_port": "reports are told over HTTP without TLS, with http_port",
    "http_base_path": "reports are at the root",
    "no_header_support": "clients always may send headers",
    "max_subscription_tokens": "subjects may have any number of tokens",
    "default_js_domain": "give the domain of this server with jetstream { domain: NAME }",
}
_NOT_YET_FOR_WEBSOCKETS: Final = {
    "jwt_cookie": "credentials are in the CONNECT of a client",
    "user_cookie": "credentials are in the CONNECT of a client",
    "pass_cookie": "credentials are in the CONNECT of a client",
    "token_cookie": "credentials are in the CONNECT of a client",
    "ping_interval": "it is that of all clients",
    "headers": "answers have no headers of yours",
}
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
        server_name=config.server_name,
        client_advertise=config.client_advertise,
        domain=jetstream.domain,
        max_payload=config.max_payload,
        max_control_line=config.max_control_line,
        max_connections=config.max_connections,
        max_subscriptions=max(config.max_subscriptions, 0),
        max_pending=config.max_pending,
        write_deadline=config.write_deadline,
        ping_interval=config.ping_interval,
        ping_max=config.ping_max,
        auth_timeout=config.authorization.timeout,
        lame_duck_duration=config.lame_duck_duration,
        lame_duck_grace_period=config.lame_duck_grace_period,
        max_closed_clients=max(config.max_closed_clients, 0),
        system_account=system_account,
        max_memory_store=jetstream.max_memory_store,
        max_file_store=jetstream.max_file_store,
        config_digest=digest,
    )


def _check(config: ServerConfig) -> None:
    asked = _asked(config, ServerConfig(), _NOT_YET)
    if config.websocket is not None:
        asked += [f"websocket.{each}" for each in _asked(config.websocket, WebSocketConfig(), _NOT_YET_FOR_WEBSOCKETS)]
    jetstream = config.jetstream or JetStreamConfig()
    if jetstream.max_request_batch or jetstream.duplicate_window:
        raise ConfigError("jetstream.limits has max_ack_pending only: set the others for each stream and consumer")
    if asked:
        raise SettingsError([SettingsFault(None, each) for each in asked])


def _asked(given: object, default: object, reasons: Mapping[str, str]) -> list[str]:
    return [
        f"{name} is not supported yet: {reason}"
        for name, reason in reasons.items()
        if getattr(given, name) != getattr(default, name)
    ]


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
