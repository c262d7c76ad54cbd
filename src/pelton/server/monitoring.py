"""Where a server tells of itself: over HTTP, on ``$SYS.REQ.>``, and by events that nobody asked for.

**What a server tells the system account by itself: who comes and goes, how it does, and that it ends.** An event is
made only if somebody subscribes to it. As on nats-server, clients of the global account come and go unsaid.

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
from urllib.parse import parse_qsl, urlsplit

import msgspec

from pelton.api import ConfigError, PeltonError, rfc3339
from pelton.runtime import Clock, Runtime, within
from pelton.server.accounts import AccountResolver, ResolverError
from pelton.server.connection import AccountPort, ClientConnection, Published
from pelton.server.identity import ServerUser
from pelton.server.observed import Observed, ReportError, ReportParameters, connz, json_parts, subsz
from pelton.server.reports import (
    REPORTS,
    Report,
    account_connections,
    account_detail,
    account_jsz,
    accstatz,
    idz,
    jsz,
    leafz,
    statsz,
    varz,
)
from pelton.server.settings import Endpoint
from pelton.server.settings.options import AllowDeny

_ADVISORY: Final = "io.nats.server.advisory.v1."
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 10.0
_SECOND: Final = 1_000_000_000
_GLOBAL: Final = "$G"


class SystemEvents:
    """Sends the events of one server to ``subscribers``."""

    def __init__(self, server: Observed, subscribers: Callable[[], AccountPort | None], runtime: Runtime) -> None:
        self._server = server
        self._subscribers = subscribers
        self._runtime = runtime
        self._clock = runtime.clock
        self._pause = _FIRST_S
        self._next = self._clock.monotonic() + self._pause

    # --- clients

    def on_entry(self, client: ClientConnection) -> None:
        name = client.account_name
        self._tell_connections(name)
        if name != _GLOBAL and self._is_heard(subject := f"$SYS.ACCOUNT.{name}.CONNECT"):
            self._send(subject, "client_connect", {"client": self._client(client)})

    def on_leave(self, client: ClientConnection, reason: str) -> None:
        name = client.account_name
        self._tell_connections(name)
        if name != _GLOBAL and self._is_heard(subject := f"$SYS.ACCOUNT.{name}.DISCONNECT"):
            self._send(subject, "client_disconnect", self._end_of(client, reason))

    def on_refusal(self, client: ClientConnection) -> None:
        """Tell that a client was not let in."""
        if self._is_heard(subject := f"$SYS.SERVER.{self._server.id}.CLIENT.AUTH.ERR"):
            self._send(subject, "client_disconnect", self._end_of(client, "Authentication Failure"))

    def _tell_connections(self, account: str) -> None:
        for subject in (f"$SYS.ACCOUNT.{account}.SERVER.CONNS", f"$SYS.SERVER.ACCOUNT.{account}.CONNS"):
            if account != _GLOBAL and self._is_heard(subject):
                self._send(subject, "account_connections", account_connections(self._server, account))

    def _client(self, client: ClientConnection) -> dict[str, Any]:
        now, wall = self._clock.monotonic(), self._clock.now()
        told = {
            "start": rfc3339(wall - int((now - client.started) * _SECOND)),
            "host": client.peer.rpartition(":")[0].strip("[]"),
            "id": client.number,
            "acc": client.account_name or _GLOBAL,
            "user": client.user_name or client.options.user,
            "name": client.options.name,
            "lang": client.options.lang,
            "ver": client.options.version,
            "kind": "Client",
            "client_type": "websocket" if client.is_bridged else "nats",
        }
        return {key: value for key, value in told.items() if value}

    def _end_of(self, client: ClientConnection, reason: str) -> dict[str, Any]:
        return {
            "client": self._client(client) | {"stop": rfc3339(self._clock.now())},
            # From the client's side, as on nats-server.
            "sent": {"msgs": client.in_msgs, "bytes": client.in_bytes},
            "received": {"msgs": client.out_msgs, "bytes": client.out_bytes},
            "reason": reason,
        }

    # --- the server

    def look(self) -> None:
        """Tell how the server does, if it is time: more often at first."""
        now = self._clock.monotonic()
        if now < self._next:
            return
        self._pause = min(2 * self._pause, _LONGEST_S)
        self._next = now + self._pause
        if self._is_heard(subject := f"$SYS.SERVER.{self._server.id}.STATSZ"):
            self._runtime.spawn(self._tell_stats(subject), "pelton tells how the server does")

    async def _tell_stats(self, subject: str) -> None:
        body = {"server": self._server.facts(), "statsz": await statsz(self._server, ReportParameters({}))}
        self._publish(subject, body)

    def ends(self, how: str) -> None:
        """Tell that the server ends: ``LAMEDUCK`` or ``SHUTDOWN``."""
        if self._is_heard(subject := f"$SYS.SERVER.{self._server.id}.{how}"):
            self._publish(subject, self._server.facts())

    # --- sending

    def _is_heard(self, subject: str) -> bool:
        there = self._subscribers()
        return there is not None and there.receives(subject)

    def _send(self, subject: str, kind: str, what: dict[str, Any]) -> None:
        head = _event_head(kind, self._runtime)
        self._publish(subject, {**head, "server": self._server.facts(), **what})

    def _publish(self, subject: str, body: dict[str, Any]) -> None:
        there = self._subscribers()
        if there is not None:
            there.answer(subject, None, msgspec.json.encode(body))


def connections_event(server: Observed, account: str, runtime: Runtime) -> dict[str, Any]:
    """Return the event of how many clients an account has."""
    return (
        _event_head("account_connections", runtime) | {"server": server.facts()} | account_connections(server, account)
    )


def _event_head(kind: str, runtime: Runtime) -> dict[str, Any]:
    now = rfc3339(runtime.clock.now())
    return {"type": f"{_ADVISORY}{kind}", "id": runtime.ids.new(), "timestamp": now}


# --- the reports over HTTP: ``GET /varz`` and its like, ``/metrics``; nothing can be changed here

_OF_SERVER: Final = {
    "connections": ("gauge", "clients that are connected"),
    "total_connections": ("counter", "clients that connected since the start"),
    "leafnodes": ("gauge", "hubs that are connected, whose leaf node the server is"),
    "subscriptions": ("gauge", "subscriptions of clients"),
    "slow_consumers": ("counter", "clients that were cut because they read too slowly"),
    "in_msgs": ("counter", "messages from clients"),
    "out_msgs": ("counter", "messages to clients"),
    "in_bytes": ("counter", "bytes from clients"),
    "out_bytes": ("counter", "bytes to clients"),
    "mem": ("gauge", "bytes of memory"),
}
_OF_JETSTREAM: Final = {
    "storage": ("gauge", "bytes of stored messages"),
    "streams": ("gauge", "streams"),
    "consumers": ("gauge", "consumers"),
    "messages": ("gauge", "stored messages"),
}


async def metrics(server: Observed) -> str:
    """Return all metrics; each name begins with ``pelton_server_`` or ``pelton_jetstream_``."""
    lines: list[str] = []
    clients = {"subscriptions": sum(client.num_subscriptions for client in server.clients)}
    lines += _lines("pelton_server", await varz(server, ReportParameters({})) | clients, _OF_SERVER)
    lines += _lines("pelton_jetstream", await jsz(server, ReportParameters({})), _OF_JETSTREAM)
    return "\n".join([*lines, ""])


def _lines(prefix: str, values: dict[str, Any], wanted: dict[str, tuple[str, str]]) -> list[str]:
    lines = []
    for name, (kind, text) in wanted.items():
        full = f"{prefix}_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {values[name]}"]
    return lines


_LONGEST: Final = 16 << 10
_PATIENCE_S: Final = 5.0
_PIECE: Final = 1 << 16
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class MonitoringListener:
    """Answers HTTP requests on ``endpoint``."""

    endpoint: Endpoint

    def __init__(self, server: Observed, endpoint: Endpoint, clock: Clock) -> None:
        self._server = server
        self.endpoint = endpoint
        self._clock = clock
        self._listening: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to listen. Raises ConfigError if the address cannot be used."""
        host, port = self.endpoint.host, max(self.endpoint.port, 0)
        try:
            self._listening = await asyncio.start_server(self._serve, host, port, limit=_LONGEST)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.endpoint}: {error.strerror or error}") from None
        self.endpoint = Endpoint(host=host, port=self._listening.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
            await self._listening.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=1)
        try:
            head = await within(self._clock, _PATIENCE_S, reader.readuntil(b"\r\n\r\n"))
            status, kind, body = await self._answer(head)
            # A HEAD request gets the same without its body.
            parts = [_response_head(status, kind, body), *(() if head.startswith(b"HEAD ") else body)]
            await within(self._clock, _PATIENCE_S, _send(writer, parts))
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            # No valid request came in time, or nobody reads the answer: nothing waits for that.
            writer.transport.abort()
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> tuple[int, str, list[bytes]]:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target = rest.partition(" ")[0]
        if method not in ("GET", "HEAD"):
            return 405, _JSON, [b'{"error":"only GET"}']
        try:
            path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
        except ValueError:
            return 400, _JSON, [b'{"error":"no path"}']
        if path == "/metrics":
            return 200, _TEXT, [(await metrics(self._server)).encode()]
        report = REPORTS.get(path.strip("/"))
        if report is None and path != "/":
            return 404, _JSON, [b'{"error":"not found"}']
        try:
            found: dict[str, Any] = (
                {"reports": [f"/{name}" for name in REPORTS]}
                if report is None
                else await report(self._server, ReportParameters(query))
            )
        except ReportError as error:
            return error.status, _TEXT, [str(error).encode()]
        except PeltonError as error:
            return 503, _JSON, [msgspec.json.encode({"error": str(error)})]
        status: int = found.pop("status_code", 200)
        return status, _JSON, list(json_parts(found))


def _response_head(status: int, kind: str, body: list[bytes]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}",
        f"Content-Type: {kind}",
        "Access-Control-Allow-Origin: *",
        f"Content-Length: {sum(map(len, body))}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def _send(writer: asyncio.StreamWriter, parts: list[bytes]) -> None:
    """Send what is one answer, and let clients have their turn while the connection takes all of it at once."""
    waiting = bytearray()
    for count, part in enumerate(parts, start=1):
        waiting += part
        if len(waiting) >= _PIECE or count == len(parts):
            writer.write(waiting)
            waiting = bytearray()
            await writer.drain()
            await asyncio.sleep(0)


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
        self._answer(message.reply, None, msgspec.json.encode({"server": self._server.facts(), **found}))


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
            self._spawn(self._report_of(report, message, own), message.reply)
            return True
        if self._claims.take(message):
            return True
        if subject == _PING:
            self._spawn(self._report_of(statsz, message, {}), message.reply)
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
            self._spawn(idz(self._server, ReportParameters({})), message.reply)
        elif name in _COMMANDS and who != "PING":
            self._spawn(self._carry_out(name, message.data), message.reply)
        elif (report := statsz if name == "STATSZ" else _of_server(name)) is not None:
            self._spawn(self._report_of(report, message, {}), message.reply)
        else:
            return False
        return True

    def _take_for_account(self, message: Published, account: str, name: str = "") -> bool:
        if (account, name) == ("PING", "STATZ"):
            self._spawn(self._report_of(accstatz, message, {}), message.reply)
        elif name == "CONNS" and account in self._server.accounts:
            self._reply(message.reply, connections_event(self._server, account, self._runtime))
        elif (report := _OF_ACCOUNT.get(name)) is not None:
            given = {"acc": account} | ({"subs": True} if name == "SUBSZ" else {})
            self._spawn(self._report_of(report, message, given), message.reply)
        else:
            return False
        return True

    # --- answers

    def _spawn(self, work: Awaitable[dict[str, Any] | None], reply: str) -> None:
        async def answer() -> None:
            found = await work
            if found is not None:
                self._reply(reply, found)

        self._runtime.spawn(answer(), "pelton reports on the server")

    async def _report_of(self, report: Report, message: Published, given: dict[str, Any]) -> dict[str, Any] | None:
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

    async def _carry_out(self, name: str, body: bytes) -> dict[str, Any]:
        try:
            if name == "RELOAD":
                await self._server.reload_settings()
                return {}
            number = ReportParameters.of_json(body).number("cid")
            known = self._server.roster.kick(number) if name == "KICK" else self._server.send_away(number)
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
            found["permissions"] = {"publish": _rules_of(rules.publish), "subscribe": _rules_of(rules.subscribe)}
            if (answers := rules.allow_responses) is not None:
                found["permissions"]["responses"] = {"max": answers.max_msgs, "ttl": int(answers.expires * _NS)}
        if user is not None and user.expires is not None:
            found["expires"] = max(0, int(user.expires * _NS) - self._server.clock.now())
        return found

    def _reply(self, reply: str, found: dict[str, Any]) -> None:
        named = found if "id" in found else {"server": self._server.facts(), **found}
        self._answer(reply, None, b"".join(json_parts(named)))


def _of_server(name: str) -> Report | None:
    """Return a report by the name that requests have for it; that on all accounts has one of its own."""
    return None if name == "ACCSTATZ" else REPORTS.get(name.lower())


def _rules_of(rules: AllowDeny) -> dict[str, Any]:
    shown: dict[str, Any] = {} if rules.allow is None else {"allow": list(rules.allow)}
    return shown | ({"deny": list(rules.deny)} if rules.deny else {})
