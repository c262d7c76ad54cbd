"""What a client shows, and who it turns out to be. Pure data."""

from __future__ import annotations

import msgspec

from pelton.server.auth.certificates import TlsPeer
from pelton.server.auth.permissions import Permissions
from pelton.server.auth.refusals import AUTHORIZATION_VIOLATION
from pelton.server.settings.config import GLOBAL_ACCOUNT, ConnectionLimits


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What a client shows: the fields of its ``CONNECT``, "" for those it leaves out, and what its connection says.

    ``signature`` is the nonce's, in base64. ``kind`` is a connection type, ``address`` the IP address, "" for a Unix
    socket. ``peer`` is the owner of its verified certificate.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    jwt: str = ""
    nkey: str = ""
    signature: str = ""
    nonce: str = ""
    kind: str = "STANDARD"
    address: str = ""
    peer: TlsPeer | None = None

    @property
    def is_anonymous(self) -> bool:
        """Whether the client shows nothing."""
        return not (self.user or self.password or self.token or self.jwt or self.nkey)


class ServerUser(msgspec.Struct, frozen=True, kw_only=True):
    """Who a client is: its name, its account, and what it may do (None: everything) and use.

    ``expires`` is when it has to go, in Unix seconds, None for never; ``issued_at`` is when its JWT was issued.
    """

    name: str = ""
    account: str = GLOBAL_ACCOUNT
    permissions: Permissions | None = None
    limits: ConnectionLimits = ConnectionLimits()
    expires: float | None = None
    issued_at: int = 0


class LoginRefusal(msgspec.Struct, frozen=True):
    """Why a client is not let in: ``reason`` for the log, ``text`` for the client, which learns no more than that."""

    reason: str
    text: str = AUTHORIZATION_VIOLATION
