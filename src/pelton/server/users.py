"""Who may connect: the users of a configuration, and those that an operator's JWTs make. Pure.

**Operator mode: who a user is by its JWT, its account's, and the operator's. Pure.** An operator's key, or one of its
signing keys, signs accounts; an account's key, or one of its signing keys, signs users; a user signs the server's
nonce. Every link of this chain is checked at every login, the accounts' part of it when the settings are read. A scoped
signing key gives its users the permissions of its template, whatever they say.

**Who a client is, by the settings: users with passwords, tokens, nkeys, certificates, or JWTs. Pure.** The order is
nats-server's: an operator's JWTs alone if there is an operator; else an nkey, a certificate that is mapped to a user, a
user with a password, the user of those who show nothing, and the single user or token.

**Compares passwords and tokens with what is stored: plain text or a bcrypt hash. Pure, and slow for hashes.** What was
right for a hash is right again without bcrypt, as long as that hash is in the settings: a flood of wrong passwords,
which are slow, does not keep out those who have been in. Only a keyed hash of it is kept, in memory.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, time, timedelta
from itertools import product, zip_longest
from math import prod
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pelton.api import ConfigError
from pelton.server.identity import (
    Credentials,
    LoginRefusal,
    Permissions,
    ServerUser,
    permissions_of_rules,
    user_of_peer,
)
from pelton.server.settings.options import (
    AllowDeny,
    AuthorizationConfig,
    ConnectionLimits,
    OperatorConfig,
    PermissionRules,
    ResponseRules,
    ServerConfig,
    UserConfig,
    WebSocketConfig,
)
from pelton.server.tokens import (
    AccountClaims,
    OperatorClaims,
    PermissionClaims,
    ResponseClaims,
    ScopedKey,
    SubjectPermissionClaims,
    TimeRange,
    Token,
    TokenError,
    UserClaims,
    UserLimits,
    check_account,
    read_token,
)
from pelton.subjects import is_filter
from pelton.wire.protocol import base64_bytes, is_signed, role_of

_NS: Final = 1_000_000_000
_FUNCTION: Final = re.compile(r"\{\{\s*([a-z-]+)\(([^)]*)\)\s*\}\}")
_MOST: Final = 4096

# The values of each function of a template, by its name and argument: ``tag(region)`` may have several.
Values = Mapping[tuple[str, str], Sequence[str]]


class TemplateError(ValueError):
    """A template that cannot be filled with a user's values."""


def values_of(name: str, subject: str, tags: Sequence[str], account: tuple[str, str, Sequence[str]]) -> Values:
    """Return what templates may use: of the user, and of its ``account`` the name, the subject and the tags."""
    values: dict[tuple[str, str], list[str]] = {
        ("name", ""): [name],
        ("subject", ""): [subject],
        ("account-name", ""): [account[0]],
        ("account-subject", ""): [account[1]],
    }
    for function, known in (("tag", tags), ("account-tag", account[2])):
        for tag in known:
            key, _, value = tag.partition(":")
            values.setdefault((function, key.lower()), []).append(value)
    return values


def rules_of(claims: PermissionClaims, values: Values | None = None) -> PermissionRules | None:
    """Return the rules of claims, None if they say nothing; with ``values``, filled in. Raises TemplateError."""
    publish, subscribe = _rules(claims.pub, values), _rules(claims.sub, values)
    answers = _answers(claims.resp)
    if answers is not None and publish.allow is None:
        publish = AllowDeny(allow=(), deny=publish.deny)
    found = PermissionRules(publish=publish, subscribe=subscribe, allow_responses=answers)
    return None if found == PermissionRules() else found


def _rules(claims: SubjectPermissionClaims, values: Values | None) -> AllowDeny:
    allow, deny = tuple(claims.allow or ()), tuple(claims.deny or ())
    if values is None:
        return AllowDeny(allow=allow or None, deny=deny)
    # What cannot be filled in allows nothing; that it denies nothing must not be.
    allowed = _fill(allow, values, missing=lambda rule: None)
    denied = _fill(deny, values, missing=_refuse)
    return AllowDeny(allow=allowed if allow else None, deny=denied)


def _refuse(rule: str) -> None:
    raise TemplateError(f"{rule!r} cannot be filled in for this user")


def _fill(rules: Sequence[str], values: Values, missing: Callable[[str], None]) -> tuple[str, ...]:
    found = []
    for rule in rules:
        filled = _expand(rule, values)
        if not filled:
            missing(rule)
        found += filled
    return tuple(found)


def _expand(rule: str, values: Values) -> list[str]:
    """Return a rule for each combination of the values of its functions; a value is never looked at as a template."""
    # A split gives text, function and argument in turn.
    words = _FUNCTION.split(rule)
    known = [values.get((name, word.strip().lower()), ()) for name, word in zip(words[1::3], words[2::3], strict=True)]
    if prod(map(len, known)) > _MOST:
        raise TemplateError(f"{rule!r} has too many values")
    texts: list[Sequence[str]] = [(text,) for text in words[::3]]
    filled = map("".join, product(*(part for pair in zip_longest(texts, known, fillvalue=("",)) for part in pair)))
    # Values come from users' names and tags: they must not smuggle in wildcards, queues, or more tokens than one.
    shape = _shape(_FUNCTION.sub("x", rule))
    return [text for text in sorted(filled) if _is_rule(text) and _shape(text) == shape]


def _shape(rule: str) -> tuple[int, int, int]:
    """Return the numbers of a rule's tokens, words and wildcards."""
    return rule.count("."), rule.count(" "), sum(token in ("*", ">") for token in re.split(r"[. ]", rule))


def is_well_formed(claims: PermissionClaims) -> bool:
    """Whether permissions name subjects; those to subscribe may name a queue group after one."""
    return all(
        all(rule.split(" ")[0].split(".")) and rule.count(" ") <= most
        for rules, most in ((claims.pub, 0), (claims.sub, 1))
        for rule in (*(rules.allow or ()), *(rules.deny or ()))
    )


def _is_rule(text: str) -> bool:
    parts = text.split(" ")
    return len(parts) <= 2 and all(map(is_filter, parts))


def _answers(claims: ResponseClaims | None) -> ResponseRules | None:
    if claims is None:
        return None
    default = ResponseRules()
    return ResponseRules(max_msgs=claims.max or default.max_msgs, expires=claims.ttl / _NS or default.expires)


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


_BCRYPT: Final = re.compile(r"\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}", re.ASCII)
# What bcrypt looks at; the rest of a longer password is not compared, by nats-server neither.
_LONGEST: Final = 72


def is_hash(stored: str) -> bool:
    """Whether a stored password is a bcrypt hash, so that comparing takes a tenth of a second or more."""
    return _BCRYPT.fullmatch(stored) is not None


def is_password(stored: str, given: str) -> bool:
    """Whether a password is the stored one; the time it takes says nothing of a plain one's characters."""
    raw = _raw(given)
    if not is_hash(stored):
        return hmac.compare_digest(_raw(stored), raw)
    # Imported when a hash is checked, because a server without hashes does not need it.
    import bcrypt

    try:
        return bcrypt.checkpw(raw[:_LONGEST], stored.encode())
    except ValueError:
        return False


class PasswordMemory:
    """Compares as :func:`is_password` does, and remembers what was right for each hash. Threads may share it.

    ``key`` is random bytes, up to 64; without them, nothing is remembered.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._right: dict[str, bytes] = {}

    def is_slow(self, stored: str, given: str) -> bool:
        """Whether comparing takes long: with a hash for which this was not right before."""
        return is_hash(stored) and not self._knows(stored, given)

    def is_password(self, stored: str, given: str) -> bool:
        if self._knows(stored, given):
            return True
        is_right = is_password(stored, given)
        if is_right and self._key and is_hash(stored):
            self._right[stored] = self._digest(stored, given)
        return is_right

    def keep(self, stored: Collection[str]) -> PasswordMemory:
        """Return a memory of what was right for these hashes, for settings that have no others."""
        kept = PasswordMemory(self._key)
        kept._right = {each: digest for each, digest in list(self._right.items()) if each in stored}
        return kept

    def _knows(self, stored: str, given: str) -> bool:
        known = self._right.get(stored)
        return known is not None and hmac.compare_digest(known, self._digest(stored, given))

    def _digest(self, stored: str, given: str) -> bytes:
        return hashlib.blake2b(stored.encode() + _raw(given)[:_LONGEST], key=self._key).digest()


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_WEBSOCKET: Final = "WEBSOCKET"


class _DoorRules(NamedTuple):
    """How clients of one listener prove who they are; users and their rights are the same at all of them."""

    maps_certificates: bool
    single: AuthorizationConfig
    no_auth_user: str


def _websocket_rules(websocket: WebSocketConfig, main: _DoorRules) -> _DoorRules:
    """Return the rules for WebSocket clients: certificates are their own, the rest if it says any of it."""
    maps = websocket.tls is not None and websocket.tls.verify_and_map
    own = websocket.authorization or AuthorizationConfig()
    if own.user or own.token or websocket.no_auth_user:
        return _DoorRules(maps, own, websocket.no_auth_user)
    return main._replace(maps_certificates=maps)


class ConfiguredUsers:
    """Tells who a client is. Raises ConfigError if the JWTs of the settings are not valid.

    With ``key``, random bytes, slow passwords that were right are remembered: a hash with this key is.
    """

    def __init__(self, config: ServerConfig, key: bytes = b"") -> None:
        self._trust = None if config.operator is None else OperatorTrust(config.operator)
        self._memory = PasswordMemory(key)
        self._users = {user.name: user for user in config.users if user.name}
        self._nkeys = {user.nkey: user for user in config.users if user.nkey}
        self._permissions: dict[str, Permissions | None] = {
            user.name or user.nkey: permissions_of_rules(user.permissions) for user in config.users
        }
        maps = config.tls is not None and config.tls.verify_and_map
        self._main = self._websocket = _DoorRules(maps, config.authorization, config.no_auth_user)
        if config.websocket is not None:
            self._websocket = _websocket_rules(config.websocket, self._main)

    @property
    def trust(self) -> OperatorTrust | None:
        """The accounts of operator mode."""
        return self._trust

    def is_required(self, kind: str = "STANDARD") -> bool:
        rules = self._rules(kind)
        return self._is_guarded(rules) and not rules.no_auth_user

    @property
    def wants_nonce(self) -> bool:
        """Whether clients get a text to sign."""
        return self._trust is not None or bool(self._nkeys)

    def _rules(self, kind: str) -> _DoorRules:
        return self._websocket if kind == _WEBSOCKET else self._main

    def _is_guarded(self, rules: _DoorRules) -> bool:
        return bool(self._trust or self._users or self._nkeys or rules.single.user or rules.single.token)

    def is_slow(self, proof: Credentials) -> bool:
        """Whether :meth:`identify` takes a tenth of a second or more, for a hash whose password is not known."""
        rules = self._rules(proof.kind)
        single, name = rules.single, proof.user
        if rules.maps_certificates and proof.peer is not None:
            name = user_of_peer(proof.peer, self._users) or ""
        user = self._users.get(name)
        compared = (
            (user.password if user else "", proof.password),
            (single.password, proof.password),
            (single.token, proof.token),
        )
        return any(self._memory.is_slow(stored, given) for stored, given in compared)

    def remember(self, before: ConfiguredUsers) -> None:
        """Take over which passwords were right by the settings before, where the same hashes are in these."""
        singles = (self._main.single, self._websocket.single)
        stored = {user.password for user in self._users.values()}
        stored |= {text for single in singles for text in (single.password, single.token)}
        self._memory = before._memory.keep(stored)

    def identify(self, proof: Credentials, now: float) -> ServerUser | LoginRefusal:
        """Return who a client is, or why it is not let in; ``now`` is Unix seconds."""
        if self._trust is not None:
            return self._trust.identify(proof, now)
        rules = self._rules(proof.kind)
        if not self._is_guarded(rules):
            return ServerUser()
        if self._nkeys and proof.nkey:
            return self._by_nkey(proof)
        if self._users or self._nkeys:
            return self._by_name(proof, rules)
        return self._single(rules.single, proof)

    def _by_nkey(self, proof: Credentials) -> ServerUser | LoginRefusal:
        user = self._nkeys.get(proof.nkey)
        if user is None:
            return LoginRefusal(f"no user has the key {proof.nkey!r}")
        signature = base64_bytes(proof.signature)
        if not signature or not is_signed(proof.nkey, proof.nonce.encode(), signature):
            return LoginRefusal("the nonce is not signed by the user")
        return self._identity(user, proof)

    def _by_name(self, proof: Credentials, rules: _DoorRules) -> ServerUser | LoginRefusal:
        if rules.maps_certificates:
            name = None if proof.peer is None else user_of_peer(proof.peer, self._users)
            if name is None:
                return LoginRefusal("no user has the names of the certificate")
            if not self._memory.is_password(self._users[name].password, proof.password):
                return LoginRefusal(f"the certificate is of the user {name!r}, and the password is wrong")
            return self._identity(self._users[name], proof)
        if proof.is_anonymous:
            user = self._users.get(rules.no_auth_user) or self._nkeys.get(rules.no_auth_user)
            return LoginRefusal("credentials are missing") if user is None else self._identity(user, proof)
        user = self._users.get(proof.user)
        if user is None or not self._memory.is_password(user.password, proof.password):
            return LoginRefusal(f"the user {proof.user!r} is not known, or the password is wrong")
        return self._identity(user, proof)

    def _identity(self, user: UserConfig, proof: Credentials) -> ServerUser | LoginRefusal:
        if user.connection_types is not None and proof.kind not in user.connection_types:
            return LoginRefusal(f"the user may not connect by {proof.kind}")
        name = user.name or user.nkey
        return ServerUser(name=name, account=user.account, permissions=self._permissions[name])

    def _single(self, login: AuthorizationConfig, proof: Credentials) -> ServerUser | LoginRefusal:
        """Return the identity of the only user, or of whoever knows the token."""
        if login.token:
            is_known = self._memory.is_password(login.token, proof.token)
        else:
            is_known = bool(login.user) and login.user == proof.user
            is_known = is_known and self._memory.is_password(login.password, proof.password)
        return ServerUser(name=login.user) if is_known else LoginRefusal("the password or token is wrong")
