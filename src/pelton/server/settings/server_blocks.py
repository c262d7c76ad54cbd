"""Reads the outermost block of a configuration, and those for JetStream, TLS and WebSocket. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from pelton.api import AccountLimits
from pelton.server.settings.account_blocks import accounts_of, authorization_of, finish, login_of
from pelton.server.settings.config import (
    JetStreamConfig,
    OperatorConfig,
    ServerConfig,
    TlsConfig,
    WebSocketConfig,
)
from pelton.server.settings.grammar import ConfigBlock, ConfigNode, ReadFile
from pelton.server.settings.section import ConfigSection, FieldRow

_RESOLVER_ROWS: Final = (
    FieldRow("folder", ("dir",), "text"),
    FieldRow("allow_delete", ("allow_delete",), "flag"),
    FieldRow("hard_delete", ("hard_delete",), "flag"),
)
_ROWS: Final = (
    FieldRow("host", ("host", "net"), "text"),
    FieldRow("port", ("port",), "integer"),
    FieldRow("unix_socket", ("unix_socket",), "text"),
    FieldRow("server_name", ("server_name",), "text"),
    FieldRow("client_advertise", ("client_advertise",), "text"),
    FieldRow("server_tags", ("server_tags",), "texts"),
    FieldRow("server_metadata", ("server_metadata",), "mapping"),
    FieldRow("max_payload", ("max_payload",), "integer"),
    FieldRow("max_connections", ("max_connections", "max_conn"), "integer"),
    FieldRow("max_subscriptions", ("max_subscriptions", "max_subs"), "integer"),
    FieldRow("max_subscription_tokens", ("max_subscription_tokens", "max_sub_tokens"), "integer"),
    FieldRow("max_control_line", ("max_control_line",), "integer"),
    FieldRow("max_pending", ("max_pending",), "integer"),
    FieldRow("write_deadline", ("write_deadline",), "seconds"),
    FieldRow("ping_interval", ("ping_interval",), "seconds"),
    FieldRow("ping_max", ("ping_max",), "integer"),
    FieldRow("no_header_support", ("no_header_support",), "flag"),
    FieldRow("http_port", ("http_port", "monitor_port"), "integer"),
    FieldRow("https_port", ("https_port",), "integer"),
    FieldRow("http_base_path", ("http_base_path",), "text"),
    FieldRow("default_js_domain", ("default_js_domain",), "mapping"),
    FieldRow("no_auth_user", ("no_auth_user",), "text"),
    FieldRow("system_account", ("system_account", "system"), "text"),
    FieldRow("no_system_account", ("no_system_account", "no_system", "no_sys_acc"), "flag"),
    FieldRow("allow_non_tls", ("allow_non_tls",), "flag"),
    FieldRow("lame_duck_duration", ("lame_duck_duration",), "seconds"),
    FieldRow("lame_duck_grace_period", ("lame_duck_grace_period",), "seconds"),
    FieldRow("max_closed_clients", ("max_closed_clients",), "integer"),
    FieldRow("pid_file", ("pid_file", "pidfile"), "text"),
    FieldRow("ports_file_dir", ("ports_file_dir",), "text"),
)
_ZERO_IS_DEFAULT: Final = frozenset(
    {
        "port",
        "max_payload",
        "max_connections",
        "max_control_line",
        "max_pending",
        "write_deadline",
        "ping_interval",
        "ping_max",
    }
)
_TLS_ROWS: Final = (
    FieldRow("cert_file", ("cert_file",), "text"),
    FieldRow("key_file", ("key_file",), "text"),
    FieldRow("ca_file", ("ca_file",), "text"),
    FieldRow("verify", ("verify",), "flag"),
    FieldRow("verify_and_map", ("verify_and_map",), "flag"),
    FieldRow("timeout", ("timeout",), "seconds"),
    FieldRow("min_version", ("min_version",), "text"),
)
_JETSTREAM_ROWS: Final = (
    FieldRow("store_dir", ("store_dir", "storedir"), "text"),
    FieldRow("domain", ("domain",), "text"),
    FieldRow("max_memory_store", ("max_memory_store", "max_mem_store", "max_mem"), "integer"),
    FieldRow("max_file_store", ("max_file_store", "max_file"), "integer"),
)
_JETSTREAM_LIMIT_ROWS: Final = (
    FieldRow("max_ack_pending", ("max_ack_pending",), "integer"),
    FieldRow("max_request_batch", ("max_request_batch",), "integer"),
    FieldRow("duplicate_window", ("duplicate_window",), "seconds"),
)
_WEBSOCKET_ROWS: Final = (
    FieldRow("host", ("host", "net"), "text"),
    FieldRow("port", ("port",), "integer"),
    FieldRow("advertise", ("advertise",), "text"),
    FieldRow("no_tls", ("no_tls",), "flag"),
    FieldRow("same_origin", ("same_origin",), "flag"),
    FieldRow("allowed_origins", ("allowed_origins", "allowed_origin", "allow_origins", "allow_origin"), "texts"),
    FieldRow("handshake_timeout", ("handshake_timeout",), "seconds"),
    FieldRow("compression", ("compression", "compress"), "flag"),
    FieldRow("jwt_cookie", ("jwt_cookie",), "text"),
    FieldRow("user_cookie", ("user_cookie",), "text"),
    FieldRow("pass_cookie", ("pass_cookie",), "text"),
    FieldRow("token_cookie", ("token_cookie",), "text"),
    FieldRow("no_auth_user", ("no_auth_user",), "text"),
    FieldRow("ping_interval", ("ping_interval",), "seconds"),
    FieldRow("headers", ("headers",), "mapping"),
)
_SHORTEST_LAME_DUCK_S: Final = 30.0
_OPERATOR_KEYS: Final = ("operator", "operators", "root", "roots", "root_operator", "root_operators")
_RESOLVERS: Final = (
    "resolver must be MEMORY, with resolver_preload, or { type: full, dir: FOLDER } (or cache): accounts are not "
    "fetched from a URL, give their JWTs in resolver_preload or in FOLDER, each in KEY.jwt"
)
_TOKEN: Final = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_ADDRESS: Final = re.compile(r"(\[[^]]*\]|[^:]*):(-?[0-9]{1,5})", re.ASCII)


def server_of(section: ConfigSection, read: ReadFile) -> ServerConfig:
    """Return the settings of the outermost block; ``read`` returns the text of a file that holds a JWT."""
    fields = section.fields(_ROWS)
    # Zero stands for the default, as on the server.
    fields = {name: value for name, value in fields.items() if value != 0 or name not in _ZERO_IS_DEFAULT}
    for keys, host, port in (
        (("listen",), "host", "port"),
        (("http",), "http_host", "http_port"),
        (("https",), "http_host", "https_port"),
    ):
        fields |= _address(section, keys, host, port)
    if (tls := section.section("tls")) is not None:
        fields["tls"] = _tls(tls)
    if (authorization := section.section("authorization")) is not None:
        fields["authorization"] = authorization_of(authorization)
    if (accounts := section.take("accounts")) is not None:
        fields["accounts"], fields["users"] = accounts_of(section, accounts)
    store_dir = section.text("store_dir", "storedir")
    if (node := section.take("jetstream")) is not None:
        fields["jetstream"] = _jetstream(section, node, store_dir or "")
    if (websocket := section.section("websocket", "ws")) is not None:
        fields["websocket"] = _websocket(websocket)
    fields["operator"] = _operator(section, read)
    if fields.get("lame_duck_duration", _SHORTEST_LAME_DUCK_S) < _SHORTEST_LAME_DUCK_S:
        section.findings.error(section.at, "lame_duck_duration must be 30s or more")
    finish(section, "")
    found = ServerConfig(**fields)
    return msgspec.structs.replace(found, users=found.authorization.users + found.users)


def _address(section: ConfigSection, keys: tuple[str, ...], host: str, port: str) -> dict[str, Any]:
    """Return the fields of ``host:port``, or of a port alone."""
    node = section.take(*keys)
    if node is None:
        return {}
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return {port: node.value}
    found = _ADDRESS.fullmatch(node.value) if isinstance(node.value, str) else None
    if found is None:
        section.findings.error(node.at, f"{keys[0]} must be HOST:PORT or a port")
        return {}
    return {host: found[1].strip("[]"), port: int(found[2])}


def _tls(section: ConfigSection) -> TlsConfig:
    fields = section.fields(_TLS_ROWS)
    if fields.get("min_version", "1.2") not in ("1.2", "1.3"):
        section.findings.error(section.at, "min_version must be 1.2 or 1.3")
        del fields["min_version"]
    if (node := section.take("handshake_first", "first", "immediate")) is not None:
        fields["handshake_first"] = _handshake_first(section, node)
    finish(section, "tls")
    found = TlsConfig(**fields)
    if bool(found.cert_file) != bool(found.key_file):
        section.findings.error(section.at, "tls needs both cert_file and key_file")
    return found


# How long `auto` waits for a handshake, as nats-server does.
_AUTO_S: Final = 0.05


def _handshake_first(section: ConfigSection, node: ConfigNode) -> bool | float:
    if isinstance(node.value, bool):
        return node.value
    text = node.value if isinstance(node.value, str) else ""
    if text.lower() in ("auto", "auto_fallback"):
        return _AUTO_S
    inner = ConfigSection(ConfigBlock({"handshake_first": node}), node.at, section.findings)
    return inner.seconds("handshake_first") or False


def _jetstream(section: ConfigSection, node: ConfigNode, store_dir: str) -> JetStreamConfig | None:
    if isinstance(node.value, bool):
        return JetStreamConfig(store_dir=store_dir) if node.value else None
    if isinstance(node.value, str) and node.value.lower() in ("enabled", "enable", "disabled", "disable"):
        return JetStreamConfig(store_dir=store_dir) if node.value.lower().startswith("en") else None
    if not isinstance(node.value, ConfigBlock):
        section.findings.error(node.at, "jetstream must be enabled, disabled, or a block")
        return None
    inner = section.inside(node, "jetstream")
    enabled = inner.flag("enabled", "enable")
    fields = {"store_dir": store_dir} | inner.fields(_JETSTREAM_ROWS)
    if store_dir and fields["store_dir"] != store_dir:
        section.findings.error(node.at, "store_dir is given twice")
    if (limits := inner.section("limits")) is not None:
        values = limits.fields(_JETSTREAM_LIMIT_ROWS)
        if (most := values.pop("max_ack_pending", None)) is not None:
            fields["limits"] = AccountLimits(max_ack_pending=most)
        fields |= values
        finish(limits, "jetstream.limits")
    finish(inner, "jetstream")
    return None if enabled is False else JetStreamConfig(**fields)


def _websocket(section: ConfigSection) -> WebSocketConfig:
    fields = section.fields(_WEBSOCKET_ROWS) | _address(section, ("listen",), "host", "port")
    if (tls := section.section("tls")) is not None:
        fields["tls"] = _tls(tls)
    if (authorization := section.section("authorization")) is not None:
        fields["authorization"] = login_of(authorization)
    finish(section, "websocket")
    found = WebSocketConfig(**fields)
    if found.port and found.tls is None and not found.no_tls:
        section.findings.error(section.at, "websocket needs a tls block, or no_tls: true")
    return found


def _operator(section: ConfigSection, read: ReadFile) -> OperatorConfig | None:
    """Return the settings of operator mode, None without an operator."""
    tokens = [_jwt(section, text, read) for text in section.texts(*_OPERATOR_KEYS) or ()]
    trusted = section.texts("trusted_keys", "trusted")
    accounts = section.mapping("resolver_preload")
    sentinel = section.text("default_sentinel")
    resolver = section.take("resolver", "account_resolver", "accounts_resolver")
    stored = {} if resolver is None or _is_memory(resolver) else _folder_of(section, resolver)
    if not tokens and not trusted:
        if accounts or sentinel:
            section.findings.error(section.at, "resolver_preload and default_sentinel need an operator")
        return None
    return OperatorConfig(
        operators=tuple(tokens),
        trusted_keys=frozenset(trusted or ()),
        accounts=accounts or {},
        default_sentinel=sentinel or "",
        **stored,
    )


def _folder_of(section: ConfigSection, node: ConfigNode) -> dict[str, Any]:
    """Return what is said of a resolver that keeps accounts in a folder."""
    if not isinstance(node.value, ConfigBlock):
        section.findings.error(node.at, _RESOLVERS)
        return {}
    inner = section.inside(node, "resolver")
    found = inner.fields(_RESOLVER_ROWS)
    found["resolver"] = kind = (inner.text("type") or "").lower()
    if kind not in ("full", "cache") or not found.get("folder"):
        section.findings.error(node.at, _RESOLVERS)
        return {}
    if kind == "cache" and ("allow_delete" in found or "hard_delete" in found):
        section.findings.error(node.at, "a resolver of type cache accepts no allow_delete or hard_delete")
    finish(inner, "resolver")
    return found


def _is_memory(node: ConfigNode) -> bool:
    if isinstance(node.value, ConfigBlock):
        kinds = [entry.value for key, entry in node.value.entries.items() if key.lower() == "type"]
        return any(isinstance(kind, str) and kind.lower() in ("mem", "memory") for kind in kinds)
    return isinstance(node.value, str) and node.value.lower() in ("mem", "memory")


def _jwt(section: ConfigSection, text: str, read: ReadFile) -> str:
    """Return a JWT that is given itself, or as the name of a file that holds it, perhaps decorated."""
    if (found := _TOKEN.fullmatch(text.strip())) is not None:
        return found[0]
    try:
        found = _TOKEN.search(read(text))
    except (OSError, UnicodeDecodeError) as error:
        section.findings.error(section.at, f"cannot read the operator's JWT {text!r}: {error}")
        return ""
    if found is None:
        section.findings.error(section.at, f"{text!r} holds no JWT")
        return ""
    return found[0]
