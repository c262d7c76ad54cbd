"""The options of a server, each declared once: its keys in a file, its flag, its help, and what is not supported of it.

Files, flags, help, reloads and the documentation read these declarations; a new option is a field here, and, if the
server itself runs with it, one of :class:`ServerSettings`. What a server is told is one frozen tree of these structs,
whether it comes from a file or from flags. Pure data.

Durations are seconds, sizes bytes. A limit of -1 means no limit, unless its line says otherwise. Names are those of
NATS's configuration.

Nothing is silently ignored. A key that Pelton does not honour is *refused* if leaving it out would change who may do
what, where data goes, or what is promised; the server does not start. It is *ignored*, with a warning, if it only tunes
or describes nats-server. Keys that are neither, and read by no one, are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_type_hints

import msgspec

from pelton.api import AccountLimits

DEFAULT_PORT: Final = 4222
RANDOM_PORT: Final = -1
GLOBAL_ACCOUNT: Final = "$G"
SYSTEM_ACCOUNT: Final = "$SYS"
SINGLE_TIER: Final = "R1"
"""The limits of an account for streams of one copy."""
_MIB: Final = 1 << 20

ExchangeKind = Literal["service", "stream"]
ResponseType = Literal["Singleton", "Stream", "Chunked"]
OptionKind = Literal["text", "integer", "size", "flag", "seconds", "duration", "texts", "mapping"]


SAME: Final = "."
"""The name of an option's field, as its key, its flag, or the key that fixes it."""


class Option(NamedTuple):
    """How an option is given, and what is said of it; :data:`SAME` stands for its field's name.

    Several words of one kind are separated by spaces.
    """

    keys: str = SAME
    """Its keys in a file; messages name the first."""
    flag: str = ""
    """Its flags, without dashes; a switch if it is of the kind "flag"."""
    help: str = ""
    """What its flag says in one line."""
    kind: OptionKind | None = None
    """How its value is read, if the type of the field does not say so."""
    zero_is_default: bool = False
    """Whether zero in a file stands for the default, as on nats-server."""
    fixed: str = ""
    """The keys that may set it, if a reload cannot change it."""
    not_yet: str = ""
    """Why another value than the default is not supported."""


_KINDS: Final[dict[Any, OptionKind]] = {
    str: "text",
    int: "integer",
    bool: "flag",
    float: "seconds",
    tuple[str, ...]: "texts",
    dict[str, str]: "mapping",
}


@cache
def options_of(struct: type[msgspec.Struct]) -> Mapping[str, Option]:
    """Return the options that a struct declares, by its fields, each with its kind."""
    found = {}
    for name, hint in get_type_hints(struct, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            words = {each: name for each in ("keys", "flag", "fixed") if getattr(option, each) == SAME}
            found[name] = option._replace(kind=option.kind or _KINDS[hint.__origin__], **words)
    return found


class _Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all settings."""


class AllowDeny(_Config, frozen=True, kw_only=True):
    """Which subjects are allowed, None for all, and which of those are denied.

    A rule for subscriptions may name a queue group after the subject: ``"jobs.* workers"``.
    """

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


class ResponseRules(_Config, frozen=True, kw_only=True):
    """How a client may answer requests that it received: ``max_msgs`` answers each, within ``expires`` seconds.

    A negative number is no limit.
    """

    max_msgs: Annotated[int, Option("max max_msgs max_messages max_responses")] = 1
    expires: Annotated[float, Option("expires expiration ttl", kind="duration")] = 120.0


class PermissionRules(_Config, frozen=True, kw_only=True):
    """What a user may publish and subscribe to."""

    publish: AllowDeny = AllowDeny()
    subscribe: AllowDeny = AllowDeny()
    allow_responses: ResponseRules | None = None


class UserConfig(_Config, frozen=True, kw_only=True):
    """A user with a password (plain, or a bcrypt hash) or, with ``nkey``, one that signs the server's nonce.

    ``permissions`` are None for the default ones; ``connection_types`` are None for all.
    """

    name: Annotated[str, Option("user username")] = ""
    password: Annotated[str, Option("pass password")] = ""
    nkey: Annotated[str, Option()] = ""
    account: str = GLOBAL_ACCOUNT
    permissions: PermissionRules | None = None
    connection_types: Annotated[
        frozenset[str] | None, Option("allowed_connection_types connection_types clients", kind="texts")
    ] = None


class ConnectionLimits(_Config, frozen=True, kw_only=True):
    """What the connections of an account, or of a user, may use."""

    max_connections: Annotated[int, Option("max_connections max_conn")] = -1
    max_subscriptions: Annotated[int, Option("max_subscriptions max_subs")] = -1
    max_payload: Annotated[int, Option("max_payload max_pay")] = -1


class ExportConfig(_Config, frozen=True, kw_only=True):
    """A subject that an account offers to others: to all, or to ``accounts``.

    ``account_token_position`` is the token, from 1, that must hold the importer's account; 0 for none.
    """

    kind: ExchangeKind
    subject: str
    accounts: Annotated[frozenset[str] | None, Option(kind="texts")] = None
    response_type: Annotated[ResponseType, Option("response_type response", kind="text")] = "Singleton"
    response_threshold: Annotated[float, Option("threshold response_threshold response_time response_max_time")] = 0.0
    account_token_position: Annotated[int, Option()] = 0
    requires_token: bool = False
    allow_trace: Annotated[bool, Option()] = False


class ImportConfig(_Config, frozen=True, kw_only=True):
    """A subject of another account, and the subject under which it appears in the importing one ("" for the same).

    A service is requested at ``to`` and answered at ``subject``; a stream is published at ``subject`` and received at
    ``to``. ``token`` is the activation, a JWT, for an export that requires one.
    """

    kind: ExchangeKind
    account: str
    subject: str
    to: Annotated[str, Option()] = ""
    share: Annotated[bool, Option()] = False
    token: str = ""
    allow_trace: Annotated[bool, Option()] = False


class TraceConfig(_Config, frozen=True, kw_only=True):
    """Where it is told whom an account's messages reach that have a ``traceparent``; "" for nowhere.

    ``sampling`` is of how many in a hundred.
    """

    destination: str = ""
    sampling: int = 100


class AccountConfig(_Config, frozen=True, kw_only=True):
    """An account: its limits, what it offers, what it takes. ``jetstream`` is None if it has no streams.

    ``name_tag`` is what people call it, if its name is a key. ``tiers`` are its limits for streams of one and of more
    copies, ``R1`` and ``R3``, if they differ: then ``jetstream`` is the first.
    """

    name: str
    name_tag: str = ""
    nkey: str = ""
    limits: ConnectionLimits = ConnectionLimits()
    jetstream: AccountLimits | None = None
    tiers: dict[str, AccountLimits] = msgspec.field(default_factory=dict)
    exports: tuple[ExportConfig, ...] = ()
    imports: tuple[ImportConfig, ...] = ()
    default_permissions: PermissionRules | None = None
    tracing: TraceConfig = TraceConfig()


class JetStreamConfig(_Config, frozen=True, kw_only=True):
    """Where streams are kept and how much all accounts together may store; -1 for what the machine has."""

    domain: Annotated[str, Option(flag=SAME, help="the JetStream domain", fixed=SAME)] = ""
    store_dir: Annotated[
        str, Option("store_dir storedir", flag="sd store_dir", help="folder for the stores of accounts")
    ] = ""
    max_memory_store: Annotated[int, Option("max_memory_store max_mem_store max_mem")] = -1
    max_file_store: Annotated[int, Option("max_file_store max_file")] = -1
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)
    max_request_batch: int = 0
    duplicate_window: float = 0.0


class TlsConfig(_Config, frozen=True, kw_only=True):
    """Certificates of the server and demands on those of clients.

    ``handshake_first`` is whether the server waits for the client's handshake before INFO: always (True), never
    (False), or, with a number, if it begins within so many seconds. To a hub, whatever is not False begins at once.
    """

    cert_file: Annotated[str, Option(flag="tlscert", help="certificate of the server")] = ""
    key_file: Annotated[str, Option(flag="tlskey", help="private key of the certificate")] = ""
    verify: Annotated[bool, Option(flag="tlsverify", help="enable TLS, and demand certificates of clients")] = False
    ca_file: Annotated[str, Option(flag="tlscacert", help="certificates that sign those of clients")] = ""
    verify_and_map: Annotated[bool, Option(fixed=SAME)] = False
    timeout: Annotated[float, Option()] = 2.0
    handshake_first: bool | float = False
    min_version: Annotated[Literal["1.2", "1.3"], Option(kind="text")] = "1.2"


class AuthorizationConfig(_Config, frozen=True, kw_only=True):
    """Who may connect if no account names its users: one user, a token, or several users.

    ``timeout`` is how many seconds a client has to authenticate.
    """

    user: Annotated[str, Option("user username", flag=SAME, help="user that clients must give")] = ""
    password: Annotated[str, Option("pass password", flag="pass", help="password that clients must give")] = ""
    token: Annotated[str, Option(flag="auth", help="token that clients must give")] = ""
    users: tuple[UserConfig, ...] = ()
    default_permissions: PermissionRules | None = None
    timeout: Annotated[float, Option()] = 2.0


_IN_CONNECT: Final = "credentials are in the CONNECT of a client"
ResolverKind = Literal["memory", "full", "cache"]


class OperatorConfig(_Config, frozen=True, kw_only=True):
    """Operator mode: accounts and users prove themselves by JWTs.

    ``operators`` are the operators' JWTs, ``trusted_keys`` public keys that are trusted besides; ``accounts`` are the
    JWTs of accounts by their public keys, ``stored`` those in the resolver's ``folder``, which count if they are newer.
    A ``resolver`` of type ``cache`` takes only JWTs of accounts that it has; ``memory`` has no folder.
    With ``allow_delete`` operators may delete accounts there; with ``hard_delete`` nothing is kept of them.
    """

    operators: tuple[str, ...] = ()
    trusted_keys: frozenset[str] = frozenset()
    accounts: dict[str, str] = msgspec.field(default_factory=dict)
    resolver: ResolverKind = "memory"
    folder: Annotated[str, Option("dir")] = ""
    allow_delete: Annotated[bool, Option()] = False
    hard_delete: Annotated[bool, Option()] = False
    stored: dict[str, str] = msgspec.field(default_factory=dict)
    default_sentinel: str = ""


class WebSocketConfig(_Config, frozen=True, kw_only=True):
    """The listener for WebSocket clients. A ``port`` of 0 is none."""

    host: Annotated[str, Option("host net")] = ""
    port: Annotated[int, Option(flag="websocket_port", help="port for WebSocket clients")] = 0
    advertise: Annotated[str, Option()] = ""
    no_tls: Annotated[bool, Option()] = False
    tls: TlsConfig | None = None
    same_origin: Annotated[bool, Option()] = False
    allowed_origins: Annotated[
        tuple[str, ...], Option("allowed_origins allowed_origin allow_origins allow_origin")
    ] = ()
    handshake_timeout: Annotated[float, Option()] = 2.0
    compression: Annotated[bool, Option("compression compress")] = False
    jwt_cookie: Annotated[str, Option(not_yet=_IN_CONNECT)] = ""
    user_cookie: Annotated[str, Option(not_yet=_IN_CONNECT)] = ""
    pass_cookie: Annotated[str, Option(not_yet=_IN_CONNECT)] = ""
    token_cookie: Annotated[str, Option(not_yet=_IN_CONNECT)] = ""
    no_auth_user: Annotated[str, Option()] = ""
    ping_interval: Annotated[float, Option(not_yet="it is that of all clients")] = 0.0
    headers: Annotated[dict[str, str], Option(not_yet="answers have no headers of yours")] = msgspec.field(
        default_factory=dict
    )
    authorization: AuthorizationConfig | None = None


class LeafRemoteConfig(_Config, frozen=True, kw_only=True):
    """A hub, by any of its ``urls``, whose leaf node an account is.

    ``credentials`` is a file with a user's JWT and seed, ``nkey`` a seed or a file with one. The hub sends nothing on
    the subjects of ``deny_imports``, and gets nothing on those of ``deny_exports``. ``reconnect`` is seconds.
    """

    urls: Annotated[tuple[str, ...], Option("urls url")] = ()
    account: Annotated[str, Option("account local")] = GLOBAL_ACCOUNT
    credentials: Annotated[str, Option("credentials creds")] = ""
    nkey: Annotated[str, Option("nkey seed")] = ""
    deny_imports: Annotated[tuple[str, ...], Option("deny_imports deny_import")] = ()
    deny_exports: Annotated[tuple[str, ...], Option("deny_exports deny_export")] = ()
    tls: TlsConfig | None = None
    reconnect: float = 1.0


class LeafNodesConfig(_Config, frozen=True, kw_only=True):
    """The hubs whose leaf node the server is; ``url`` and ``credentials`` are those of the command line."""

    url: Annotated[str, Option("", flag="leaf", help="hub whose leaf node this server is: nats://HOST:7422")] = ""
    credentials: Annotated[str, Option("", flag="creds", help="credentials for the hub")] = ""
    reconnect: Annotated[float, Option("reconnect reconnect_delay reconnect_interval", zero_is_default=True)] = 1.0
    remotes: Annotated[tuple[LeafRemoteConfig, ...], Option("", kind="texts", fixed=SAME)] = ()


class ServerConfig(_Config, frozen=True, kw_only=True):
    """All settings of a server. ``port`` is -1 for any free one, ``http_port`` 0 for no monitoring.

    Unlike nats-server, it listens on this machine only, unless ``host`` says otherwise: a store has no users at first.

    ``max_control_line`` and ``max_pending`` are bytes of a protocol line and of unsent output for a client.
    """

    host: Annotated[
        str, Option("host net", flag="a addr net host", help="address to listen on", fixed="host listen")
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Option(
            flag="p port", help="port for clients; -1 for any that is free", fixed="port listen", zero_is_default=True
        ),
    ] = DEFAULT_PORT
    unix_socket: Annotated[str, Option(flag="unix unix_socket", help="Unix socket to listen on", fixed=SAME)] = ""
    server_name: Annotated[str, Option(flag="n name server_name", help="name of the server", fixed=SAME)] = ""
    client_advertise: Annotated[str, Option(flag=SAME, help="address that clients are told")] = ""
    server_tags: Annotated[tuple[str, ...], Option()] = ()
    server_metadata: Annotated[dict[str, str], Option()] = msgspec.field(default_factory=dict)
    pid_file: Annotated[str, Option("pid_file pidfile", flag="P pid", help="file for the process id")] = ""
    ports_file_dir: Annotated[str, Option(flag=SAME, help="folder for a file with the ports")] = ""

    max_payload: Annotated[
        int, Option(flag=SAME, help="the largest message (1MB)", kind="size", zero_is_default=True)
    ] = _MIB
    max_pending: Annotated[
        int, Option(flag=SAME, help="what may wait for a client (64MB)", kind="size", fixed=SAME, zero_is_default=True)
    ] = 64 * _MIB
    max_connections: Annotated[
        int, Option("max_connections max_conn", flag=SAME, help="how many clients (65536)", zero_is_default=True)
    ] = 65_536
    max_subscriptions: Annotated[int, Option("max_subscriptions max_subs", fixed=SAME)] = -1
    max_subscription_tokens: Annotated[
        int, Option("max_subscription_tokens max_sub_tokens", not_yet="subjects may have any number of tokens")
    ] = 0
    max_control_line: Annotated[int, Option(zero_is_default=True)] = 4096
    write_deadline: Annotated[float, Option(zero_is_default=True)] = 10.0
    ping_interval: Annotated[
        float, Option(flag=SAME, help="how often a silent client is asked (2m)", zero_is_default=True)
    ] = 120.0
    ping_max: Annotated[int, Option(zero_is_default=True)] = 2
    lame_duck_duration: Annotated[float, Option(flag=SAME, help="how long clients are let go (2m)", fixed=SAME)] = 120.0
    lame_duck_grace_period: Annotated[float, Option(flag=SAME, help="before the first is let go (10s)", fixed=SAME)] = (
        10.0
    )
    max_closed_clients: Annotated[int, Option(fixed=SAME)] = 1000
    no_header_support: Annotated[bool, Option(not_yet="clients always may send headers")] = False

    sync: Annotated[
        str, Option(keys="", flag=SAME, help="commit, interval or off: what an acknowledgement promises (commit)")
    ] = ""
    key_file: Annotated[str, Option(keys="", flag="key-file key_file", help="the key of an encrypted store")] = ""

    websocket: WebSocketConfig | None = None
    http_host: Annotated[str, Option(keys="", fixed="http")] = ""
    http_port: Annotated[
        int, Option("http_port monitor_port", flag="m http_port", help="port for monitoring", fixed="http_port http")
    ] = 0
    https_port: Annotated[
        int,
        Option(
            flag="ms https_port",
            help="port for monitoring with TLS",
            not_yet="reports are told over HTTP without TLS, with http_port",
        ),
    ] = 0
    http_base_path: Annotated[str, Option(not_yet="reports are at the root")] = ""

    jetstream: Annotated[
        JetStreamConfig | None, Option(keys="", flag="js jetstream", help="enable JetStream", kind="flag")
    ] = None
    default_js_domain: Annotated[
        dict[str, str], Option(not_yet="give the domain of this server with jetstream { domain: NAME }")
    ] = msgspec.field(default_factory=dict)
    leafnodes: LeafNodesConfig | None = None
    authorization: AuthorizationConfig = AuthorizationConfig()
    accounts: tuple[AccountConfig, ...] = ()
    users: tuple[UserConfig, ...] = ()
    no_auth_user: Annotated[str, Option(fixed=SAME)] = ""
    operator: OperatorConfig | None = None
    system_account: Annotated[str, Option("system_account system", fixed=SAME)] = ""
    no_system_account: Annotated[bool, Option("no_system_account no_system no_sys_acc", fixed=SAME)] = False
    tls: Annotated[TlsConfig | None, Option(keys="", flag=SAME, help="enable TLS", kind="flag")] = None
    allow_non_tls: Annotated[bool, Option(not_yet="with TLS, all clients use it")] = False


BLOCKS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "websocket": WebSocketConfig,
    "jetstream": JetStreamConfig,
    "leafnodes": LeafNodesConfig,
    "authorization": AuthorizationConfig,
    "tls": TlsConfig,
}
"""The blocks whose options have flags, or cannot change, by their fields of :class:`ServerConfig`."""


def _options() -> Iterator[tuple[str, Option]]:
    outer = options_of(ServerConfig)
    for field in ServerConfig.__struct_fields__:
        if field in outer:
            yield field, outer[field]
        if field in BLOCKS:
            yield from ((f"{field}.{name}", option) for name, option in options_of(BLOCKS[field]).items())


OPTIONS: Final[Mapping[str, Option]] = dict(_options())
"""The options of a server and its blocks by their paths, such as ``tls.verify``."""

COMMAND_OPTIONS: Final[Mapping[str, Option]] = {
    "config": Option("", flag="c config", help="configuration file", kind="text"),
    "check": Option("", flag="t check", help="check the configuration, and exit", kind="flag"),
    "json": Option("", flag="json", help="write the addresses as JSON, once it listens", kind="flag"),
    "help": Option("", flag="h help", help="show this text", kind="flag"),
    "version": Option("", flag="v version", help="show the version", kind="flag"),
}
FLAGS: Final[Mapping[str, Option]] = {
    path: option for path, option in {**COMMAND_OPTIONS, **OPTIONS}.items() if option.flag
}
"""The options that have flags, by their paths; those of the command line itself come first."""


# --- what nats-server has and Pelton does not honour, each with the reason


def _reasons(*rows: tuple[str, str]) -> dict[str, str]:
    return {key: reason for keys, reason in rows for key in keys.split()}


_ONE_SERVER: Final = (
    "Pelton serves one file from one machine; run a NATS cluster and open it with pelton.open('nats://...')"
)
_LOG: Final = "the log goes to standard error, and is quiet by default"
_PROFILE: Final = "profile the Python process instead"
_TUNING: Final = "it tunes nats-server's own store"
_OCSP: Final = "certificates are not checked with OCSP"
_MAPPINGS: Final = "map subjects with a subject transform of a stream"
_SPOKE: Final = "a server can be a leaf node, with leafnodes { remotes: [...] }, and not yet a hub"
_DIRECT: Final = "clients connect to the server itself"

REFUSED: Final[Mapping[str, Mapping[str, str]]] = {
    "": _reasons(
        ("cluster gateway", _ONE_SERVER),
        ("mqtt", "connect MQTT devices to a NATS server"),
        ("mappings maps", _MAPPINGS),
        ("ocsp", _OCSP),
        ("proxies proxy_protocol", _DIRECT),
        ("resolver_tls resolver_pinned_accounts", "only the memory resolver is supported, with resolver_preload"),
    ),
    "authorization": _reasons(
        ("auth_callout auth_hook", "list users, or use JWTs with the memory resolver"), ("proxy_required", _DIRECT)
    ),
    "user": _reasons(("proxy_required", _DIRECT)),
    "tls": _reasons(
        (
            "cipher_suites curve_preferences allow_insecure_cipher_suites",
            "the system's OpenSSL configuration chooses them",
        ),
        ("pinned_certs", "name users by their certificates, with verify_and_map"),
        ("verify_cert_and_check_known_urls", _ONE_SERVER),
        ("connection_rate_limit insecure", "leave it out"),
        ("ocsp_peer", _OCSP),
        (
            "certs certificates cert_store cert_match cert_match_by cert_match_skip_invalid ca_certs_match",
            "use cert_file, key_file and ca_file",
        ),
    ),
    "jetstream": _reasons(
        (
            "cipher key ek encryption_key prev_key prev_ek prev_encryption_key tpm",
            "a store is encrypted with a key of its own: see the guide on encryption",
        )
    ),
    "leafnodes": _reasons(
        ("listen host net port authorization tls advertise no_advertise min_version isolate_leafnode_interest", _SPOKE),
        ("compression", "messages are not compressed yet"),
    ),
    "leafnodes.remotes": _reasons(
        ("hub", "not yet: the server it connects to is the hub"),
        ("disabled", "leave the remote out"),
        ("proxy ws_compression ws_no_masking", "leaf nodes do not connect by WebSocket yet"),
        ("jetstream_cluster_migrate", _ONE_SERVER),
        ("compression", "messages are not compressed yet"),
    ),
    "account": _reasons(("mappings maps", _MAPPINGS)),
    "export": _reasons(("latency", "latencies of services are not measured")),
}
"""By block, "" for the outermost: the keys that keep a server from starting."""

IGNORED: Final[Mapping[str, Mapping[str, str]]] = {
    "": _reasons(
        ("debug trace trace_verbose trace_headers logtime logtime_utc logfile log_file logfile_size_limit", _LOG),
        ("log_size_limit logfile_max_num log_max_num syslog remote_syslog max_traced_msg_len", _LOG),
        ("disable_sublist_cache no_sublist_cache", "the router always remembers matches"),
        ("prof_port prof_block_rate", _PROFILE),
        ("connect_error_reports reconnect_error_reports", _ONE_SERVER),
        ("no_fast_producer_stall", "producers are slowed down by their sockets alone"),
        ("ocsp_cache", _OCSP),
        ("feature_flags", "they are nats-server's own"),
        ("write_timeout", "a client that does not read is disconnected"),
    ),
    "resolver": _reasons(
        ("limit ttl interval timeout", "its folder has all accounts: none are fetched from others, or forgotten")
    ),
    "jetstream": _reasons(
        ("strict", "requests are always checked strictly"),
        ("unique_tag extension_hint max_outstanding_catchup meta_compact meta_compact_size", _ONE_SERVER),
        ("max_buffered_size max_buffered_msgs request_queue_limit info_queue_limit", _TUNING),
        ("sync_interval sync", "a message is always on disk before it is acknowledged"),
    ),
    "leafnodes.remotes": _reasons(
        ("dont_randomize no_randomize", "urls are tried in order"), ("first_info_timeout", "it is 5 s")
    ),
    "jetstream.limits": _reasons(("max_ha_assets", _ONE_SERVER), ("batch", _TUNING)),
    "account.limits": _reasons(("max_leafnodes max_leafs", _ONE_SERVER)),
    "account.jetstream": _reasons(("cluster_traffic", _ONE_SERVER)),
}
"""By block: the keys that have no effect."""

REFUSED_FLAGS: Final[Mapping[str, str]] = _reasons(
    ("routes cluster cluster_name cluster_listen cluster_advertise no_advertise connect_retries", _ONE_SERVER),
    ("sl signal", "send the signal with kill: SIGHUP reloads, SIGUSR2 is lame duck mode, SIGTERM stops"),
)
IGNORED_SWITCHES: Final = _reasons(("T logtime logtime_utc s syslog D debug V trace VV DV DVV", _LOG))
IGNORED_FLAGS: Final[Mapping[str, str]] = IGNORED_SWITCHES | _reasons(
    ("l log r remote_syslog log_size_limit max_traced_msg_len", _LOG), ("profile", _PROFILE)
)
