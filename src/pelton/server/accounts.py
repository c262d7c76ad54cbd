"""The accounts of a server, from its settings or from JWTs, and those that an operator changes while it runs. Pure.

**The accounts of operator mode, in the folder of a resolver or in memory, which change while the server runs.** The
folder is what counts. A change is made there, and then the settings are read again, as by SIGHUP; if they are not valid
with it, the folder gets back what it had, so that the server also starts from it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pelton.api import AccountLimits, PeltonError
from pelton.server.settings.load import permits
from pelton.server.settings.options import (
    GLOBAL_ACCOUNT,
    SINGLE_TIER,
    SYSTEM_ACCOUNT,
    AccountConfig,
    ConnectionLimits,
    ExportConfig,
    ImportConfig,
    OperatorConfig,
    ResolverKind,
    ResponseType,
    ServerConfig,
    TraceConfig,
)
from pelton.server.tokens import (
    AccountClaims,
    ExportClaims,
    GenericClaims,
    ImportClaims,
    StreamLimitClaims,
    Token,
    TokenError,
    TraceClaims,
    UserClaims,
    activation_of,
    check_account,
    read_token,
)
from pelton.server.users import OperatorTrust, rules_of
from pelton.wire.protocol import role_of

_PIECES: Final = 3


class ResolverError(Exception):
    """A JWT that the resolver does not take; the text is nats-server's."""


class AccountResolver:
    """The JWTs in a folder, and those of the settings; ``trusted`` are the operators' keys.

    ``system_account`` is never deleted. Without a folder, JWTs are kept in ``memory``. ``apply`` reads the settings
    again; it raises PeltonError.
    """

    def __init__(
        self,
        config: OperatorConfig,
        trusted: frozenset[str],
        system_account: str,
        memory: dict[str, str],
        apply: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._folder = Path(config.folder)
        self._trusted = trusted
        self._system_account = system_account
        self._memory = memory
        self.kind: ResolverKind = config.resolver
        self._apply = apply

    def keys(self, now: float) -> list[str]:
        """Return the accounts whose JWTs have not expired; ``now`` is Unix seconds."""
        keys = {path.stem for path in self._folder.glob("*.jwt")} | self._config.accounts.keys()
        tokens = [_account_token(self.lookup(key)) for key in sorted(keys)]
        return [token.sub for token in tokens if token is not None and not token.is_expired(now)]

    def lookup(self, key: str) -> str:
        preloaded = self._config.accounts.get(key, "")
        stored = self._stored_token(key) or preloaded
        return preloaded if preloaded and _issued_at(stored) <= _issued_at(preloaded) else stored

    def _stored_token(self, key: str) -> str:
        if role_of(key) != "account":
            return ""
        if self.kind == "memory":
            return self._memory.get(key, "")
        with suppress(OSError, UnicodeDecodeError):
            return self._path(key).read_text("utf-8").strip()
        return ""

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.jwt"

    async def update(self, text: str, key: str, now: float) -> tuple[str, bool]:
        """Keep an account's JWT, in the place of another one; return its key, and whether it was kept.

        The key must be ``key`` if that is given. Raises ResolverError, PeltonError.
        """
        token = _check_token(text)
        if key not in ("", token.sub):
            raise ResolverError("subject does not match jwt content")
        if self.kind != "full" and not self.lookup(token.sub):
            return token.sub, False
        invalid = _invalid(token)
        if self.kind == "memory" and (token.iss not in self._trusted or not token.is_valid_at(now) or invalid):
            raise ResolverError("account validation failed")
        if token.iss not in self._trusted:
            # nats-server keeps it, in the place of one that was good.
            raise ResolverError("it is not signed by a trusted operator")
        if invalid:
            raise ResolverError(invalid)
        before = self._stored_token(token.sub)
        self._write(token.sub, text)
        try:
            await self._apply()
        except PeltonError:
            self._write(token.sub, before)
            raise
        return token.sub, True

    def _write(self, key: str, text: str) -> None:
        """Write a file so that it is there whole; without a text, remove it."""
        if self.kind == "memory":
            self._memory[key] = text
            if not text:
                del self._memory[key]
            return
        path = self._path(key)
        if not text:
            path.unlink(missing_ok=True)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    async def delete(self, text: str) -> tuple[str, int]:
        """Delete the accounts that a JWT of an operator names; return whose it is, and how many they are.

        Raises ResolverError, whose first argument is who asks, PeltonError.
        """
        try:
            token = read_token(text, GenericClaims)
        except TokenError as error:
            raise ResolverError("", _text_of(text, error)) from None
        if self.kind == "full" and not self._config.allow_delete:
            raise ResolverError(token.sub, "delete must be enabled in server config")
        if token.iss != token.sub or token.iss not in self._trusted:
            raise ResolverError(token.sub, "not trusted")
        keys = token.nats.accounts
        if keys is None or any(role_of(key) != "account" for key in keys):
            raise ResolverError(token.sub, "malformed request")
        if self._system_account in keys:
            raise ResolverError(token.sub, "not allowed to delete system account")
        if preloaded := self._config.accounts.keys() & set(keys):
            raise ResolverError(token.sub, f"resolver_preload has {', '.join(sorted(preloaded))}")
        await self._remove(keys)
        return token.sub, len(keys)

    async def _remove(self, keys: Iterable[str]) -> None:
        before = {key: self._stored_token(key) for key in keys}
        for key, text in before.items():
            if text and not self._config.hard_delete:
                self._path(key).replace(self._path(key).with_suffix(".jwt.deleted"))
            else:
                self._write(key, "")
        try:
            await self._apply()
        except PeltonError:
            for key, text in before.items():
                self._write(key, text)
            raise


def _account_token(text: str) -> Token[AccountClaims] | None:
    try:
        return read_token(text, AccountClaims)
    except TokenError:
        return None


def _issued_at(text: str) -> int:
    token = _account_token(text)
    return -1 if token is None else token.issued_at


def _invalid(token: Token[AccountClaims]) -> str:
    """Return why an account would not be served, "" if it would be."""
    try:
        check_account(token)
    except TokenError as error:
        return str(error)
    return ""


def _check_token(text: str) -> Token[AccountClaims]:
    try:
        return read_token(text, AccountClaims)
    except TokenError as error:
        with suppress(TokenError):
            read_token(text, UserClaims)
            raise ResolverError("not account claim") from None
        raise ResolverError(_text_of(text, error)) from None


def _text_of(text: str, error: TokenError) -> str:
    return str(error) if len(text.split(".")) == _PIECES else f"expected {_PIECES} chunks"


# --- the accounts of a server, of its configuration or of an operator's JWTs, and what they may use. Pure

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
