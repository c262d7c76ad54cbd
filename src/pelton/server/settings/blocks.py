"""Reads the blocks of a configuration: the outermost, JetStream, TLS, WebSocket, accounts and their users. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pelton.api import AccountLimits
from pelton.server.settings.grammar import ConfigBlock, ConfigNode, ReadFile
from pelton.server.settings.options import (
    GLOBAL_ACCOUNT,
    AccountConfig,
    AllowDeny,
    AuthorizationConfig,
    ConnectionLimits,
    ExchangeKind,
    ExportConfig,
    ImportConfig,
    JetStreamConfig,
    LeafNodesConfig,
    LeafRemoteConfig,
    OperatorConfig,
    Option,
    PermissionRules,
    ResponseRules,
    ResponseType,
    ServerConfig,
    TlsConfig,
    TraceConfig,
    UserConfig,
    WebSocketConfig,
    options_of,
)
from pelton.server.settings.section import ConfigSection
from pelton.subjects import fault_of, is_subject
from pelton.wire.protocol import role_of

# Blocks that are read into an AccountLimits, which belongs to the public API.
STREAM_LIMITS: Final[Mapping[str, Option]] = {
    "max_memory": Option("max_memory max_mem mem memory", kind="integer"),
    "max_storage": Option("max_store max_file max_disk store disk", kind="integer"),
    "max_streams": Option("max_streams streams", kind="integer"),
    "max_consumers": Option("max_consumers consumers", kind="integer"),
    "max_ack_pending": Option("max_ack_pending", kind="integer"),
    "max_bytes_required": Option("max_bytes_required max_stream_bytes", kind="flag"),
    "memory_max_stream_bytes": Option("mem_max_stream_bytes memory_max_stream_bytes", kind="integer"),
    "storage_max_stream_bytes": Option("disk_max_stream_bytes store_max_stream_bytes", kind="integer"),
}
JETSTREAM_LIMITS: Final[Mapping[str, Option]] = {
    "max_ack_pending": Option("max_ack_pending", kind="integer"),
    "max_request_batch": Option("max_request_batch", kind="integer"),
    "duplicate_window": Option("duplicate_window", kind="seconds"),
}

CONNECTION_TYPES: Final = frozenset(
    {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"}
)
_PERMISSIONS: Final = ("permissions", "permission", "authorization")
_DEFAULTS: Final = ("default_permissions", "default_permission", "permissions")


def login_of(section: ConfigSection) -> AuthorizationConfig:
    """Return an authorization block with one user or a token alone; its timeout is 0 if it says none."""
    return _authorization(section, {"timeout": 0.0} | section.fields(options_of(AuthorizationConfig)))


def authorization_of(section: ConfigSection) -> AuthorizationConfig:
    """Return an authorization block."""
    fields = section.fields(options_of(AuthorizationConfig))
    if (defaults := permissions_of(section, _DEFAULTS)) is not None:
        fields["default_permissions"] = defaults
    if (users := section.sections("users")) is not None:
        fields["users"] = tuple([user_of(user, GLOBAL_ACCOUNT, defaults) for user in users])
    return _authorization(section, fields)


def _authorization(section: ConfigSection, fields: dict[str, Any]) -> AuthorizationConfig:
    section.finish("authorization")
    found = AuthorizationConfig(**fields)
    if found.users and (found.user or found.token):
        section.findings.error(section.at, "authorization has users, so it cannot have a user or token of its own")
    if found.user and found.token:
        section.findings.error(section.at, "authorization cannot have both a user and a token")
    if found.password and not found.user:
        section.findings.error(section.at, "authorization has a password but no user")
    return found


def user_of(section: ConfigSection, account: str, defaults: PermissionRules | None) -> UserConfig:
    """Return an entry of a list of users, with the default permissions if it has none."""
    fields = section.fields(options_of(UserConfig))
    kinds = fields.get("connection_types")
    if kinds is not None:
        fields["connection_types"] = frozenset(kind.upper() for kind in kinds)
    fields["permissions"] = permissions_of(section, _PERMISSIONS) or defaults
    section.finish("user")
    user = UserConfig(account=account, **fields)
    for unknown in sorted((user.connection_types or frozenset()) - CONNECTION_TYPES):
        section.findings.error(section.at, f"unknown connection type {unknown!r}")
    if bool(user.name) == bool(user.nkey):
        section.findings.error(section.at, "a user has either a name (user) or a public key (nkey)")
    if user.nkey and (user.password or role_of(user.nkey) != "user"):
        section.findings.error(section.at, "nkey must be the public key of a user, and replaces the password")
    return user


def permissions_of(section: ConfigSection, keys: Sequence[str]) -> PermissionRules | None:
    """Return the permissions under one of the keys, None if there are none."""
    inner = section.section(*keys)
    if inner is None:
        return None
    fields: dict[str, object] = {}
    for field, names in (
        ("publish", ("publish", "pub", "import")),
        ("subscribe", ("subscribe", "sub", "export")),
    ):
        node = inner.take(*names)
        if node is not None:
            fields[field] = _rules(inner, node, queues=field == "subscribe")
    node = inner.take("allow_responses", "publish_allow_responses")
    if node is not None:
        fields["allow_responses"] = _responses(inner, node)
    inner.finish("permissions")
    rules = msgspec.convert(fields, PermissionRules)
    if rules.allow_responses is not None and rules.publish.allow is None:
        # A client that may answer has no other subjects than those it is given.
        return msgspec.structs.replace(rules, publish=AllowDeny(allow=(), deny=rules.publish.deny))
    return rules


def _rules(section: ConfigSection, node: ConfigNode, *, queues: bool) -> AllowDeny:
    """Return the rules of a subject, a list of subjects, or a block with ``allow`` and ``deny``."""
    if not isinstance(node.value, ConfigBlock):
        return AllowDeny(allow=_subjects(section, node, queues=queues))
    inner = section.inside(node, "rules")
    allow, deny = inner.take("allow"), inner.take("deny")
    inner.finish("rules")
    return AllowDeny(
        allow=None if allow is None else _subjects(section, allow, queues=queues),
        deny=() if deny is None else _subjects(section, deny, queues=queues) or (),
    )


def _subjects(section: ConfigSection, node: ConfigNode, *, queues: bool) -> tuple[str, ...] | None:
    """Return subjects, checked; an empty list is no rule, as on the server."""
    subjects: list[str] = []
    for item in node.value if isinstance(node.value, list) else [node]:
        if not isinstance(item.value, str):
            section.findings.error(item.at, "permissions must be a subject, or a list of subjects")
            continue
        parts = item.value.split()
        faults = [fault_of(part, wildcards=True) for part in parts]
        if not parts or len(parts) > (2 if queues else 1) or any(faults):
            section.findings.error(item.at, f"{item.value!r} is no valid subject of a permission")
        subjects.append(" ".join(parts))
    return tuple(subjects) or None


def _responses(section: ConfigSection, node: ConfigNode) -> ResponseRules | None:
    if isinstance(node.value, bool):
        return ResponseRules() if node.value else None
    if not isinstance(node.value, ConfigBlock):
        section.findings.error(node.at, "allow_responses must be true, false, or a block with max and expires")
        return None
    inner = section.inside(node, "allow_responses")
    fields = inner.fields(options_of(ResponseRules))
    inner.finish("allow_responses")
    default = ResponseRules()
    # Zero stands for the default.
    return ResponseRules(
        max_msgs=fields.get("max_msgs") or default.max_msgs, expires=fields.get("expires") or default.expires
    )


# --- reads accounts: their users, limits, exports and imports. Pure

_RESPONSES: Final[dict[str, ResponseType]] = {
    "single": "Singleton",
    "singleton": "Singleton",
    "stream": "Stream",
    "chunk": "Chunked",
    "chunked": "Chunked",
}


def accounts_of(section: ConfigSection, node: ConfigNode) -> tuple[tuple[AccountConfig, ...], tuple[UserConfig, ...]]:
    """Return the accounts of an accounts block, or of a list of names, and the users of all of them."""
    accounts, users = [], list[UserConfig]()
    if isinstance(node.value, list):
        names = {str(item.value): ConfigNode(ConfigBlock(), item.at) for item in node.value}
        node = ConfigNode(ConfigBlock(names), node.at)
    if not isinstance(node.value, ConfigBlock):
        section.findings.error(node.at, "accounts must be a block in braces, or a list of names")
        return (), ()
    section = section.inside(node, "accounts")
    for name, entry in section.take_named():
        if not isinstance(entry.value, ConfigBlock):
            section.findings.error(entry.at, f"the account {name!r} must be a block in braces")
            continue
        account, its_users = _account(name, section.inside(entry, name))
        accounts.append(account)
        users += its_users
    return tuple(accounts), tuple(users)


def _account(name: str, section: ConfigSection) -> tuple[AccountConfig, list[UserConfig]]:
    fields: dict[str, Any] = {"name": name, "nkey": section.text("nkey") or ""}
    if not name or not name.isprintable() or name == GLOBAL_ACCOUNT or set(name) & {"/", "\\"}:
        # Accounts are kept in files that bear their names.
        section.findings.error(section.at, f"{name!r} cannot be the name of an account")
    defaults = permissions_of(section, ("default_permissions",))
    fields["default_permissions"] = defaults
    users = [user_of(user, name, defaults) for user in section.sections("users") or ()]
    if (limits := section.section("limits")) is not None:
        fields["limits"] = ConnectionLimits(**limits.fields(options_of(ConnectionLimits)))
        limits.finish("account.limits")
    if (node := section.take("jetstream")) is not None:
        fields["jetstream"] = _streams(section, node)
    if (node := section.take("msg_trace", "trace_dest")) is not None:
        fields["tracing"] = _tracing(section, node)
    fields["exports"] = tuple(filter(None, map(_export, section.sections("exports") or ())))
    fields["imports"] = tuple(filter(None, map(_import, section.sections("imports") or ())))
    section.finish("account")
    return AccountConfig(**fields), users


def _streams(section: ConfigSection, node: ConfigNode) -> AccountLimits | None:
    """Return what an account may store; None if it has no streams."""
    if not isinstance(node.value, ConfigBlock):
        return AccountLimits() if _is_enabled(section, node, "a block of limits") else None
    inner = section.inside(node, "jetstream")
    found = AccountLimits(**inner.fields(STREAM_LIMITS))
    inner.finish("account.jetstream")
    return found


def _is_enabled(section: ConfigSection, node: ConfigNode, block: str) -> bool:
    """Whether JetStream is turned on by a word; one that is unknown is an error, which ``block`` names."""
    word = str(node.value).lower()
    if isinstance(node.value, bool) or word in ("enabled", "enable", "disabled", "disable"):
        return word in ("true", "enabled", "enable")
    section.findings.error(node.at, f"jetstream must be enabled, disabled, or {block}")
    return False


def _tracing(section: ConfigSection, node: ConfigNode) -> TraceConfig:
    """Return where an account's traces are told: a subject, or a block that also has how many in a hundred."""
    if isinstance(node.value, ConfigBlock):
        inner = section.inside(node, "msg_trace")
        destination, share = inner.text("dest") or "", inner.take("sampling")
        inner.finish("account.msg_trace")
        text = "100" if share is None else str(share.value).removesuffix("%")
    else:
        destination, text = str(node.value), "100"
    if not is_subject(destination):
        section.findings.error(
            node.at, f"the destination of msg_trace must be a subject without wildcards, not {destination!r}"
        )
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        section.findings.error(node.at, "the sampling of msg_trace is from 1 to 100, of a hundred")
        return TraceConfig()
    return TraceConfig(destination=destination, sampling=int(text))


def _kind_of(section: ConfigSection) -> tuple[ExchangeKind, ConfigNode] | None:
    stream, service = section.take("stream"), section.take("service")
    if stream is not None and service is None:
        return "stream", stream
    if service is not None and stream is None:
        return "service", service
    section.findings.error(section.at, "an export or import has either a stream or a service")
    return None


def _check_subject(section: ConfigSection, subject: str) -> str:
    if fault := fault_of(subject, wildcards=True):
        section.findings.error(section.at, f"{subject!r} is no valid subject: {fault}")
    return subject


def _export(section: ConfigSection) -> ExportConfig | None:
    found = _kind_of(section)
    fields = section.fields(options_of(ExportConfig))
    section.finish("export")
    if found is None:
        return None
    kind, node = found
    if "allow_trace" in fields and kind != "service":
        section.findings.error(section.at, "allow_trace is for exports of services, and for imports of streams")
    if not isinstance(node.value, str):
        section.findings.error(node.at, f"the {kind} of an export must be a subject")
        return None
    if (accounts := fields.pop("accounts", None)) is not None:
        fields["accounts"] = frozenset(accounts)
    if (response := fields.get("response_type")) is not None:
        if kind == "stream" or response.lower() not in _RESPONSES:
            section.findings.error(section.at, "the response of a service is single, stream or chunked")
        fields["response_type"] = _RESPONSES.get(response.lower(), "Singleton")
    return ExportConfig(kind=kind, subject=_check_subject(section, node.value), **fields)


def _import(section: ConfigSection) -> ImportConfig | None:
    found = _kind_of(section)
    fields, prefix = section.fields(options_of(ImportConfig)), section.text("prefix")
    section.finish("import")
    if found is None:
        return None
    kind, node = found
    if not isinstance(node.value, ConfigBlock):
        section.findings.error(node.at, f"the {kind} of an import must be a block with account and subject")
        return None
    inner = section.inside(node, kind)
    account, subject = inner.text("account") or "", inner.text("subject") or ""
    inner.finish("source")
    if not account or not subject:
        section.findings.error(node.at, f"the {kind} of an import needs an account and a subject")
        return None
    if "allow_trace" in fields and kind != "stream":
        section.findings.error(section.at, "allow_trace is for exports of services, and for imports of streams")
    if fields.get("to") and prefix:
        section.findings.error(section.at, "an import has either to or prefix")
    if prefix:
        if kind == "service":
            section.findings.error(section.at, "prefix is for imported streams; use to for services")
        fields["to"] = f"{prefix.removesuffix('.')}.{subject}"
    return ImportConfig(kind=kind, account=account, subject=_check_subject(section, subject), **fields)


# --- the outermost block, and those for JetStream, TLS and WebSocket

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
    fields = section.fields(options_of(ServerConfig))
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
    if (leafnodes := section.section("leafnodes", "leaf")) is not None:
        fields["leafnodes"] = _leafnodes(leafnodes)
    fields["operator"] = _operator(section, read)
    if fields.get("lame_duck_duration", _SHORTEST_LAME_DUCK_S) < _SHORTEST_LAME_DUCK_S:
        section.findings.error(section.at, "lame_duck_duration must be 30s or more")
    section.finish("")
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
    fields = section.fields(options_of(TlsConfig))
    if fields.get("min_version", "1.2") not in ("1.2", "1.3"):
        section.findings.error(section.at, "min_version must be 1.2 or 1.3")
        del fields["min_version"]
    if (node := section.take("handshake_first", "first", "immediate")) is not None:
        fields["handshake_first"] = _handshake_first(section, node)
    section.finish("tls")
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
    if not isinstance(node.value, ConfigBlock):
        return JetStreamConfig(store_dir=store_dir) if _is_enabled(section, node, "a block") else None
    inner = section.inside(node, "jetstream")
    enabled = inner.flag("enabled", "enable")
    fields = {"store_dir": store_dir} | inner.fields(options_of(JetStreamConfig))
    if store_dir and fields["store_dir"] != store_dir:
        section.findings.error(node.at, "store_dir is given twice")
    if (limits := inner.section("limits")) is not None:
        values = limits.fields(JETSTREAM_LIMITS)
        if (most := values.pop("max_ack_pending", None)) is not None:
            fields["limits"] = AccountLimits(max_ack_pending=most)
        fields |= values
        limits.finish("jetstream.limits")
    inner.finish("jetstream")
    return None if enabled is False else JetStreamConfig(**fields)


def _leafnodes(section: ConfigSection) -> LeafNodesConfig:
    fields = section.fields(options_of(LeafNodesConfig))
    remotes = section.sections("remotes") or []
    found = LeafNodesConfig(**fields)
    found = msgspec.structs.replace(found, remotes=tuple([_leaf_remote(each, found.reconnect) for each in remotes]))
    section.finish("leafnodes")
    return found


def _leaf_remote(section: ConfigSection, reconnect: float) -> LeafRemoteConfig:
    fields = section.fields(options_of(LeafRemoteConfig))
    if (tls := section.section("tls")) is not None:
        fields["tls"] = _tls(tls)
    section.finish("leafnodes.remotes")
    return LeafRemoteConfig(reconnect=reconnect, **fields)


def _websocket(section: ConfigSection) -> WebSocketConfig:
    fields = section.fields(options_of(WebSocketConfig)) | _address(section, ("listen",), "host", "port")
    if (tls := section.section("tls")) is not None:
        fields["tls"] = _tls(tls)
    if (authorization := section.section("authorization")) is not None:
        fields["authorization"] = login_of(authorization)
    section.finish("websocket")
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
    found = inner.fields(options_of(OperatorConfig))
    found["resolver"] = kind = (inner.text("type") or "").lower()
    if kind not in ("full", "cache") or not found.get("folder"):
        section.findings.error(node.at, _RESOLVERS)
        return {}
    if kind == "cache" and ("allow_delete" in found or "hard_delete" in found):
        section.findings.error(node.at, "a resolver of type cache accepts no allow_delete or hard_delete")
    inner.finish("resolver")
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
