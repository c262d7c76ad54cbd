"""What a server is told: one frozen tree, whether it comes from a file or from flags. Pure data.

Durations are seconds, sizes bytes. A limit of -1 means no limit, unless its line says otherwise. Names are those of
NATS's configuration.
"""

from __future__ import annotations

from typing import Final, Literal

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

    max_msgs: int = 1
    expires: float = 120.0


class PermissionRules(_Config, frozen=True, kw_only=True):
    """What a user may publish and subscribe to."""

    publish: AllowDeny = AllowDeny()
    subscribe: AllowDeny = AllowDeny()
    allow_responses: ResponseRules | None = None


class UserConfig(_Config, frozen=True, kw_only=True):
    """A user with a password (plain, or a bcrypt hash) or, with ``nkey``, one that signs the server's nonce.

    ``permissions`` are None for the default ones; ``connection_types`` are None for all.
    """

    name: str = ""
    password: str = ""
    nkey: str = ""
    account: str = GLOBAL_ACCOUNT
    permissions: PermissionRules | None = None
    connection_types: frozenset[str] | None = None


class ConnectionLimits(_Config, frozen=True, kw_only=True):
    """What the connections of an account, or of a user, may use."""

    max_connections: int = -1
    max_subscriptions: int = -1
    max_payload: int = -1


class ExportConfig(_Config, frozen=True, kw_only=True):
    """A subject that an account offers to others: to all, or to ``accounts``.

    ``account_token_position`` is the token, from 1, that must hold the importer's account; 0 for none.
    """

    kind: ExchangeKind
    subject: str
    accounts: frozenset[str] | None = None
    response_type: ResponseType = "Singleton"
    response_threshold: float = 0.0
    account_token_position: int = 0
    requires_token: bool = False
    allow_trace: bool = False


class ImportConfig(_Config, frozen=True, kw_only=True):
    """A subject of another account, and the subject under which it appears in the importing one ("" for the same).

    A service is requested at ``to`` and answered at ``subject``; a stream is published at ``subject`` and received at
    ``to``. ``token`` is the activation, a JWT, for an export that requires one.
    """

    kind: ExchangeKind
    account: str
    subject: str
    to: str = ""
    share: bool = False
    token: str = ""
    allow_trace: bool = False


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

    store_dir: str = ""
    domain: str = ""
    max_memory_store: int = -1
    max_file_store: int = -1
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)
    max_request_batch: int = 0
    duplicate_window: float = 0.0


class TlsConfig(_Config, frozen=True, kw_only=True):
    """Certificates of the server and demands on those of clients.

    ``handshake_first`` is whether the server waits for the client's handshake before INFO: always (True), never
    (False), or, with a number, if it begins within so many seconds.
    """

    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    verify: bool = False
    verify_and_map: bool = False
    timeout: float = 2.0
    handshake_first: bool | float = False
    min_version: Literal["1.2", "1.3"] = "1.2"


class AuthorizationConfig(_Config, frozen=True, kw_only=True):
    """Who may connect if no account names its users: one user, a token, or several users.

    ``timeout`` is how many seconds a client has to authenticate.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    users: tuple[UserConfig, ...] = ()
    default_permissions: PermissionRules | None = None
    timeout: float = 2.0


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
    folder: str = ""
    allow_delete: bool = False
    hard_delete: bool = False
    stored: dict[str, str] = msgspec.field(default_factory=dict)
    default_sentinel: str = ""


class WebSocketConfig(_Config, frozen=True, kw_only=True):
    """The listener for WebSocket clients. A ``port`` of 0 is none."""

    host: str = ""
    port: int = 0
    advertise: str = ""
    no_tls: bool = False
    tls: TlsConfig | None = None
    same_origin: bool = False
    allowed_origins: tuple[str, ...] = ()
    handshake_timeout: float = 2.0
    compression: bool = False
    jwt_cookie: str = ""
    user_cookie: str = ""
    pass_cookie: str = ""
    token_cookie: str = ""
    no_auth_user: str = ""
    ping_interval: float = 0.0
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    authorization: AuthorizationConfig | None = None


class ServerConfig(_Config, frozen=True, kw_only=True):
    """All settings of a server. ``port`` is -1 for any free one, ``http_port`` 0 for no monitoring.

    Unlike nats-server, it listens on this machine only, unless ``host`` says otherwise: a store has no users at first.

    ``max_control_line`` and ``max_pending`` are bytes of a protocol line and of unsent output for a client.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    unix_socket: str = ""
    server_name: str = ""
    client_advertise: str = ""
    server_tags: tuple[str, ...] = ()
    server_metadata: dict[str, str] = msgspec.field(default_factory=dict)

    max_payload: int = _MIB
    max_connections: int = 65_536
    max_subscriptions: int = -1
    max_subscription_tokens: int = 0
    max_control_line: int = 4096
    max_pending: int = 64 * _MIB
    write_deadline: float = 10.0
    ping_interval: float = 120.0
    ping_max: int = 2
    no_header_support: bool = False

    http_host: str = ""
    http_port: int = 0
    https_port: int = 0
    http_base_path: str = ""

    jetstream: JetStreamConfig | None = None
    default_js_domain: dict[str, str] = msgspec.field(default_factory=dict)
    authorization: AuthorizationConfig = AuthorizationConfig()
    accounts: tuple[AccountConfig, ...] = ()
    users: tuple[UserConfig, ...] = ()
    no_auth_user: str = ""
    operator: OperatorConfig | None = None
    system_account: str = ""
    no_system_account: bool = False
    tls: TlsConfig | None = None
    allow_non_tls: bool = False
    websocket: WebSocketConfig | None = None

    lame_duck_duration: float = 120.0
    lame_duck_grace_period: float = 10.0
    max_closed_clients: int = 1000
    pid_file: str = ""
    ports_file_dir: str = ""
