"""From a command line and a configuration's text to settings, checked as a whole: flags, and the blocks of a server.

The flags are nats-server's, long and short, and Pelton's own. As in nats-server, one dash is as good as two, a value
follows after a space or an equals sign, and a switch takes a value only with an equals sign. Words that are no flags
are the store. Pure: files and environment come in from outside.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from pelton.api import AccountLimits
from pelton.server.settings.blocks import (
    JETSTREAM_LIMITS,
    ConfigSection,
    _is_enabled,
    accounts_of,
    authorization_of,
    login_of,
)
from pelton.server.settings.grammar import (
    ConfigBlock,
    ConfigNode,
    ConfigPosition,
    ReadFile,
    SettingsError,
    SettingsFault,
    SettingsFindings,
    duration_ns,
    parse_config,
    scalar_of,
)
from pelton.server.settings.options import (
    BLOCKS,
    FLAGS,
    GLOBAL_ACCOUNT,
    IGNORED_FLAGS,
    IGNORED_SWITCHES,
    OPTIONS,
    RANDOM_PORT,
    REFUSED_FLAGS,
    SYSTEM_ACCOUNT,
    AuthorizationConfig,
    ExportConfig,
    ImportConfig,
    JetStreamConfig,
    LeafNodesConfig,
    LeafRemoteConfig,
    OperatorConfig,
    OptionKind,
    ServerConfig,
    TlsConfig,
    WebSocketConfig,
    options_of,
)
from pelton.subjects import is_subset

FlagValue = str | int | float | bool

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_BY_NAME: Final = {name: path for path, option in FLAGS.items() for name in option.flag.split()}


class CommandLine(NamedTuple):
    """What a command line asks for: the store, the configuration file, and the settings by their fields."""

    stores: tuple[str, ...]
    values: dict[str, FlagValue]
    warnings: tuple[SettingsFault, ...]

    @property
    def config(self) -> str:
        """The configuration file, "" for none."""
        return str(self.values.get("config", ""))

    def has(self, switch: Literal["check", "help", "json", "version"]) -> bool:
        return bool(self.values.get(switch, False))


def parse_flags(words: Sequence[str]) -> CommandLine:
    """Return what a command line asks for. Raises SettingsError with all that is wrong."""
    stores: list[str] = []
    values: dict[str, FlagValue] = {}
    errors: list[SettingsFault] = []
    warnings: list[SettingsFault] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--":
            stores += reversed(left)
            break
        if len(word) < 2 or not word.startswith("-"):
            stores.append(word)
            continue
        try:
            warning = _flag(word, left, values)
        except ValueError as error:
            errors.append(SettingsFault(None, str(error)))
        else:
            warnings += [warning] if warning else []
    if errors:
        raise SettingsError(errors)
    return CommandLine(tuple(stores), values, tuple(warnings))


def _flag(word: str, left: list[str], values: dict[str, FlagValue]) -> SettingsFault | None:
    """Read one flag, and its value from the words that are left. Raises ValueError."""
    name, equals, given = word.removeprefix("-").removeprefix("-").partition("=")
    if name in REFUSED_FLAGS:
        raise ValueError(f"{word.partition('=')[0]} is not supported: {REFUSED_FLAGS[name]}")
    known = _BY_NAME.get(name)
    if known is None and name not in IGNORED_FLAGS:
        raise ValueError(f"unknown flag {word.partition('=')[0]}")
    is_switch = name in IGNORED_SWITCHES if known is None else FLAGS[known].kind == "flag"
    if not equals and not is_switch:
        if not left:
            raise ValueError(f"{word} needs a value")
        given = left.pop()
    if known is None:
        return SettingsFault(None, f"{word.partition('=')[0]} has no effect: {IGNORED_FLAGS[name]}")
    values[known] = _value(word, FLAGS[known].kind, given if equals or not is_switch else "true")
    return None


def _value(word: str, kind: OptionKind | None, given: str) -> FlagValue:
    flag = word.partition("=")[0]
    if kind == "flag":
        if given not in _TRUE | _FALSE:
            raise ValueError(f"{flag} is a switch: {given!r} must be true or false")
        return given in _TRUE
    read, expected = _READERS[kind]
    try:
        return read(given)
    except ValueError:
        raise ValueError(f"{flag} needs {expected}, not {given!r}") from None


def _size(given: str) -> int:
    found = scalar_of(given)
    if not isinstance(found, int) or isinstance(found, bool):
        raise ValueError(given)
    return found


def _seconds(given: str) -> float:
    found = scalar_of(given) if given[-1:].isdigit() else duration_ns(given) / 1e9
    if not isinstance(found, int | float):
        raise ValueError(given)
    return float(found)


_READERS: Final[Mapping[OptionKind | None, tuple[Callable[[str], FlagValue], str]]] = {
    "text": (str, ""),
    "integer": (int, "a number"),
    "size": (_size, "bytes, or a number with K, KB, M, MB, G or GB"),
    "seconds": (_seconds, "a duration such as 2m or 500ms"),
}


def with_flags(settings: ServerConfig, line: CommandLine) -> ServerConfig:
    """Return the settings with those of the command line, which count more than those of the file."""
    changes: dict[str, Any] = {
        path: value for path, value in line.values.items() if path in OPTIONS and "." not in path and path not in BLOCKS
    }
    jetstream, authorization, tls = (_inside(line, block) for block in ("jetstream", "authorization", "tls"))
    if line.values.get("jetstream") is False:
        changes["jetstream"] = None
    elif jetstream or line.values.get("jetstream"):
        changes["jetstream"] = replace(settings.jetstream or JetStreamConfig(), **jetstream)
    if authorization:
        # A user or token of the command line stands in for all that the file lists.
        changes["authorization"] = AuthorizationConfig(timeout=settings.authorization.timeout, **authorization)
        changes["users"] = ()
    if tls or line.values.get("tls"):
        changes["tls"] = replace(settings.tls or TlsConfig(), **tls)
    if leaf := _inside(line, "leafnodes"):
        changes["leafnodes"] = _with_hub(settings.leafnodes or LeafNodesConfig(), **leaf)
    changed = replace(settings, **changes)
    if websocket := _inside(line, "websocket"):
        plain = WebSocketConfig(tls=changed.tls, no_tls=changed.tls is None, compression=True)
        changed = replace(changed, websocket=replace(changed.websocket or plain, **websocket))
    return changed


def _with_hub(settings: LeafNodesConfig, url: str = "", credentials: str = "") -> LeafNodesConfig:
    """Return the settings with the hub of the command line, in place of those of the file."""
    if not url:
        raise SettingsError([SettingsFault(None, "--creds needs --leaf: give the hub's address")])
    hub = LeafRemoteConfig(urls=tuple(url.split(",")), credentials=credentials, reconnect=settings.reconnect)
    return replace(settings, remotes=(hub,))


def _inside(line: CommandLine, block: str) -> dict[str, Any]:
    return {field.partition(".")[2]: value for field, value in line.values.items() if field.startswith(f"{block}.")}


# --- the settings of a file and a command line

_PORTS: Final = range(RANDOM_PORT, 65_536)


class LoadedConfig(NamedTuple):
    """Settings, what has no effect in them, and where their keys stand."""

    settings: ServerConfig
    warnings: tuple[SettingsFault, ...] = ()
    places: Mapping[str, ConfigPosition] = {}


def config_of_command(
    line: CommandLine, *, read: ReadFile, environment: Mapping[str, str] | None = None
) -> LoadedConfig:
    """Return the settings of a command line and of the configuration file that it names.

    Raises ConfigSyntaxError, SettingsError, and OSError if the file cannot be read.
    """
    settings, findings = ServerConfig(), SettingsFindings()
    findings.warnings += line.warnings
    if line.config:
        settings = _read(read(line.config), ConfigPosition(line.config, 1, 1), read, environment or {}, findings)
    settings = with_flags(settings, line)
    if not line.stores:
        settings = _with_store_dir(settings, environment or {})
    return _check_settings(settings, findings)


def _with_store_dir(settings: ServerConfig, environment: Mapping[str, str]) -> ServerConfig:
    """Return the settings with the user's own folder for streams, if there are to be streams and no folder is given."""
    jetstream, home = settings.jetstream, environment.get("HOME", "")
    states = environment.get("XDG_STATE_HOME") or (home and f"{home}/.local/state")
    if jetstream is None or jetstream.store_dir or not states:
        return settings
    return replace(settings, jetstream=replace(jetstream, store_dir=f"{states}/pelton/jetstream"))


def _read(
    text: str, at: ConfigPosition, read: ReadFile, environment: Mapping[str, str], findings: SettingsFindings
) -> ServerConfig:
    block = parse_config(text, file=at.file, read=read, environment=environment)
    return server_of(ConfigSection(block, at, findings), read)


def _check_settings(settings: ServerConfig, findings: SettingsFindings) -> LoadedConfig:
    check_config(settings, findings)
    findings.check()
    return LoadedConfig(settings, tuple(findings.warnings), findings.places)


def check_config(settings: ServerConfig, findings: SettingsFindings) -> None:
    """Add what does not fit together."""
    for name in ("port", "http_port", "https_port"):
        if getattr(settings, name) not in _PORTS:
            findings.error(None, f"{name} must be a port, or -1 for any that is free")
    for name in ("max_control_line", "max_pending", "ping_interval", "write_deadline", "ping_max"):
        if getattr(settings, name) < 0:
            findings.error(None, f"{name} must not be negative")
    if settings.max_payload > settings.max_pending:
        findings.error(None, "max_payload must not be larger than max_pending")
    if " " in settings.server_name:
        findings.error(None, "server_name must not contain spaces")
    if settings.tls is not None and not (settings.tls.cert_file and settings.tls.key_file):
        findings.error(None, "tls needs cert_file and key_file (--tlscert and --tlskey)")
    if settings.https_port and settings.tls is None:
        findings.error(None, "https_port needs a tls block")
    if settings.https_port and settings.http_port:
        findings.error(None, "monitoring has either http_port or https_port")
    _check_users(settings, findings)
    _check_accounts(settings, findings)
    _check_leafs(settings, findings)


HUB: Final = re.compile(r"(nats|tls|nats-leaf)://([^@/]+@)?(\[[^]]+\]|[^:/@\[\]]+)(:[0-9]{1,5})?/?", re.ASCII)


def _check_leafs(settings: ServerConfig, findings: SettingsFindings) -> None:
    known = {GLOBAL_ACCOUNT, *(account.name for account in settings.accounts)}
    if settings.operator is not None:
        known = {*settings.operator.accounts, *settings.operator.stored}
    for remote in settings.leafnodes.remotes if settings.leafnodes is not None else ():
        wrong = [url for url in remote.urls if HUB.fullmatch(url) is None]
        if wrong or not remote.urls:
            given = repr(wrong[0].rpartition("@")[2]) if wrong else "none"
            findings.error(None, f"leafnodes: the url of a hub is {given}: give nats://HOST:7422 or tls://HOST:7422")
        if remote.account not in known:
            findings.error(None, f"leafnodes: {remote.account!r} is no account")
        if remote.account == (settings.system_account or SYSTEM_ACCOUNT):
            findings.error(None, "leafnodes: the system account cannot have a hub yet")
        if remote.credentials and remote.nkey:
            findings.error(None, "leafnodes: give credentials or an nkey, not both")


def _check_users(settings: ServerConfig, findings: SettingsFindings) -> None:
    names = Counter(user.name or user.nkey for user in settings.users)
    for name in sorted(name for name, number in names.items() if number > 1):
        findings.error(None, f"the user {name!r} is defined twice")
    single = settings.authorization
    if settings.users and not single.users and (single.user or single.token):
        findings.error(None, "authorization cannot have a user or token: accounts have users")
    websocket = settings.websocket
    login = websocket.authorization if websocket is not None and websocket.port else None
    if settings.users and login is not None and (login.user or login.token):
        findings.error(None, "websocket.authorization cannot have a user or token: there are users already")
    without = [settings.no_auth_user, settings.websocket.no_auth_user if settings.websocket else ""]
    for name in filter(None, without):
        if settings.operator is not None:
            findings.error(None, "no_auth_user does not work with an operator; use default_sentinel")
        elif name not in names:
            findings.error(None, f"no_auth_user {name!r} is no user")
    if settings.operator is not None and (settings.users or settings.accounts or settings.authorization.user):
        findings.error(None, "with an operator, accounts and users come from JWTs alone")


def _check_accounts(settings: ServerConfig, findings: SettingsFindings) -> None:
    exports = {account.name: account.exports for account in settings.accounts}
    names = set(exports)
    system = settings.system_account
    if system and settings.operator is None and system not in names | {SYSTEM_ACCOUNT}:
        findings.error(None, f"system_account {system!r} is no account")
    for account in settings.accounts:
        for export in account.exports:
            for unknown in sorted((export.accounts or frozenset()) - names):
                findings.error(None, f"account {account.name!r} exports to {unknown!r}, which is no account")
        for imported in account.imports:
            if imported.account not in exports:
                findings.error(None, f"account {account.name!r} imports from {imported.account!r}, which is no account")
            elif not any(permits(export, imported, account.name) for export in exports[imported.account]):
                findings.error(
                    None, f"account {account.name!r} may not import {imported.subject!r} from {imported.account!r}"
                )


def permits(export: ExportConfig, imported: ImportConfig, importer: str) -> bool:
    """Whether an export lets an account import a subject."""
    if export.kind != imported.kind or not is_subset(imported.subject, export.subject):
        return False
    if export.accounts is not None:
        return importer in export.accounts
    position = export.account_token_position
    tokens = imported.subject.split(".")
    return not position or (position <= len(tokens) and tokens[position - 1] == importer)


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
