"""NATS's JWTs: reads them, and checks their signatures and times. Pure.

They are signed with ed25519 nkeys (``alg: ed25519-nkey``), which JWT libraries do not know. The issuer's public key is
in the token itself: a good signature says who issued it, and whether that issuer counts is for the caller to decide.
In version 1, the kind of a claim, a user's account and tags stand beside what it says, the header is not signed, and a
user has no limit where it says none.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from pelton.api.json_values import UNREADABLE
from pelton.server.auth.claims import (
    AccountClaims,
    ActivationClaims,
    FirstUserClaims,
    GenericClaims,
    OperatorClaims,
    UserClaims,
)
from pelton.server.nkey import base64_bytes, is_signed, role_of

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
        token = _decoded(body, kind)
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


def _decoded(body: bytes, kind: type[Claims]) -> Token[Claims]:
    token: Token[Claims] = msgspec.json.decode(body, type=Token[kind])  # type: ignore[valid-type]
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
