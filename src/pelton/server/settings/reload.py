"""What of a server's settings cannot change while it runs: as nats-server refuses it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from pelton.api import ConfigError
from pelton.server.settings.config import ServerConfig, TlsConfig, WebSocketConfig
from pelton.server.settings.grammar import ConfigPosition
from pelton.server.settings.options import ServerSettings
from pelton.server.settings.section import SettingsError, SettingsFault

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
