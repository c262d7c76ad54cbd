"""Requests of ``nsc push``, ``pull`` and their like: the JWTs of accounts that a resolver has.

As on nats-server, a resolver of type ``cache`` is not asked for JWTs, and one in memory only takes those of its own
accounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from pelton.api import PeltonError
from pelton.runtime import Runtime
from pelton.server.monitoring.observed import Observed, server_facts
from pelton.server.ports import Published
from pelton.server.resolver import AccountResolver, ResolverError

_CLAIMS: Final = "$SYS.REQ.CLAIMS."
_ACCOUNT: Final = "$SYS.REQ.ACCOUNT."
_NS: Final = 1_000_000_000
_NO_ACCOUNT: Final = "n/a"
_FAILURES: Final = (ResolverError, PeltonError, OSError)


class ClaimsService:
    """Answers the requests of the system account."""

    def __init__(self, server: Observed, answer: Callable[[str, bytes | None, bytes], None], runtime: Runtime) -> None:
        self._server = server
        self._answer = answer
        self._runtime = runtime
        self._changing = asyncio.Lock()

    def take(self, message: Published) -> bool:
        """Answer a request; False if it is another one, or if there is no resolver."""
        resolver, subject = self._server.resolver, message.subject
        if resolver is None:
            return False
        if subject.startswith(_CLAIMS) and resolver.kind != "memory":
            return self._take(resolver, subject[len(_CLAIMS) :], message)
        if not subject.startswith(_ACCOUNT):
            return False
        key, _, name = subject[len(_ACCOUNT) :].partition(".")
        if name == "CLAIMS.LOOKUP" and resolver.kind == "full":
            self._answer(message.reply, None, resolver.lookup(key).encode())
        elif name == "CLAIMS.UPDATE":
            self._runtime.spawn(self._update(resolver, message, key), "pelton takes an account's JWT")
        else:
            return False
        return True

    def _take(self, resolver: AccountResolver, name: str, message: Published) -> bool:
        match name:
            case "UPDATE":
                self._runtime.spawn(self._update(resolver, message), "pelton takes an account's JWT")
            case "DELETE":
                self._runtime.spawn(self._delete(resolver, message), "pelton deletes accounts")
            case "LIST":
                self._tell(message, {"data": self._keys(resolver)})
            case "PACK" if resolver.kind == "full":
                for key in self._keys(resolver):
                    self._answer(message.reply, None, f"{key}|{resolver.lookup(key)}".encode())
                self._answer(message.reply, None, b"")
            case _:
                return False
        return True

    def _keys(self, resolver: AccountResolver) -> list[str]:
        return resolver.keys(self._server.clock.now() / _NS)

    async def _update(self, resolver: AccountResolver, message: Published, key: str = "") -> None:
        where = " cache" if resolver.kind == "cache" else ""
        try:
            if resolver.kind == "memory" and not message.data:
                raise ResolverError("request body is empty")
            async with self._changing:
                named, is_kept = await resolver.update(_text(message), key, self._server.clock.now() / _NS)
        except _FAILURES as error:
            how = "error" if resolver.kind == "memory" and not message.data else "resulted in error"
            told = f"jwt update{where} {how} - {error}"
            self._tell(message, {"error": {"account": key or _NO_ACCOUNT, "code": 500, "description": told}})
        else:
            told = f"jwt updated{where}" if is_kept else f"jwt update{where} skipped"
            self._tell(message, {"data": {"account": named, "code": 200, "message": told}})

    async def _delete(self, resolver: AccountResolver, message: Published) -> None:
        try:
            async with self._changing:
                _, count = await resolver.delete(_text(message))
        except _FAILURES as error:
            who, why = error.args if isinstance(error, ResolverError) else ("", error)
            told = f"delete accounts request by {who} failed - {why}"
            self._tell(message, {"error": {"code": 500, "description": told}})
        else:
            self._tell(message, {"data": {"code": 200, "message": f"deleted {count} accounts"}})

    def _tell(self, message: Published, found: dict[str, Any]) -> None:
        self._answer(message.reply, None, msgspec.json.encode({"server": server_facts(self._server), **found}))


def _text(message: Published) -> str:
    return message.data.decode("ascii", "replace").strip()
