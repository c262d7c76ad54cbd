"""NATS's JWTs: what they say, their signatures and times, and whether an account contradicts itself. Pure.

**NATS's JWTs: reads them, and checks their signatures and times. Pure.** They are signed with ed25519 nkeys (``alg:
ed25519-nkey``), which JWT libraries do not know. The issuer's public key is in the token itself: a good signature says
who issued it, and whether that issuer counts is for the caller to decide. In version 1, the kind of a claim, a user's
account and tags stand beside what it says, the header is not signed, and a user has no limit where it says none.
"""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from pelton.api.json_values import UNREADABLE
from pelton.subjects import clash_within, is_filter, is_subset
from pelton.wire.protocol import base64_bytes, is_signed, role_of

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


Claims = TypeVar("Claims", UserClaims, AccountClaims, OperatorClaims, ActivationClaims, GenericClaims)

_ALGORITHM: Final = "ed25519-nkey"
_ALGORITHMS: Final = frozenset({_ALGORITHM, "ed25519"})
_VERSION: Final = 2
_LONGEST: Final = 1 << 20
# Who may issue a claim, and who it may be about.
_ISSUERS: Final = {"operator": "operator", "account": "operator", "user": "account", "activation": "account"}
_SUBJECTS: Final = {"operator": "operator", "account": "account", "user": "user", "activation": "account"}


class TokenError(ValueError):
    """A text that is no JWT of NATS, or is not signed by its issuer."""


class _Header(msgspec.Struct):
    typ: str
    alg: str


class Token(msgspec.Struct, Generic[Claims], frozen=True, kw_only=True):
    """A signed claim: who issued it (``iss``), about whom (``sub``), when (Unix seconds), and what it says.

    ``expires`` and ``not_before`` are 0 for no such time. A claim of version 1 has a ``type`` of its own.
    """

    iss: str
    sub: str
    name: str = ""
    issued_at: int = msgspec.field(default=0, name="iat")
    expires: int = msgspec.field(default=0, name="exp")
    not_before: int = msgspec.field(default=0, name="nbf")
    type: str = ""
    issuer_account: str = ""
    tags: tuple[str, ...] | None = None
    nats: Claims

    def is_expired(self, now: float) -> bool:
        """Whether its time is over."""
        return bool(self.expires) and self.expires <= now

    def is_valid_at(self, now: float) -> bool:
        """Whether its time has come, and is not over."""
        return self.not_before <= now and not self.is_expired(now)


def read_token(text: str, kind: type[Claims]) -> Token[Claims]:
    """Return a token whose claims are of this kind, and whose issuer signed it. Raises TokenError."""
    pieces = text.strip().split(".")
    if len(pieces) != 3 or len(text) > _LONGEST:
        raise TokenError("a JWT has three parts")
    header, body, signature = (base64_bytes(piece) for piece in pieces)
    if header is None or body is None or signature is None:
        raise TokenError("the parts of a JWT are base64")
    try:
        said = msgspec.json.decode(header, type=_Header)
        token = _decode_token(body, kind)
    except UNREADABLE as error:
        raise TokenError(f"it is no JWT of NATS: {error}") from None
    if said.typ.upper() != "JWT" or said.alg.lower() not in _ALGORITHMS:
        raise TokenError(f"its algorithm must be {_ALGORITHM}")
    claims = token.nats
    if (token.type or claims.type) != kind().type or (not token.type and claims.version != _VERSION):
        raise TokenError(f"it must be of an {kind().type}, in version 1 or {_VERSION}")
    # Anybody may issue a generic claim, about whom he wants.
    kinds = (_SUBJECTS.get(claims.type), _ISSUERS.get(claims.type))
    if any(kinds) and (role_of(token.sub), role_of(token.iss)) != kinds:
        raise TokenError("its issuer or subject is of the wrong kind")
    signed = pieces[1] if token.type else f"{pieces[0]}.{pieces[1]}"
    if not is_signed(token.iss, signed.encode(), signature):
        raise TokenError("its signature is not its issuer's")
    return token


def _decode_token(body: bytes, kind: type[Claims]) -> Token[Claims]:
    token: Token[Claims] = msgspec.json.decode(body, type=Token[kind])  # type: ignore[valid-type]  # the type is a value here
    if not token.type:
        return token
    if kind is UserClaims:
        first = msgspec.json.decode(body, type=Token[FirstUserClaims])
        # Kinds of connections are none of its fields.
        said = {"issuer_account": token.issuer_account, "tags": token.tags, "allowed_connection_types": None}
        claims = replace(first.nats, **said)
        return replace(token, nats=claims)
    if kind is ActivationClaims:
        said = {"kind": token.nats.type, "type": token.type, "issuer_account": token.issuer_account}
        return replace(token, nats=replace(token.nats, **said))
    return replace(token, nats=replace(token.nats, tags=token.tags)) if kind is AccountClaims else token


# --- whether what an account exports and imports is valid: if not, nobody is let in to it. Pure


def activation_of(claims: ImportClaims, importer: str) -> Token[ActivationClaims]:
    """Return the JWT with which an account lets another one import something; its time may be over.

    Raises TokenError if it is not for this import.
    """
    token = read_token(claims.token, ActivationClaims)
    subject = claims.to if claims.type == "service" and claims.to else claims.subject
    if claims.account not in (token.iss, token.nats.issuer_account):
        raise TokenError("it is not of the account that is imported from")
    if token.sub != importer:
        raise TokenError("it is for another account")
    if token.nats.kind != claims.type or not is_subset(subject, token.nats.subject):
        raise TokenError("it is for another subject")
    return token


def check_account(account: Token[AccountClaims]) -> None:
    """Raise TokenError if an account contradicts itself: as on nats-server, it is then not served."""
    exports, imports, limits = account.nats.exports or (), account.nats.imports or (), account.nats.limits
    if 0 <= limits.exports < len(exports) or 0 <= limits.imports < len(imports):
        raise TokenError("it has more exports or imports than its limits allow")
    for each in imports:
        _check_import(each, account.sub)
    services = [each.to or each.local_subject or each.subject for each in imports if each.type == "service"]
    for subjects in (
        services,
        [each.subject for each in exports if each.type == "service"],
        [each.subject for each in exports if each.type == "stream"],
    ):
        if wrong := next((subject for subject in subjects if not is_filter(subject)), None):
            raise TokenError(f"{wrong!r} is no subject")
        if clash_within(subjects):
            raise TokenError(f"of the subjects {', '.join(sorted(subjects))} two overlap")


def _check_import(claims: ImportClaims, importer: str) -> None:
    subjects = [claims.subject, *filter(None, (claims.to, claims.local_subject))]
    if not claims.account or not all(map(is_filter, subjects)):
        raise TokenError(f"its import {claims.subject!r} has no account, or no subject")
    if claims.token:
        try:
            activation_of(claims, importer)
        except TokenError as error:
            raise TokenError(f"the activation of its import {claims.subject!r} is not valid: {error}") from None
