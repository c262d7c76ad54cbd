"""What the reports need to know of a server, their parameters, their JSON in parts, and the one on connections.

**How many subscriptions nats-server has for itself, which it counts with those of clients.** There is none here for a
request that the server answers, a stream or a consumer; but who watches a server by these figures sees those of
nats-server 2.15: a subscription for each subject of a request, and for what streams and consumers are told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final, Protocol

import msgspec

from pelton.api import PeltonError, rfc3339
from pelton.api.json_values import UNREADABLE
from pelton.api.times import format_duration
from pelton.runtime import Clock
from pelton.server.account import ServerAccount
from pelton.server.accounts import AccountResolver
from pelton.server.clients import STALE_CONNECTION, Client
from pelton.server.connection import SLOW_CONSUMER, ServerHost
from pelton.server.leaf_links import LeafLinks
from pelton.server.router import ClientSubscription, in_portions
from pelton.server.settings.options import GLOBAL_ACCOUNT
from pelton.server.store_link import StoreLink
from pelton.subjects import is_subject, matches, overlaps
from pelton.wire import ServerHello

# $SYS.REQ.USER.INFO and what an account asks about itself; another one is $JS.API.> if there is JetStream anywhere.
_OF_ACCOUNT: Final = 4
_OF_SYSTEM: Final = 56
_OF_SYSTEM_FOR_JETSTREAM: Final = 2


def own_subscriptions(server: Observed, account: ServerAccount) -> int:
    """Return how many subscriptions the server itself has in an account."""
    settings, has_stores = server.settings, bool(server.settings.stores)
    if account.name == settings.system_account:
        return _OF_SYSTEM + (_of_jetstream(server) if has_stores else 0)
    config = settings.accounts.get(account.name)
    imports = sum(one.kind == "service" for one in config.imports) if config is not None else 0
    return _OF_ACCOUNT + has_stores + imports + (_of_store(account.link) if account.link is not None else 0)


def _of_jetstream(server: Observed) -> int:
    stores = [one.link.serving.configs for one in server.accounts.values() if one.link is not None]
    # Each consumer has one, and the answers to the API, which is the system's, have one.
    consumers = sum(len(consumers) for _, consumers in stores)
    return _OF_SYSTEM_FOR_JETSTREAM + consumers + any(streams for streams, _ in stores)


def _of_store(link: StoreLink) -> int:
    streams, consumers = link.serving.configs
    found = sum(len(one.subjects) + 2 * (one.allow_direct and one.mirror is None) for one in streams)
    return found + sum(2 + 2 * (one.ack_policy != "none") + 2 * one.flow_control for one in consumers)


def num_subscriptions(server: Observed, account: ServerAccount) -> int:
    """Return how many subscriptions an account's clients and the server have in it."""
    return len(account.router) + own_subscriptions(server, account)


# --- the parameters of a report: of a query over HTTP, or of the JSON of a request on ``$SYS``, under one name each

# What requests on ``$SYS`` call otherwise than queries do.
_QUERY_NAMES: Final = {
    "subscriptions": "subs",
    "account": "acc",
    "consumer": "consumers",
    "include_unused": "unused",
    "leader_only": "leader-only",
}
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("", "0", "f", "F", "FALSE", "false", "False")


class ReportError(PeltonError):
    """A report that cannot be given; ``status`` is that of HTTP."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class ReportParameters:
    """What a report is asked to tell. Methods raise ReportError for values that make no sense."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {_QUERY_NAMES.get(name, name): value for name, value in values.items()}

    @classmethod
    def of_json(cls, body: bytes) -> ReportParameters:
        """Return the parameters in a request's body, which may be empty. Raises ReportError."""
        try:
            values = msgspec.json.decode(body, type=dict[str, Any]) if body.strip() else {}
        except UNREADABLE as error:
            raise ReportError(str(error)) from None
        if values.pop("subscriptions_detail", False) is True:
            values["subs"] = "detail"
        return cls(values)

    def but(self, **values: Any) -> ReportParameters:
        """Return the same parameters, but for some."""
        return ReportParameters({**self._values, **values})

    def text(self, name: str) -> str:
        """Return a text, empty if it is not given."""
        value = self._values.get(name)
        return "" if value is None else str(value)

    def texts(self, name: str) -> list[str]:
        value = self._values.get(name)
        return [str(one) for one in value] if isinstance(value, list) else [value] if isinstance(value, str) else []

    def flag(self, name: str) -> bool:
        """Return whether something is wanted."""
        text = self.text(name)
        if text not in _TRUE + _FALSE:
            raise ReportError(f"Error decoding boolean for '{name}': {text!r} is neither true nor false")
        return text in _TRUE

    def number(self, name: str, default: int = 0) -> int:
        """Return a number; the default if it is not given, or not positive."""
        text = self.text(name)
        try:
            return max(int(text), 0) or default if text else default
        except ValueError:
            raise ReportError(f"Error decoding number for '{name}': {text!r} is no number") from None

    @property
    def has_any(self) -> bool:
        """Whether anything is asked for."""
        return bool(self._values)


# --- reports as JSON in parts: what there can be very many of is encoded some at a time


class JsonList:
    """A list of JSON that is encoded as it grows, and kept in parts: copying 40 MB takes long."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def extend(self, items: Iterable[Any]) -> None:
        """Add values, none of which holds a list of this kind."""
        if text := msgspec.json.encode(list(items))[1:-1]:
            self._parts.append(b",%b" % text if self._parts else text)

    def append(self, item: dict[str, Any]) -> None:
        """Add a value that may hold such lists."""
        if self._parts:
            self._parts.append(b",")
        self._parts += json_parts(item)

    def __iter__(self) -> Iterator[bytes]:
        return chain((b"[",), self._parts, (b"]",))


def json_parts(value: Any) -> Iterator[bytes]:
    """Encode a value, which may be such a list, or hold some in its mappings."""
    if isinstance(value, JsonList):
        yield from value
    elif isinstance(value, dict) and any(isinstance(each, dict | JsonList) for each in value.values()):
        for mark, (name, each) in zip(chain((b"{",), repeat(b",")), value.items(), strict=False):
            yield b"%b%b:" % (mark, msgspec.json.encode(name))
            yield from json_parts(each)
        yield b"}"
    else:
        yield msgspec.json.encode(value)


# --- what the reports need to know of a server

_COUNTS: Final = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
_KICKED: Final = "Kicked"


class TrafficTotals(msgspec.Struct):
    """Counts of a server since its start, of the clients that have left."""

    connections: int = 0
    slow_consumers: int = 0
    stale_connections: int = 0
    in_msgs: int = 0
    out_msgs: int = 0
    in_bytes: int = 0
    out_bytes: int = 0


class ClientRoster:
    """The clients of a server, by their numbers; ``most_closed`` is how many that have left are remembered.

    A connection that is being closed is reported no more, but counts until it is.
    """

    def __init__(self, most_closed: int) -> None:
        self.totals: TrafficTotals = TrafficTotals()
        self.closed: deque[dict[str, Any]] = deque(maxlen=most_closed)
        self._clients: dict[int, Client] = {}
        self._closing: dict[int, Client] = {}

    def __len__(self) -> int:
        return len(self._clients) + len(self._closing)

    def all(self) -> list[Client]:
        return list(self._clients.values())

    def closing(self) -> list[Client]:
        """Return those whose connections are being closed."""
        return list(self._closing.values())

    def add(self, client: Client) -> None:
        """Count a new connection."""
        self._clients[client.number] = client
        self.totals.connections += 1

    def remove(self, clock: Clock, number: int) -> Client | None:
        """Report a client no more, and remember what was known of it; return it unless that was done before."""
        gone = self._clients.pop(number, None)
        if gone is None:
            return None
        self._closing[number] = gone
        for name in _COUNTS:
            setattr(self.totals, name, getattr(self.totals, name) + getattr(gone, name))
        self.totals.slow_consumers += gone.reason == SLOW_CONSUMER
        self.totals.stale_connections += gone.reason == STALE_CONNECTION
        self.closed.append({**client_facts(clock, gone), "stop": rfc3339(clock.now()), "reason": gone.reason})
        return gone

    def forget(self, number: int) -> None:
        """Count the connection of a ``number`` no more: it is closed."""
        self._closing.pop(number, None)

    def get(self, number: int) -> Client | None:
        return self._clients.get(number)

    def kick(self, number: int) -> bool:
        """Let a client go; False if there is none of the number."""
        client = self._clients.get(number)
        if client is not None:
            client.close(_KICKED)
        return client is not None


class Observed(ServerHost, Protocol):
    """A server; ``begun`` is when it started, ``configured`` when its settings were read (wall nanoseconds).

    ``resolver`` keeps the accounts of operator mode, if they are in a folder.
    """

    id: str
    begun: int
    configured: int
    resolver: AccountResolver | None
    roster: ClientRoster
    leafs: LeafLinks

    @property
    def clients(self) -> Sequence[Client]: ...
    @property
    def accounts(self) -> Mapping[str, ServerAccount]: ...
    def about(self) -> ServerHello: ...
    def send_away(self, number: int) -> bool: ...
    async def reload_settings(self) -> None: ...


# --- the report on connections (``/connz``) and on what they subscribe to (``/subsz``)

_PAGE: Final = 1024
_SECOND: Final = 1_000_000_000
_OPEN, _CLOSED, _ANY = "open", "closed", "any"
# Requests on `$SYS` name the state by a number.
_STATES: Final = {"": _OPEN, "0": _OPEN, "1": _CLOSED, "2": _ANY, **{name: name for name in (_OPEN, _CLOSED, _ANY)}}
# The field to sort by, and whether the largest comes first.
_ORDERS: Final[dict[str, tuple[str, bool]]] = {
    "": ("cid", False),
    "cid": ("cid", False),
    "start": ("start", False),
    "subs": ("subscriptions", True),
    "pending": ("pending_bytes", True),
    "msgs_to": ("out_msgs", True),
    "msgs_from": ("in_msgs", True),
    "bytes_to": ("out_bytes", True),
    "bytes_from": ("in_bytes", True),
    "last": ("last_activity", True),
    "idle": ("last_activity", False),
    "uptime": ("start", False),
    "stop": ("stop", False),
    "reason": ("reason", False),
    "rtt": ("rtt", True),
}
_OF_CLOSED: Final = ("stop", "reason")


def span(seconds: float) -> str:
    """Return whole seconds as nats-server writes them."""
    return format_duration(int(seconds) * _SECOND)


def client_facts(clock: Clock, client: Client) -> dict[str, Any]:
    """Return everything about a client but its subscriptions; ``authorized_user`` and what follows is for ``auth``."""
    now, wall = clock.monotonic(), clock.now()
    host, _, port = client.peer.rpartition(":")
    options, tls = client.options, client.tls
    found: dict[str, Any] = {
        "cid": client.number,
        "kind": "Client",
        "type": "websocket" if client.is_bridged else "nats",
        "ip": host.strip("[]"),
        "port": int(port) if port.isdecimal() else 0,
        "start": rfc3339(wall - int((now - client.started) * _SECOND)),
        "last_activity": rfc3339(wall - int((now - client.heard) * _SECOND)),
        "uptime": span(now - client.started),
        "idle": span(now - client.heard),
        "pending_bytes": client.pending_bytes,
        "in_msgs": client.in_msgs,
        "out_msgs": client.out_msgs,
        "in_bytes": client.in_bytes,
        "out_bytes": client.out_bytes,
        "subscriptions": client.num_subscriptions,
    }
    if client.rtt is not None:
        found["rtt"] = format_duration(int(client.rtt * _SECOND) // 1000 * 1000)
    named = {"name": options.name, "lang": options.lang, "version": options.version}
    found |= {key: value for key, value in named.items() if value}
    if tls is not None:
        found |= {"tls_version": tls[0], "tls_cipher_suite": tls[1]}
    return found | {"account": client.account_name, "authorized_user": client.user_name}


async def connz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the clients, a page of them; with ``subs`` their subjects as well."""
    state, key = _STATES.get(parameters.text("state")), _order(parameters)
    if state is None:
        raise ReportError(f"Error decoding state for {parameters.text('state')}")
    if parameters.text("sort") in _OF_CLOSED and state != _CLOSED:
        raise ReportError(f"sort by {parameters.text('sort')} only valid on closed connections")
    cid, limit, offset = parameters.number("cid"), parameters.number("limit", _PAGE), parameters.number("offset")
    found = await _open(server, parameters) if state != _CLOSED else []
    if state != _OPEN:
        found += [(one, None) for one in server.roster.closed]
    account = parameters.text("acc")
    found = [(facts, client) for facts, client in found if account in ("", facts["account"])]
    total = len(found)
    user = parameters.text("user")
    found = [(facts, client) for facts, client in found if user in ("", facts["authorized_user"])]
    if cid:
        found, limit = [(facts, client) for facts, client in found if facts["cid"] == cid], 1
    if parameters.text("mqtt_client"):
        found = []
    found.sort(key=lambda one: key(one[0]), reverse=_ORDERS[parameters.text("sort")][1])
    found, page = found[offset : offset + limit], JsonList()
    async for some in in_portions(found):
        for facts, client in some:
            page.append(await _facts_of(facts, client, parameters))
    return {
        "server_id": server.id,
        "now": rfc3339(server.clock.now()),
        "num_connections": len(found),
        "total": total,
        "offset": offset,
        "limit": limit,
        "connections": page,
    }


def _order(parameters: ReportParameters) -> Callable[[dict[str, Any]], Any]:
    wanted = parameters.text("sort")
    if wanted not in _ORDERS:
        raise ReportError(f"invalid sorting option: {wanted}")
    field = _ORDERS[wanted][0]
    return lambda facts: facts.get(field, "") if field != "rtt" else len(facts.get("rtt", ""))


async def _open(server: Observed, parameters: ReportParameters) -> list[tuple[dict[str, Any], Client | None]]:
    filter, clients = parameters.text("filter_subject") if parameters.text("acc") else "", server.clients
    if filter:
        numbers = set()
        async for pairs in in_portions(_subscriptions(clients)):
            numbers |= {client.number for client, one in pairs if overlaps(filter, one.subject)}
        clients = [client for client in clients if client.number in numbers]
    found: list[tuple[dict[str, Any], Client | None]] = []
    async for some in in_portions(clients):
        found += [(client_facts(server.clock, client), client) for client in some]
    return found


def _subscriptions(clients: Iterable[Client]) -> Iterator[tuple[Client, ClientSubscription]]:
    return ((client, one) for client in clients for one in client.subscription_list)


async def _facts_of(facts: dict[str, Any], client: Client | None, parameters: ReportParameters) -> dict[str, Any]:
    shown = {key: value for key, value in facts.items() if key not in ("account", "authorized_user")}
    if parameters.flag("auth"):
        shown["name_tag"] = facts["account"]
        if facts["authorized_user"]:
            shown["authorized_user"] = facts["authorized_user"]
        if facts["account"] != GLOBAL_ACCOUNT:
            shown["account"] = facts["account"]
    if client is None or not client.num_subscriptions:
        return shown
    if parameters.text("subs") == "detail":
        shown["subscriptions_list_detail"] = listed = JsonList()
        async for some in in_portions(client.subscription_list):
            listed.extend(_subscription(client, one) for one in some)
    elif parameters.flag("subs"):
        shown["subscriptions_list"] = listed = JsonList()
        async for some in in_portions(client.subscription_list):
            listed.extend(one.subject for one in some)
    return shown


def _subscription(client: Client, one: ClientSubscription) -> dict[str, Any]:
    found = {
        "subject": one.subject,
        "sid": one.sid.decode("utf-8", "replace"),
        "msgs": one.received,
        "cid": client.number,
    }
    return found | ({"qgroup": one.queue} if one.queue else {})


async def subsz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return how many subscriptions there are; with ``subs`` a page of them, ``test``: for a subject."""
    wanted, test = parameters.text("acc"), parameters.text("test")
    if test and not is_subject(test):
        raise ReportError(f"invalid test subject, must be valid publish subject: {test}")
    accounts = [one for name, one in server.accounts.items() if wanted in ("", name)]
    own = sum(own_subscriptions(server, account) for account in accounts)
    present = sum(len(account.router) for account in accounts)
    inserted = sum(account.router.inserted for account in accounts)
    offset, limit = parameters.number("offset"), parameters.number("limit", _PAGE)
    told = {
        "server_id": server.id,
        "now": rfc3339(server.clock.now()),
        "num_subscriptions": present + own,
        "num_inserts": inserted + own,
        "num_removes": inserted - present,
        "total": 0,
        "offset": offset,
        "limit": limit,
    }
    if not parameters.flag("subs"):
        return told
    listed, total = JsonList(), 0
    clients = (client for client in server.clients if wanted in ("", client.account_name))
    async for pairs in in_portions(_subscriptions(clients)):
        found = [(client, one) for client, one in pairs if not test or matches(one.subject, test)]
        page = found[max(offset - total, 0) : max(offset + limit - total, 0)]
        listed.extend(
            {"account": client.account_name, "account_tag": client.account_name} | _subscription(client, one)
            for client, one in page
        )
        total += len(found)
    return {**told, "total": total, "subscriptions_list": listed}
