"""Who a client is, by the settings: users with passwords, tokens, nkeys, certificates, or JWTs. Pure.

The order is nats-server's: an operator's JWTs alone if there is an operator; else an nkey, a certificate that is mapped
to a user, a user with a password, the user of those who show nothing, and the single user or token.
"""

from __future__ import annotations

from pelton.server.auth.certificates import user_of_peer
from pelton.server.auth.identity import Credentials, LoginRefusal, ServerUser
from pelton.server.auth.operator import OperatorTrust
from pelton.server.auth.passwords import is_hash, is_password
from pelton.server.auth.permissions import Permissions, permissions_of_rules
from pelton.server.nkey import base64_bytes, is_signed
from pelton.server.settings.config import AuthorizationConfig, ServerConfig, UserConfig


class ConfiguredUsers:
    """Tells who a client is. Raises ConfigError if the JWTs of the settings are not valid."""

    def __init__(self, config: ServerConfig) -> None:
        self._maps_certificates = config.tls is not None and config.tls.verify_and_map
        self._authorization = config.authorization
        self._trust = None if config.operator is None else OperatorTrust(config.operator)
        self._users = {user.name: user for user in config.users if user.name}
        self._nkeys = {user.nkey: user for user in config.users if user.nkey}
        self._permissions: dict[str, Permissions | None] = {
            user.name or user.nkey: permissions_of_rules(user.permissions) for user in config.users
        }
        self._no_auth_user = config.no_auth_user
        self._websocket = config.websocket and config.websocket.authorization
        self._websocket_no_auth_user = config.websocket.no_auth_user if config.websocket is not None else ""

    @property
    def trust(self) -> OperatorTrust | None:
        """The accounts of operator mode."""
        return self._trust

    @property
    def is_required(self) -> bool:
        """Whether a client without credentials is refused."""
        return self._is_guarded and not self._no_auth_user

    @property
    def wants_nonce(self) -> bool:
        """Whether clients get a text to sign."""
        return self._trust is not None or bool(self._nkeys)

    @property
    def _is_guarded(self) -> bool:
        single = self._authorization.user or self._authorization.token
        return bool(self._trust or self._users or self._nkeys or single)

    def is_slow(self, proof: Credentials) -> bool:
        """Whether :meth:`identify` takes a tenth of a second or more, for a hash."""
        user = self._users.get(proof.user)
        single = self._authorization
        return any(map(is_hash, (user.password if user else "", single.password, single.token)))

    def identify(self, proof: Credentials, now: float) -> ServerUser | LoginRefusal:
        """Return who a client is, or why it is not let in; ``now`` is Unix seconds."""
        if self._trust is not None:
            return self._trust.identify(proof, now)
        if proof.kind == "WEBSOCKET" and self._websocket:
            return _single(self._websocket, proof)
        if not self._is_guarded:
            return ServerUser()
        if self._nkeys and proof.nkey:
            return self._by_nkey(proof)
        if self._users or self._nkeys:
            return self._by_name(proof)
        return _single(self._authorization, proof)

    def _by_nkey(self, proof: Credentials) -> ServerUser | LoginRefusal:
        user = self._nkeys.get(proof.nkey)
        if user is None:
            return LoginRefusal(f"no user has the key {proof.nkey!r}")
        signature = base64_bytes(proof.signature)
        if not signature or not is_signed(proof.nkey, proof.nonce.encode(), signature):
            return LoginRefusal("the nonce is not signed by the user")
        return self._identity(user, proof)

    def _by_name(self, proof: Credentials) -> ServerUser | LoginRefusal:
        if self._maps_certificates:
            name = None if proof.peer is None else user_of_peer(proof.peer, self._users)
            if name is None:
                return LoginRefusal("no user has the names of the certificate")
            return self._identity(self._users[name], proof)
        if proof.is_anonymous:
            websocket = self._websocket_no_auth_user if proof.kind == "WEBSOCKET" else ""
            name = websocket or self._no_auth_user
            user = self._users.get(name) or self._nkeys.get(name)
            return LoginRefusal("credentials are missing") if user is None else self._identity(user, proof)
        user = self._users.get(proof.user)
        if user is None or not is_password(user.password, proof.password):
            return LoginRefusal(f"the user {proof.user!r} is not known, or the password is wrong")
        return self._identity(user, proof)

    def _identity(self, user: UserConfig, proof: Credentials) -> ServerUser | LoginRefusal:
        if user.connection_types is not None and proof.kind not in user.connection_types:
            return LoginRefusal(f"the user may not connect by {proof.kind}")
        name = user.name or user.nkey
        return ServerUser(name=name, account=user.account, permissions=self._permissions[name])


def _single(authorization: AuthorizationConfig, proof: Credentials) -> ServerUser | LoginRefusal:
    """Return the identity of the only user, or of whoever knows the token."""
    if authorization.token:
        is_known = is_password(authorization.token, proof.token)
    elif authorization.user:
        is_known = authorization.user == proof.user and is_password(authorization.password, proof.password)
    else:
        is_known = True
    return ServerUser(name=authorization.user) if is_known else LoginRefusal("the password or token is wrong")
