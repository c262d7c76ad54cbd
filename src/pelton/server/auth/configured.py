"""Who a client is, by the settings: users with passwords, tokens, nkeys, certificates, or JWTs. Pure.

The order is nats-server's: an operator's JWTs alone if there is an operator; else an nkey, a certificate that is mapped
to a user, a user with a password, the user of those who show nothing, and the single user or token.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pelton.server.auth.certificates import user_of_peer
from pelton.server.auth.identity import Credentials, LoginRefusal, ServerUser
from pelton.server.auth.operator import OperatorTrust
from pelton.server.auth.passwords import PasswordMemory
from pelton.server.auth.permissions import Permissions, permissions_of_rules
from pelton.server.nkey import base64_bytes, is_signed
from pelton.server.settings.config import AuthorizationConfig, ServerConfig, UserConfig, WebSocketConfig

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
