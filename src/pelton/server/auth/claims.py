"""What NATS's JWTs say of operators, accounts and users. Pure data; fields nobody reads here are left out."""

from __future__ import annotations

from typing import Literal

import msgspec

ClaimKind = Literal["operator", "account", "user", "activation", "generic"]


class SubjectPermissionClaims(msgspec.Struct, frozen=True):
    """Subjects that are allowed, none for all, and denied."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None


class ResponseClaims(msgspec.Struct, frozen=True):
    """How many answers, and for how many nanoseconds."""

    max: int = 0
    ttl: int = 0


class PermissionClaims(msgspec.Struct, frozen=True):
    """Permissions, as an account's default or of a scoped signing key."""

    pub: SubjectPermissionClaims = SubjectPermissionClaims()
    sub: SubjectPermissionClaims = SubjectPermissionClaims()
    resp: ResponseClaims | None = None


class TimeRange(msgspec.Struct, frozen=True):
    """A time of day, ``HH:MM:SS`` to ``HH:MM:SS``; the end may be on the next day."""

    start: str
    end: str


class UserLimits(PermissionClaims, frozen=True):
    """What a user may do and use, in its own JWT or in the template of a scoped signing key."""

    # As on the server, a limit that is not there is 0.
    subs: int = 0
    data: int = 0
    payload: int = 0
    src: tuple[str, ...] | str | None = None
    times: tuple[TimeRange, ...] | None = None
    times_location: str = ""
    bearer_token: bool = False
    allowed_connection_types: tuple[str, ...] | None = None
    proxy_required: bool = False


class UserClaims(UserLimits, frozen=True):
    """A user; ``issuer_account`` is its account if a signing key issued it."""

    type: ClaimKind = "user"
    version: int = 0
    issuer_account: str = ""
    tags: tuple[str, ...] | None = None


class FirstUserClaims(UserClaims, frozen=True):
    """A user in version 1, in which a limit that is not there is none."""

    subs: int = -1
    data: int = -1
    payload: int = -1


class ScopedKey(msgspec.Struct, frozen=True):
    """A signing key whose users have the template's permissions."""

    key: str
    kind: str = "user_scope"
    role: str = ""
    template: UserLimits = UserLimits()


class ExportClaims(msgspec.Struct, frozen=True):
    """A subject offered to other accounts; ``response_threshold`` is nanoseconds."""

    subject: str
    type: Literal["stream", "service"]
    token_req: bool = False
    revocations: dict[str, int] | None = None
    response_type: str = ""
    response_threshold: int = 0
    account_token_position: int = 0
    allow_trace: bool = False


class ImportClaims(msgspec.Struct, frozen=True):
    """A subject of another account. ``local_subject`` is where it appears; ``to`` is its older spelling."""

    subject: str
    account: str
    type: Literal["stream", "service"]
    token: str = ""
    to: str = ""
    local_subject: str = ""
    share: bool = False
    allow_trace: bool = False


class TraceClaims(msgspec.Struct, frozen=True):
    """Where messages with a ``traceparent`` are traced to, and how many in a hundred; 0 for all."""

    dest: str = ""
    sampling: int = 0


class StreamLimitClaims(msgspec.Struct, frozen=True):
    """What an account may store; 0 bytes of both kinds is no JetStream."""

    # As on the server, a limit that is not there is 0: nothing, or of the last five any number.
    mem_storage: int = 0
    disk_storage: int = 0
    streams: int = 0
    consumer: int = 0
    max_ack_pending: int = 0
    mem_max_stream_bytes: int = 0
    disk_max_stream_bytes: int = 0
    max_bytes_required: bool = False


class AccountLimitClaims(StreamLimitClaims, frozen=True):
    """What the connections of an account may use, and what it may store."""

    subs: int = 0
    payload: int = 0
    conn: int = 0
    exports: int = 0
    imports: int = 0
    disallow_bearer: bool = False
    tiered_limits: dict[str, StreamLimitClaims] | None = None


class AccountClaims(msgspec.Struct, frozen=True):
    """An account: its limits, keys, revoked users by public key (or ``*``) and time, exports and imports."""

    type: ClaimKind = "account"
    version: int = 0
    limits: AccountLimitClaims = AccountLimitClaims()
    signing_keys: tuple[str | ScopedKey, ...] | None = None
    revocations: dict[str, int] | None = None
    default_permissions: PermissionClaims = PermissionClaims()
    exports: tuple[ExportClaims, ...] | None = None
    imports: tuple[ImportClaims, ...] | None = None
    tags: tuple[str, ...] | None = None
    trace: TraceClaims | None = None


class OperatorClaims(msgspec.Struct, frozen=True):
    """An operator: its signing keys, and the account of the system."""

    type: ClaimKind = "operator"
    version: int = 0
    signing_keys: tuple[str, ...] | None = None
    system_account: str = ""
    strict_signing_key_usage: bool = False


class ActivationClaims(msgspec.Struct, frozen=True):
    """Lets the account that is the token's subject import a subject; in version 1, ``type`` is the kind."""

    subject: str = ""
    kind: str = ""
    type: str = "activation"
    version: int = 0
    issuer_account: str = ""


class GenericClaims(msgspec.Struct, frozen=True):
    """What an operator asks for: ``accounts`` to delete."""

    accounts: tuple[str, ...] | None = None
    type: ClaimKind = "generic"
    version: int = 0
