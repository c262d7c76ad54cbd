"""Operator mode: who a user is by its JWT, its account's, and the operator's. Pure.

Design: an operator's key, or one of its signing keys, signs accounts; an account's key, or one of its signing keys,
signs users; a user signs the server's nonce. Every link of this chain is checked at every login, the accounts' part of
it when the settings are read. A scoped signing key gives its users the permissions of its template, whatever they say.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pelton.api import ConfigError
from pelton.server.auth.identity import Credentials, LoginRefusal, ServerUser, permissions_of_rules
from pelton.server.auth.templates import TemplateError, is_well_formed, rules_of, values_of
from pelton.server.auth.tokens import (
    AccountClaims,
    OperatorClaims,
    ScopedKey,
    TimeRange,
    Token,
    TokenError,
    UserClaims,
    UserLimits,
    check_account,
    read_token,
)
from pelton.server.nkey import base64_bytes, is_signed, role_of
from pelton.server.settings.options import ConnectionLimits, OperatorConfig, PermissionRules


def is_from(address: str, networks: Sequence[str] | str | None) -> bool:
    """Whether an IP address is in one of the networks, as CIDR; in any if there are none."""
    wanted = networks.split(",") if isinstance(networks, str) else networks
    if not wanted or not any(wanted):
        return True
    try:
        here = ipaddress.ip_address(address)
        return any(here in _network(text.strip()) for text in wanted)
    except ValueError:
        return False


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return a network; an address alone, or with a mask, is none. Raises ValueError."""
    if not text.partition("/")[2].isdecimal():
        raise ValueError(text)
    return ipaddress.ip_network(text, strict=False)


def allowed_until(now: float, ranges: Sequence[TimeRange] | None, location: str) -> float | None:
    """Return until when (Unix seconds) the time of day is in one of the ranges; None if it is in none.

    Without ranges this is for ever. ``location`` names the time zone, that of the machine if it is empty.
    """
    try:
        here = datetime.fromtimestamp(now, ZoneInfo(location)) if location else datetime.fromtimestamp(now).astimezone()
        ends = [end for each in ranges or () for end in _ends(here, each)]
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return None
    return max(ends, default=None) if ranges else float("inf")


def _ends(here: datetime, each: TimeRange) -> list[float]:
    """Return the end of the range that began today or yesterday, if it has not ended."""
    start, end = (_time_of(text) for text in (each.start, each.end))
    found = []
    for day in (here.date() - timedelta(days=1), here.date()):
        begins = datetime.combine(day, start, tzinfo=here.tzinfo)
        ends = datetime.combine(day + timedelta(days=start > end), end, tzinfo=here.tzinfo)
        if begins <= here < ends:
            found.append(ends.timestamp())
    return found


def _time_of(text: str) -> time:
    """Return a time of day as JWTs write it. Raises ValueError."""
    found = time.fromisoformat(text)
    if found.isoformat() != text:
        raise ValueError(text)
    return found


_log: Final = logging.getLogger("pelton.server")
_EVERY_USER: Final = "*"


class OperatorTrust:
    """The accounts that a server's operators vouch for, and the users that those vouch for.

    Raises ConfigError if a JWT of the settings is not valid. ``system_account`` is the one that operators name,
    ``trusted`` are their keys, ``invalid`` tells why nobody is let in to some accounts.
    """

    system_account: str
    trusted: frozenset[str]

    def __init__(self, config: OperatorConfig) -> None:
        self.system_account = ""
        self._sentinel = config.default_sentinel
        self.trusted = self._trusted_keys(config)
        accounts = {key: self._account(key, text) for key, text in config.accounts.items()}
        for key, text in config.stored.items():
            try:
                token = self._account(key, text)
            except ConfigError as error:
                # As on nats-server, the others are served.
                _log.warning("%s in the resolver's folder is not served: %s", key, error)
                continue
            if key not in accounts or accounts[key].issued_at < token.issued_at:
                accounts[key] = token
        self.accounts: Mapping[str, Token[AccountClaims]] = accounts
        # As on nats-server, nobody is let in to an account that contradicts itself.
        self.invalid: Mapping[str, LoginRefusal] = {
            key: refusal for key, token in accounts.items() if (refusal := _account_refusal(token))
        }

    def _trusted_keys(self, config: OperatorConfig) -> frozenset[str]:
        trusted = set(config.trusted_keys)
        for key in trusted:
            if role_of(key) != "operator":
                raise ConfigError(f"{key!r} in trusted_keys is no public key of an operator")
        for text in config.operators:
            try:
                token = read_token(text, OperatorClaims)
            except TokenError as error:
                raise ConfigError(f"the operator's JWT is not valid: {error}") from None
            keys = set(token.nats.signing_keys or ())
            if token.iss not in keys | {token.sub}:
                raise ConfigError("the operator's JWT must be signed by the operator itself")
            trusted |= keys if token.nats.strict_signing_key_usage else keys | {token.sub}
            self.system_account = self.system_account or token.nats.system_account
        return frozenset(trusted)

    def _account(self, key: str, text: str) -> Token[AccountClaims]:
        try:
            token = read_token(text, AccountClaims)
        except TokenError as error:
            raise ConfigError(f"the JWT of account {key!r} is not valid: {error}") from None
        if token.sub != key:
            raise ConfigError(f"the JWT of account {key!r} is of {token.sub!r}")
        if token.iss not in self.trusted:
            raise ConfigError(f"the JWT of account {key!r} is not signed by a trusted operator")
        return token

    def identify(self, proof: Credentials, now: float) -> ServerUser | LoginRefusal:
        """Return who a client is by its JWT and its signature; ``now`` is Unix seconds."""
        try:
            user = read_token(proof.jwt or self._sentinel, UserClaims)
        except TokenError as error:
            return LoginRefusal(f"the user's JWT is not valid: {error}")
        claims = user.nats
        account = self.accounts.get(claims.issuer_account or user.iss)
        if account is None:
            return LoginRefusal(f"the account {claims.issuer_account or user.iss!r} is not known")
        if refusal := self.invalid.get(account.sub):
            return refusal
        keys = _signing_keys(account)
        if user.iss != account.sub and user.iss not in keys:
            return LoginRefusal(f"{user.iss!r} does not sign users of account {account.sub!r}")
        if refusal := _time_refusal(user, account, now):
            return refusal
        scope = keys.get(user.iss)
        if scope is not None and not _is_bare(claims):
            return LoginRefusal("a user of a scoped signing key cannot have permissions of its own")
        if not is_well_formed(claims):
            return LoginRefusal("a permission of the user's JWT is no subject")
        limits = claims if scope is None else scope.template
        refusal = _proof_refusal(proof, user, limits, account.nats.limits.disallow_bearer)
        return refusal or self._identity(proof, user, limits, account, now)

    def _identity(
        self, proof: Credentials, user: Token[UserClaims], limits: UserLimits, account: Token[AccountClaims], now: float
    ) -> ServerUser | LoginRefusal:
        until = allowed_until(now, limits.times, limits.times_location)
        if until is None:
            return LoginRefusal("the user may not connect at this time of day")
        scoped = limits is not user.nats
        try:
            rules = self._rules(user, limits, account, scoped=scoped)
        except TemplateError as error:
            return LoginRefusal(str(error))
        ends = [until, user.expires or until, account.expires or until]
        return ServerUser(
            name=user.name or user.sub,
            account=account.sub,
            permissions=permissions_of_rules(rules),
            limits=ConnectionLimits(max_subscriptions=limits.subs, max_payload=limits.payload),
            expires=None if min(ends) == float("inf") else min(ends),
            issued_at=user.issued_at,
        )

    def _rules(
        self, user: Token[UserClaims], limits: UserLimits, account: Token[AccountClaims], *, scoped: bool
    ) -> PermissionRules | None:
        if not scoped:
            return rules_of(limits) or rules_of(account.nats.default_permissions)
        about = (account.name, account.sub, account.nats.tags or ())
        return rules_of(limits, values_of(user.name, user.sub, user.nats.tags or (), about))


def _account_refusal(account: Token[AccountClaims]) -> LoginRefusal | None:
    try:
        check_account(account)
    except TokenError as error:
        return LoginRefusal(f"the account {account.sub!r} is not valid: {error}")
    return None


def _signing_keys(account: Token[AccountClaims]) -> dict[str, ScopedKey | None]:
    """Return the account's signing keys, with their scopes."""
    found: dict[str, ScopedKey | None] = {}
    for key in account.nats.signing_keys or ():
        if isinstance(key, ScopedKey):
            found[key.key] = key
        else:
            found[key] = None
    return found


def _is_bare(claims: UserClaims) -> bool:
    """Whether a user's JWT leaves everything to the template of its signing key."""
    # Every restriction counts, and a list that is there but empty does, as on the server.
    own = {name: getattr(claims, name) for name in UserLimits.__struct_fields__}
    return UserLimits(**own) == UserLimits(subs=0, data=0, payload=0)


def _time_refusal(user: Token[UserClaims], account: Token[AccountClaims], now: float) -> LoginRefusal | None:
    if not account.is_valid_at(now):
        return LoginRefusal("the account's JWT has expired")
    if not user.is_valid_at(now):
        return LoginRefusal("the user's JWT has expired")
    if is_revoked(account, user.sub, user.issued_at):
        return LoginRefusal("the user was revoked")
    return None


def is_revoked(account: Token[AccountClaims], user: str, issued_at: int) -> bool:
    """Whether an account has revoked a user's JWTs that were issued up to then."""
    revoked = account.nats.revocations or {}
    return any(revoked[key] >= issued_at for key in (user, _EVERY_USER) if key in revoked)


def _proof_refusal(
    proof: Credentials, user: Token[UserClaims], limits: UserLimits, disallow_bearer: bool
) -> LoginRefusal | None:
    kinds = {kind.upper() for kind in limits.allowed_connection_types or ()}
    if kinds and proof.kind not in kinds:
        return LoginRefusal(f"the user may not connect by {proof.kind}")
    if limits.proxy_required:
        return LoginRefusal("the user may connect through a proxy only")
    if not is_from(proof.address, limits.src):
        return LoginRefusal(f"the user may not connect from {proof.address!r}")
    if limits.bearer_token:
        return LoginRefusal("the account does not allow bearer tokens") if disallow_bearer else None
    signature = base64_bytes(proof.signature)
    if not signature or not is_signed(user.sub, proof.nonce.encode(), signature):
        return LoginRefusal("the nonce is not signed by the user")
    return None
