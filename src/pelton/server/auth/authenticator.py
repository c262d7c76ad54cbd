"""The port through which clients are let in: credentials become a user, or a refusal."""

from __future__ import annotations

from typing import Protocol

from pelton.server.auth.certificates import TlsPeer
from pelton.server.auth.identity import Credentials, LoginRefusal, ServerUser
from pelton.wire import ConnectOptions


class Authenticator(Protocol):
    """Tells who a client is.

    ``wants_nonce``: each client gets a text to sign.
    """

    @property
    def wants_nonce(self) -> bool: ...

    def is_required(self, kind: str = "STANDARD") -> bool:
        """Whether a client without credentials is refused; ``kind`` is how it connects (``WEBSOCKET``)."""
        ...

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the user, or why there is none. May take time: passwords are slow to check."""
        ...

    def anonymous(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the user of a client that has shown nothing yet, if that is not required."""
        ...


class OpenDoor:
    """Lets everybody in."""

    wants_nonce = False

    def is_required(self, kind: str = "STANDARD") -> bool:
        """Return False: nobody is refused."""
        return False

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the one user, who may do everything."""
        return ServerUser()

    def anonymous(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the one user."""
        return ServerUser()


def credentials_of(
    options: ConnectOptions, *, nonce: str = "", kind: str = "STANDARD", address: str = "", peer: TlsPeer | None = None
) -> Credentials:
    """Return what a client shows in its ``CONNECT`` and by its connection."""
    return Credentials(
        user=options.user or "",
        password=options.password or "",
        token=options.auth_token or "",
        jwt=options.jwt or "",
        nkey=options.nkey or "",
        signature=options.sig or "",
        nonce=nonce,
        kind=kind,
        address=address,
        peer=peer,
    )
