"""Who a client is, by the settings: users with passwords, tokens, nkeys, certificates, or JWTs. Pure.

The order is nats-server's: an operator's JWTs alone if there is an operator; else an nkey, a certificate that is mapped
to a user, a user with a password, the user of those who show nothing, and the single user or token.

**Compares passwords and tokens with what is stored: plain text or a bcrypt hash. Pure, and slow for hashes.** What was
right for a hash is right again without bcrypt, as long as that hash is in the settings: a flood of wrong passwords,
which are slow, does not keep out those who have been in. Only a keyed hash of it is kept, in memory.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection
from typing import Final, NamedTuple

from pelton.server.auth.certificates import user_of_peer
from pelton.server.auth.identity import Credentials, LoginRefusal, Permissions, ServerUser, permissions_of_rules
from pelton.server.auth.operator import OperatorTrust
from pelton.server.nkey import base64_bytes, is_signed
from pelton.server.settings.options import AuthorizationConfig, ServerConfig, UserConfig, WebSocketConfig

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
        """Whether a password is the stored one."""
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
        """Whether a client without credentials is refused, that connects by ``kind``."""
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
