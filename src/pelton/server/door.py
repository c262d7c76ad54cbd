"""Lets in the users of a configuration; hashes are compared on a thread, because that takes a tenth of a second."""

from __future__ import annotations

import asyncio
from typing import Final

from pelton.runtime import Clock
from pelton.server.auth import ConfiguredUsers, Credentials, LoginRefusal, ServerUser

_NS: Final = 1_000_000_000


class ConfiguredDoor:
    """An authenticator for the users of the settings, which may be replaced while the server runs."""

    def __init__(self, users: ConfiguredUsers, clock: Clock) -> None:
        self.users = users
        self._clock = clock

    @property
    def is_required(self) -> bool:
        """Whether a client without credentials is refused."""
        return self.users.is_required

    @property
    def wants_nonce(self) -> bool:
        """Whether clients get a text to sign."""
        return self.users.wants_nonce

    async def user(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the user, or why there is none."""
        users, now = self.users, self._clock.now() / _NS
        if users.is_slow(credentials):
            return await asyncio.to_thread(users.identify, credentials, now)
        return users.identify(credentials, now)

    def anonymous(self, credentials: Credentials) -> ServerUser | LoginRefusal:
        """Return the user of those who show nothing."""
        return self.users.identify(credentials, self._clock.now() / _NS)
