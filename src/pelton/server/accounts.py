"""The accounts of a server, of its configuration or of an operator's JWTs, and what they may use. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pelton.api import AccountLimits
from pelton.server.auth.operator import OperatorTrust
from pelton.server.auth.templates import rules_of
from pelton.server.auth.tokens import (
    AccountClaims,
    ExportClaims,
    ImportClaims,
    StreamLimitClaims,
    Token,
    TokenError,
    TraceClaims,
    activation_of,
)
from pelton.server.settings.load import permits
from pelton.server.settings.options import (
    GLOBAL_ACCOUNT,
    SINGLE_TIER,
    SYSTEM_ACCOUNT,
    AccountConfig,
    ConnectionLimits,
    ExportConfig,
    ImportConfig,
    ResponseType,
    ServerConfig,
    TraceConfig,
)

_NS: Final = 1_000_000_000
_RESPONSES: Final[dict[str, ResponseType]] = {"Stream": "Stream", "Chunked": "Chunked"}


def accounts_of_server(config: ServerConfig, trust: OperatorTrust | None, now: float) -> dict[str, AccountConfig]:
    """Return all accounts by their names; ``now`` is Unix seconds, for activations.

    The global account has JetStream if the server has, unless others are configured.
    """
    if trust is not None:
        return _operator_accounts(trust, now)
    found = {account.name: account for account in config.accounts}
    others = set(found) - {GLOBAL_ACCOUNT, config.system_account or SYSTEM_ACCOUNT}
    named = {user.account for user in config.users} | {GLOBAL_ACCOUNT}
    if not config.no_system_account:
        named.add(config.system_account or SYSTEM_ACCOUNT)
    for name in sorted(named - set(found)):
        is_global = name == GLOBAL_ACCOUNT and config.jetstream is not None and not others
        found[name] = AccountConfig(name=name, jetstream=AccountLimits() if is_global else None)
    return found


def system_account_of(config: ServerConfig, trust: OperatorTrust | None) -> str:
    """Return the name of the account that may ask for reports on the server, "" for none."""
    if config.no_system_account:
        return ""
    return config.system_account or (SYSTEM_ACCOUNT if trust is None else trust.system_account)


def _operator_accounts(trust: OperatorTrust, now: float) -> dict[str, AccountConfig]:
    # An account that is not valid is there, and offers and imports nothing.
    valid = {key: token for key, token in trust.accounts.items() if key not in trust.invalid}
    return {key: _account(token, valid, now) for key, token in trust.accounts.items()}


def _account(token: Token[AccountClaims], accounts: Mapping[str, Token[AccountClaims]], now: float) -> AccountConfig:
    claims = token.nats
    limits = claims.limits
    is_valid = token.sub in accounts
    activated = [each for each in claims.imports or () if is_valid and is_activated(each, token.sub, accounts, now)]
    return AccountConfig(
        name=token.sub,
        name_tag=token.name,
        limits=ConnectionLimits(max_connections=limits.conn, max_subscriptions=limits.subs, max_payload=limits.payload),
        jetstream=_streams((limits.tiered_limits or {}).get(SINGLE_TIER, limits)),
        tiers={name: _limits_of(tier) for name, tier in (limits.tiered_limits or {}).items()},
        exports=tuple(map(_export, claims.exports or ())) if is_valid else (),
        # What is imported twice is there once.
        imports=tuple(dict.fromkeys(map(_import, activated))),
        default_permissions=rules_of(claims.default_permissions),
        tracing=_tracing(claims.trace),
    )


def _tracing(claims: TraceClaims | None) -> TraceConfig:
    if claims is None or not claims.dest:
        return TraceConfig()
    return TraceConfig(destination=claims.dest, sampling=claims.sampling or 100)


def _streams(limits: StreamLimitClaims) -> AccountLimits | None:
    return _limits_of(limits) if limits.mem_storage or limits.disk_storage else None


def _limits_of(limits: StreamLimitClaims) -> AccountLimits:
    return AccountLimits(
        max_memory=limits.mem_storage,
        max_storage=limits.disk_storage,
        max_streams=limits.streams,
        max_consumers=limits.consumer,
        max_ack_pending=limits.max_ack_pending or -1,
        memory_max_stream_bytes=limits.mem_max_stream_bytes or -1,
        storage_max_stream_bytes=limits.disk_max_stream_bytes or -1,
        max_bytes_required=limits.max_bytes_required,
    )


def _export(claims: ExportClaims) -> ExportConfig:
    return ExportConfig(
        kind=claims.type,
        subject=claims.subject,
        response_type=_RESPONSES.get(claims.response_type, "Singleton"),
        response_threshold=claims.response_threshold / _NS,
        account_token_position=claims.account_token_position,
        requires_token=claims.token_req,
        allow_trace=claims.allow_trace,
    )


def _import(claims: ImportClaims) -> ImportConfig:
    to = claims.local_subject
    if not to and claims.to:
        # The older spelling: the prefix of a stream, and for a service the exporter's subject.
        if claims.type == "service":
            return ImportConfig(
                kind="service", account=claims.account, subject=claims.to, to=claims.subject, share=claims.share
            )
        to = f"{claims.to}.{claims.subject}"
    return ImportConfig(
        kind=claims.type,
        account=claims.account,
        subject=claims.subject,
        to=to,
        share=claims.share,
        allow_trace=claims.allow_trace,
    )


def is_activated(claims: ImportClaims, importer: str, accounts: Mapping[str, Token[AccountClaims]], now: float) -> bool:
    """Whether an export permits an import: a public one, or with an activation that its account signed."""
    exporter = accounts.get(claims.account)
    if exporter is None:
        return False
    imported = _import(claims)
    for export in exporter.nats.exports or ():
        if permits(_export(export), imported, importer):
            return not export.token_req or _is_token_valid(claims, importer, exporter, export, now)
    return False


def _is_token_valid(
    claims: ImportClaims, importer: str, exporter: Token[AccountClaims], export: ExportClaims, now: float
) -> bool:
    try:
        token = activation_of(claims, importer)
    except TokenError:
        return False
    keys = {exporter.sub, *(key if isinstance(key, str) else key.key for key in exporter.nats.signing_keys or ())}
    revoked = export.revocations or {}
    return (
        token.iss in keys
        and token.is_valid_at(now)
        and not any(revoked.get(key, -1) >= token.issued_at for key in (importer, "*"))
    )


class AccountUsage:
    """How many clients an account has, and what its limits are; those but the first are for each client."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.connections = 0

    def is_full(self) -> bool:
        """Whether no client may connect any more."""
        return 0 <= self.limits.max_connections <= self.connections


def smallest_limit(*limits: int) -> int:
    """Return the smallest of limits, of which a negative one is none; -1 if there is none."""
    return min([limit for limit in limits if limit >= 0], default=-1)
