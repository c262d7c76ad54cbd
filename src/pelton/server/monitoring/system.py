"""Requests on ``$SYS.REQ.>``, for the ``nats`` and ``nsc`` commands.

**Requests of ``nsc push``, ``pull`` and their like: the JWTs of accounts that a resolver has.** As on nats-server, a
resolver of type ``cache`` is not asked for JWTs, and one in memory only takes those of its own accounts.

**Requests on ``$SYS.REQ.>``, for the ``nats`` command: reports, who a client is, and what an operator may do.** Every
client may ask who it is (``$SYS.REQ.USER.INFO``), and how its own account is used. Reports on the server, and its
commands (to let a client go, to read the settings again), are for the system account.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from pelton.api import PeltonError
from pelton.runtime import Runtime
from pelton.server.auth.identity import ServerUser
from pelton.server.monitoring.connections import connz, subsz
from pelton.server.monitoring.events import connections_event
from pelton.server.monitoring.observed import Observed, ReportError, ReportParameters, json_parts, server_facts
from pelton.server.monitoring.reports import REPORTS, Report, account_detail, accstatz, idz, leafz, statsz
from pelton.server.monitoring.stream_reports import account_jsz
from pelton.server.ports import Published
from pelton.server.resolver import AccountResolver, ResolverError
from pelton.server.settings.options import AllowDeny

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


_USER: Final = "$SYS.REQ.USER.INFO"
_PING: Final = "$SYS.REQ.SERVER.PING"
_SERVER: Final = "$SYS.REQ.SERVER."
_OWN: Final = {
    "$SYS.REQ.SERVER.PING.CONNZ": connz,
    "$SYS.REQ.ACCOUNT.PING.CONNZ": connz,
    "$SYS.REQ.ACCOUNT.PING.STATZ": accstatz,
}


async def _info(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    return account_detail(server, parameters.text("acc"))


async def _statz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    return await accstatz(server, parameters.but(accounts=[parameters.text("acc")], unused=True))


_OF_ACCOUNT: Final[dict[str, Report]] = {
    "CONNZ": connz,
    "SUBSZ": subsz,
    "LEAFZ": leafz,
    "JSZ": account_jsz,
    "INFO": _info,
    "STATZ": _statz,
}
# Those of one server, which is asked by its id.
_COMMANDS: Final = ("KICK", "LDM", "RELOAD")


class SystemService:
    """Answers ``$SYS.REQ.>`` for the clients of one account."""

    def __init__(
        self, server: Observed, account: str, answer: Callable[[str, bytes | None, bytes], None], runtime: Runtime
    ) -> None:
        self._server = server
        self._account = account
        self._answer = answer
        self._runtime = runtime
        self._is_system = account == server.settings.system_account
        self._claims = ClaimsService(server, answer, runtime)

    def take(self, message: Published) -> bool:
        """Answer a request; False if it is none that this account may make."""
        subject = message.subject
        if subject == _USER:
            self._reply(message.reply, {"data": self._user(message.client.user)})
            return True
        if not self._is_system:
            report = _OWN.get(subject)
            if report is None:
                return False
            own = {"acc": self._account, "accounts": [self._account], "unused": True}
            self._spawn(self._told(report, message, own), message.reply)
            return True
        if self._claims.take(message):
            return True
        if subject == _PING:
            self._spawn(self._told(statsz, message, {}), message.reply)
            return True
        if subject.startswith(_SERVER):
            return self._take_for_server(message, *subject[len(_SERVER) :].split(".", 1))
        if subject.startswith(_ACCOUNT):
            return self._take_for_account(message, *subject[len(_ACCOUNT) :].split(".", 1))
        return False

    def _take_for_server(self, message: Published, who: str, name: str = "") -> bool:
        if who not in ("PING", self._server.id):
            return False
        if name == "IDZ":
            self._spawn(self._id(), message.reply)
        elif name in _COMMANDS and who != "PING":
            self._spawn(self._commanded(name, message.data), message.reply)
        elif (report := statsz if name == "STATSZ" else _of_server(name)) is not None:
            self._spawn(self._told(report, message, {}), message.reply)
        else:
            return False
        return True

    def _take_for_account(self, message: Published, account: str, name: str = "") -> bool:
        if (account, name) == ("PING", "STATZ"):
            self._spawn(self._told(accstatz, message, {}), message.reply)
        elif name == "CONNS" and account in self._server.observed_accounts:
            self._reply(message.reply, connections_event(self._server, account, self._runtime))
        elif (report := _OF_ACCOUNT.get(name)) is not None:
            given = {"acc": account} | ({"subs": True} if name == "SUBSZ" else {})
            self._spawn(self._told(report, message, given), message.reply)
        else:
            return False
        return True

    # --- answers

    def _spawn(self, work: Awaitable[dict[str, Any] | None], reply: str) -> None:
        async def answered() -> None:
            found = await work
            if found is not None:
                self._reply(reply, found)

        self._runtime.spawn(answered(), "pelton reports on the server")

    async def _told(self, report: Report, message: Published, given: dict[str, Any]) -> dict[str, Any] | None:
        """Return a report; None if the request is for servers of another kind."""
        try:
            parameters = ReportParameters.of_json(message.data).but(**given)
        except ReportError as error:
            return {"error": {"code": error.status, "description": str(error)}}
        if not self._is_meant(parameters):
            return None
        key = "statsz" if report is statsz else "data"
        try:
            return {key: await report(self._server, parameters)}
        except PeltonError as error:
            return {key: None, "error": {"code": 500, "description": str(error)}}

    def _is_meant(self, parameters: ReportParameters) -> bool:
        """Whether a request that names servers by what they are names this one."""
        about, exact = self._server.about(), parameters.flag("exact_match")
        for name, own in (("server_name", self._server.name), ("host", about.host), ("cluster", "")):
            wanted = parameters.text(name)
            if wanted and (own != wanted if exact else wanted not in own):
                return False
        wanted = parameters.text("domain")
        return wanted in ("", about.domain) and not parameters.texts("tags")

    async def _id(self) -> dict[str, Any]:
        return await idz(self._server, ReportParameters({}))

    async def _commanded(self, name: str, body: bytes) -> dict[str, Any]:
        """Carry out a command of an operator."""
        try:
            if name == "RELOAD":
                await self._server.reload_settings()
                return {}
            number = ReportParameters.of_json(body).number("cid")
            known = self._server.kick(number) if name == "KICK" else self._server.send_away(number)
        except PeltonError as error:
            return {"error": {"code": 500, "description": str(error)}}
        return {} if known else {"error": {"code": 500, "description": "no such client id"}}

    def _user(self, user: ServerUser | None) -> dict[str, Any]:
        """Return what a client is told of itself."""
        config = self._server.settings.accounts.get(self._account)
        tag = (config.name_tag if config is not None else "") or self._account
        found: dict[str, Any] = {"user": user.name if user is not None else "", "account": self._account}
        found["account_name"] = tag
        rules = user.permissions.rules if user is not None and user.permissions is not None else None
        if rules is not None:
            found["permissions"] = {"publish": _shown(rules.publish), "subscribe": _shown(rules.subscribe)}
            if (answers := rules.allow_responses) is not None:
                found["permissions"]["responses"] = {"max": answers.max_msgs, "ttl": int(answers.expires * _NS)}
        if user is not None and user.expires is not None:
            found["expires"] = max(0, int(user.expires * _NS) - self._server.clock.now())
        return found

    def _reply(self, reply: str, found: dict[str, Any]) -> None:
        named = found if "id" in found else {"server": server_facts(self._server), **found}
        self._answer(reply, None, b"".join(json_parts(named)))


def _of_server(name: str) -> Report | None:
    """Return a report by the name that requests have for it; that on all accounts has one of its own."""
    return None if name == "ACCSTATZ" else REPORTS.get(name.lower())


def _shown(rules: AllowDeny) -> dict[str, Any]:
    shown: dict[str, Any] = {} if rules.allow is None else {"allow": list(rules.allow)}
    return shown | ({"deny": list(rules.deny)} if rules.deny else {})
