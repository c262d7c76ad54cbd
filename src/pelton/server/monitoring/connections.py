"""The report on connections (``/connz``) and on what they subscribe to (``/subsz``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from pelton.api import rfc3339
from pelton.api.durations import format_duration
from pelton.server.connection import ClientConnection
from pelton.server.monitoring.observed import JsonList, Observed, ReportError, ReportParameters
from pelton.server.router import ClientSubscription
from pelton.server.settings.options import GLOBAL_ACCOUNT
from pelton.server.turns import in_portions
from pelton.subjects import is_subject, matches, overlaps

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


def client_facts(server: Observed, client: ClientConnection) -> dict[str, Any]:
    """Return everything about a client but its subscriptions; ``authorized_user`` and what follows is for ``auth``."""
    now, wall = server.clock.monotonic(), server.clock.now()
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
        found += [(one, None) for one in server.closed_clients]
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
            page.append(await _shown(facts, client, parameters))
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


async def _open(server: Observed, parameters: ReportParameters) -> list[tuple[dict[str, Any], ClientConnection | None]]:
    filter, clients = parameters.text("filter_subject") if parameters.text("acc") else "", server.clients
    if filter:
        numbers = set()
        async for pairs in in_portions(_subscriptions(clients)):
            numbers |= {client.number for client, one in pairs if overlaps(filter, one.subject)}
        clients = [client for client in clients if client.number in numbers]
    found: list[tuple[dict[str, Any], ClientConnection | None]] = []
    async for some in in_portions(clients):
        found += [(client_facts(server, client), client) for client in some]
    return found


def _subscriptions(clients: Iterable[ClientConnection]) -> Iterator[tuple[ClientConnection, ClientSubscription]]:
    return ((client, one) for client in clients for one in client.subscription_list)


async def _shown(
    facts: dict[str, Any], client: ClientConnection | None, parameters: ReportParameters
) -> dict[str, Any]:
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


def _subscription(client: ClientConnection, one: ClientSubscription) -> dict[str, Any]:
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
    accounts = [one for name, one in server.observed_accounts.items() if wanted in ("", name)]
    offset, limit = parameters.number("offset"), parameters.number("limit", _PAGE)
    told = {
        "server_id": server.id,
        "now": rfc3339(server.clock.now()),
        "num_subscriptions": sum(account.num_subscriptions for account in accounts),
        "num_inserts": sum(account.num_inserts for account in accounts),
        "num_removes": sum(account.num_inserts - account.num_subscriptions for account in accounts),
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
        listed.extend(_of_account(client) | _subscription(client, one) for client, one in page)
        total += len(found)
    return {**told, "total": total, "subscriptions_list": listed}


def _of_account(client: ClientConnection) -> dict[str, str]:
    return {"account": client.account_name, "account_tag": client.account_name}
