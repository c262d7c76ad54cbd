"""The port through which clients are let in: credentials become a user, or nobody."""

from __future__ import annotations

from typing import Protocol

import msgspec

from pelton.server.auth.permissions import Permissions
from pelton.server.settings.options import GLOBAL_ACCOUNT
from pelton.wire import ConnectOptions


class ServerUser(msgspec.Struct, frozen=True, kw_only=True):
    """Who a client is: its name, its account, and what it may do (None: everything)."""

    name: str = ""
    account: str = GLOBAL_ACCOUNT
    permissions: Permissions | None = None


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What a client shows: its ``CONNECT``, the nonce it was given, and the subject of its certificate."""

    options: ConnectOptions
    nonce: str = ""
    certificate: str = ""


class Authenticator(Protocol):
    """Tells who a client is.

    ``is_required``: a client without credentials is refused; ``wants_nonce``: each client gets a text to sign.
    """

    @property
    def is_required(self) -> bool: ...
    @property
    def wants_nonce(self) -> bool: ...

    async def user(self, credentials: Credentials) -> ServerUser | None:
        """Return the user, or None if the credentials are not valid. May take time: passwords are slow to check."""


class OpenDoor:
    """Lets everybody in."""

    is_required = False
    wants_nonce = False

    async def user(self, credentials: Credentials) -> ServerUser | None:
        """Return the one user, who may do everything."""
        return ServerUser()
