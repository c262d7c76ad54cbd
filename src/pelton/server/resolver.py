"""The accounts of operator mode, in the folder of a resolver or in memory, which change while the server runs.

Design: the folder is what counts. A change is made there, and then the settings are read again, as by SIGHUP; if they
are not valid with it, the folder gets back what it had, so that the server also starts from it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pelton.api import PeltonError
from pelton.server.auth.tokens import (
    AccountClaims,
    GenericClaims,
    Token,
    TokenError,
    UserClaims,
    check_account,
    read_token,
)
from pelton.server.nkey import role_of
from pelton.server.settings.options import OperatorConfig, ResolverKind

_PIECES: Final = 3


class ResolverError(Exception):
    """A JWT that the resolver does not take; the text is nats-server's."""


class AccountResolver:
    """The JWTs in a folder, and those of the settings; ``trusted`` are the operators' keys.

    ``system_account`` is never deleted. Without a folder, JWTs are kept in ``memory``. ``apply`` reads the settings
    again; it raises PeltonError.
    """

    def __init__(
        self,
        config: OperatorConfig,
        trusted: frozenset[str],
        system_account: str,
        memory: dict[str, str],
        apply: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._folder = Path(config.folder)
        self._trusted = trusted
        self._system_account = system_account
        self._memory = memory
        self.kind: ResolverKind = config.resolver
        self._apply = apply

    def keys(self, now: float) -> list[str]:
        """Return the accounts whose JWTs have not expired; ``now`` is Unix seconds."""
        keys = {path.stem for path in self._folder.glob("*.jwt")} | self._config.accounts.keys()
        tokens = [_account(self.lookup(key)) for key in sorted(keys)]
        return [token.sub for token in tokens if token is not None and not token.is_expired(now)]

    def lookup(self, key: str) -> str:
        """Return an account's JWT, "" if there is none."""
        preloaded = self._config.accounts.get(key, "")
        stored = self._stored(key) or preloaded
        return preloaded if preloaded and _issued_at(stored) <= _issued_at(preloaded) else stored

    def _stored(self, key: str) -> str:
        if role_of(key) != "account":
            return ""
        if self.kind == "memory":
            return self._memory.get(key, "")
        with suppress(OSError, UnicodeDecodeError):
            return self._path(key).read_text("utf-8").strip()
        return ""

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.jwt"

    async def update(self, text: str, key: str, now: float) -> tuple[str, bool]:
        """Keep an account's JWT, in the place of another one; return its key, and whether it was kept.

        The key must be ``key`` if that is given. Raises ResolverError, PeltonError.
        """
        token = _checked(text)
        if key not in ("", token.sub):
            raise ResolverError("subject does not match jwt content")
        if self.kind != "full" and not self.lookup(token.sub):
            return token.sub, False
        invalid = _invalid(token)
        if self.kind == "memory" and (token.iss not in self._trusted or not token.is_valid_at(now) or invalid):
            raise ResolverError("account validation failed")
        if token.iss not in self._trusted:
            # nats-server keeps it, in the place of one that was good.
            raise ResolverError("it is not signed by a trusted operator")
        if invalid:
            raise ResolverError(invalid)
        before = self._stored(token.sub)
        self._write(token.sub, text)
        try:
            await self._apply()
        except PeltonError:
            self._write(token.sub, before)
            raise
        return token.sub, True

    def _write(self, key: str, text: str) -> None:
        """Write a file so that it is there whole; without a text, remove it."""
        if self.kind == "memory":
            self._memory[key] = text
            if not text:
                del self._memory[key]
            return
        path = self._path(key)
        if not text:
            path.unlink(missing_ok=True)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    async def delete(self, text: str) -> tuple[str, int]:
        """Delete the accounts that a JWT of an operator names; return whose it is, and how many they are.

        Raises ResolverError, whose first argument is who asks, PeltonError.
        """
        try:
            token = read_token(text, GenericClaims)
        except TokenError as error:
            raise ResolverError("", _shown(text, error)) from None
        if self.kind == "full" and not self._config.allow_delete:
            raise ResolverError(token.sub, "delete must be enabled in server config")
        if token.iss != token.sub or token.iss not in self._trusted:
            raise ResolverError(token.sub, "not trusted")
        keys = token.nats.accounts
        if keys is None or any(role_of(key) != "account" for key in keys):
            raise ResolverError(token.sub, "malformed request")
        if self._system_account in keys:
            raise ResolverError(token.sub, "not allowed to delete system account")
        if preloaded := self._config.accounts.keys() & set(keys):
            raise ResolverError(token.sub, f"resolver_preload has {', '.join(sorted(preloaded))}")
        await self._remove(keys)
        return token.sub, len(keys)

    async def _remove(self, keys: Iterable[str]) -> None:
        before = {key: self._stored(key) for key in keys}
        for key, text in before.items():
            if text and not self._config.hard_delete:
                self._path(key).replace(self._path(key).with_suffix(".jwt.deleted"))
            else:
                self._write(key, "")
        try:
            await self._apply()
        except PeltonError:
            for key, text in before.items():
                self._write(key, text)
            raise


def _account(text: str) -> Token[AccountClaims] | None:
    try:
        return read_token(text, AccountClaims)
    except TokenError:
        return None


def _issued_at(text: str) -> int:
    token = _account(text)
    return -1 if token is None else token.issued_at


def _invalid(token: Token[AccountClaims]) -> str:
    """Return why an account would not be served, "" if it would be."""
    try:
        check_account(token)
    except TokenError as error:
        return str(error)
    return ""


def _checked(text: str) -> Token[AccountClaims]:
    try:
        return read_token(text, AccountClaims)
    except TokenError as error:
        with suppress(TokenError):
            read_token(text, UserClaims)
            raise ResolverError("not account claim") from None
        raise ResolverError(_shown(text, error)) from None


def _shown(text: str, error: TokenError) -> str:
    return str(error) if len(text.split(".")) == _PIECES else f"expected {_PIECES} chunks"
