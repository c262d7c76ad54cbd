"""Keys of encrypted stores, as a user gives them: a string, bytes, a file, or a function that fetches one."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from pelton.api.errors import ConfigError


class KeyFile(msgspec.Struct, frozen=True):
    """The file at ``path`` holds the key of a store: its bytes, without a trailing line end.

    It is read when a store is opened. Keep it apart from the store, readable only by its user.
    """

    path: str | os.PathLike[str]

    def read(self) -> bytes:
        """Return the key. Raises ConfigError if the file cannot be read."""
        try:
            with open(self.path, "rb") as file:
                return file.read().rstrip(b"\r\n")
        except OSError as error:
            raise ConfigError(f"the key file {os.fspath(self.path)!r} cannot be read: {error.strerror}") from None


Key = str | bytes | KeyFile | Callable[[], str | bytes]
"""The types of ``key=``. A function is called each time a store is opened, so it may query a vault."""


def key_bytes(key: Key | None) -> bytes | None:
    """Return the bytes of a key, fetching it first if necessary; None for no key. Raises ConfigError."""
    if key is None:
        return None
    found: object = key.read() if isinstance(key, KeyFile) else key() if callable(key) else key
    if isinstance(found, str):
        found = found.encode()
    # The value stays out of the message: it may be a key all the same.
    if not isinstance(found, bytes):
        raise ConfigError(f"key is a {type(found).__name__}: give str, bytes, a KeyFile or a function that returns one")
    if not found:
        raise ConfigError("key is empty: give at least one character, or no key for a plain store")
    return found
