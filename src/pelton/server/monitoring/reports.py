"""The reports, one function each; field names are NATS's.

A report takes the server and the parameters of a request: those of a query over HTTP, the fields of JSON on ``$SYS``.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from pelton.api import AccountInfo, AccountInfoRequest, ConsumerInfo, ConsumerList, PeltonError, StreamList, rfc3339
from pelton.api.durations import enc_hook, format_duration
from pelton.runtime import cpu_seconds, memory_bytes
from pelton.server.monitoring.observed import Observed, ObservedAccount, ObservedClient

Parameters = Mapping[str, str]
Report = Callable[[Observed, Parameters], Awaitable[dict[str, Any]]]
_PAGE: Final = 1024
_SECOND: Final = 1_000_000_000


def _flag(parameters: Parameters, name: str) -> bool:
    return str(parameters.get(name, "")).lower() in ("1", "true", "t")


def _number(parameters: Parameters, name: str, default: int) -> int:
    text = str(parameters.get(name, ""))
    return int(text) if text.isdecimal() else default


def _span(seconds: float) -> str:
    return format_duration(int(seconds) * _SECOND)


def traffic(server: Observed) -> dict[str, int]:
    """Return the messages and bytes of all clients since the start."""
    names = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
    return {
        name: getattr(server.totals, name) + sum(getattr(client, name) for client in server.clients) for name in names
    }


async def varz(server: Observed, parameters: Parameters) -> dict[str, Any]:
    """Return the server: its settings, and what it did since it started."""
    settings, about, now = server.settings, server.about(), server.clock.now()
    return {
        "server_id": server.id,
        "server_name": server.name,
        "version": about.version,
        "proto": about.proto,
        "git_commit": about.git_commit,
        "go": about.go,
        "host": about.host,
        "port": about.port,
        **{name: True for name in ("auth_required", "tls_required", "tls_verify") if getattr(about, name)},
        "max_connections": settings.max_connections,
        "ping_interval": int(settings.ping_interval * _SECOND),
        "ping_max": settings.ping_max,
        "max_control_line": settings.max_control_line,
        "max_payload": settings.max_payload,
        "max_pending": settings.max_pending,
        "write_deadline": int(settings.write_deadline * _SECOND),
        "auth_timeout": settings.auth_timeout,
        "start": rfc3339(server.begun),
        "now": rfc3339(now),
        "uptime": _span((now - server.begun) / _SECOND),
        "mem": memory_bytes(),
        "cores": os.cpu_count() or 1,
        "cpu": round(100 * cpu_seconds() / max((now - server.begun) / _SECOND, 0.001), 1),
        "connections": len(server.clients),
        "total_connections": server.totals.connections,
        "subscriptions": sum(account.num_subscriptions for account in server.observed_accounts.values()),
        "slow_consumers": server.totals.slow_consumers,
        "stale_connections": server.totals.stale_connections,
        **traffic(server),
        "jetstream": {"config": _config(server), "stats": await _usage(server)},
    }


def _config(server: Observed) -> dict[str, Any]:
    return {"domain": server.settings.domain} if server.settings.domain else {}


async def _usage(server: Observed) -> dict[str, Any]:
    found = [info for account in server.observed_accounts.values() if (info := await _info(account)) is not None]
    return {
        "memory": sum(info.memory for info in found),
        "storage": sum(info.storage for info in found),
        "accounts": len(found),
        "ha_assets": 0,
        "api": {
            "level": 3,
            "total": sum(info.api.total for info in found),
            "errors": sum(info.api.errors for info in found),
        },
    }


async def _info(account: ObservedAccount) -> AccountInfo | None:
    if not account.has_jetstream:
        return None
    try:
        info: AccountInfo = await account.call(AccountInfoRequest())
    except PeltonError:
        return None
    return info


async def connz(server: Observed, parameters: Parameters) -> dict[str, Any]:
    """Return the clients, a page of them; with ``subs`` their subjects as well."""
    offset, limit = _number(parameters, "offset", 0), _number(parameters, "limit", _PAGE)
    wanted, cid = parameters.get("acc", ""), _number(parameters, "cid", 0)
    clients = sorted(server.clients, key=lambda client: client.number)
    clients = [one for one in clients if wanted in ("", one.account_name) and cid in (0, one.number)]
    page = clients[offset : offset + limit]
    return {
        "server_id": server.id,
        "now": rfc3339(server.clock.now()),
        "num_connections": len(page),
        "total": len(clients),
        "offset": offset,
        "limit": limit,
        "connections": [_client(server, client, parameters) for client in page],
    }


def _client(server: Observed, client: ObservedClient, parameters: Parameters) -> dict[str, Any]:
    now, wall = server.clock.monotonic(), server.clock.now()
    host, _, port = client.peer.rpartition(":")
    found: dict[str, Any] = {
        "cid": client.number,
        "kind": "Client",
        "type": "nats",
        "ip": host.strip("[]"),
        "port": int(port) if port.isdecimal() else 0,
        "start": rfc3339(wall - int((now - client.started) * _SECOND)),
        "last_activity": rfc3339(wall - int((now - client.heard) * _SECOND)),
        "uptime": _span(now - client.started),
        "idle": _span(now - client.heard),
        "pending_bytes": client.pending_bytes,
        "in_msgs": client.in_msgs,
        "out_msgs": client.out_msgs,
        "in_bytes": client.in_bytes,
        "out_bytes": client.out_bytes,
        "subscriptions": client.num_subscriptions,
    }
    named = {"name": client.options.name, "lang": client.options.lang, "version": client.options.version}
    found |= {key: value for key, value in named.items() if value}
    if _flag(parameters, "auth"):
        found |= {"account": client.account_name, "authorized_user": client.user_name}
    if _flag(parameters, "subs"):
        found["subscriptions_list"] = list(client.subjects)
    return found


async def subsz(server: Observed, parameters: Parameters) -> dict[str, Any]:
    """Return how many subscriptions there are."""
    return {
        "server_id": server.id,
        "now": rfc3339(server.clock.now()),
        "num_subscriptions": sum(account.num_subscriptions for account in server.observed_accounts.values()),
    }


async def jsz(server: Observed, parameters: Parameters) -> dict[str, Any]:
    """Return what JetStream holds; with ``accounts``, ``streams``, ``consumers``, ``config`` more and more of it."""
    usage = await _usage(server)
    infos = {name: await _info(account) for name, account in server.observed_accounts.items()}
    found = {
        "server_id": server.id,
        "now": rfc3339(server.clock.now()),
        "config": _config(server),
        **usage,
        "streams": sum(info.streams for info in infos.values() if info is not None),
        "consumers": sum(info.consumers for info in infos.values() if info is not None),
        "messages": 0,
        "bytes": 0,
    }
    wanted = parameters.get("acc", "")
    details = []
    for name, account in server.observed_accounts.items():
        if not account.has_jetstream or wanted not in ("", name):
            continue
        streams = await _streams(account, parameters)
        found["messages"] += sum(stream["state"]["messages"] for stream in streams)
        found["bytes"] += sum(stream["state"]["bytes"] for stream in streams)
        details.append(_account_detail(name, infos[name], streams, parameters))
    if any(_flag(parameters, name) for name in ("accounts", "streams", "consumers", "config")) or wanted:
        found["account_details"] = details
    return found


def _account_detail(
    name: str, info: AccountInfo | None, streams: list[dict[str, Any]], parameters: Parameters
) -> dict[str, Any]:
    detail: dict[str, Any] = {"name": name, "id": name}
    if info is not None:
        detail |= {"memory": info.memory, "storage": info.storage, "api": msgspec.to_builtins(info.api)}
    if any(_flag(parameters, each) for each in ("streams", "consumers", "config")):
        detail["stream_detail"] = streams
    return detail


async def _streams(account: ObservedAccount, parameters: Parameters) -> list[dict[str, Any]]:
    streams: list[dict[str, Any]] = []
    while page := (await account.call(StreamList(offset=len(streams)))).streams:
        for info in page:
            value = msgspec.to_builtins(info, enc_hook=enc_hook)
            stream = {"name": info.config.name, "created": info.created, "state": value["state"]}
            if _flag(parameters, "config"):
                stream["config"] = value["config"]
            if _flag(parameters, "consumers"):
                consumers = (await account.call(ConsumerList(stream=info.config.name))).consumers
                stream["consumer_detail"] = [_consumer(one, parameters) for one in consumers]
            streams.append(stream)
    return streams


def _consumer(info: ConsumerInfo, parameters: Parameters) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(info, enc_hook=enc_hook)
    if not _flag(parameters, "config"):
        del value["config"]
    return value


async def accountz(server: Observed, parameters: Parameters) -> dict[str, Any]:
    """Return the accounts, or one of them in detail."""
    found: dict[str, Any] = {
        "server_id": server.id,
        "now": rfc3339(server.clock.now()),
        "system_account": "$SYS",
        "accounts": list(server.observed_accounts),
    }
    account = server.observed_accounts.get(str(parameters.get("acc", "")))
    if account is not None:
        found["account_detail"] = {
            "account_name": account.name,
            "jetstream_enabled": account.has_jetstream,
            "client_cnt": account.num_clients,
            "sub_cnt": account.num_subscriptions,
        }
    return found


async def accstatz(server: Observed, parameters: Parameters) -> dict[str, Any]:
    """Return how much each account is used."""
    accounts = [account_connections(server, name) for name in server.observed_accounts]
    return {"server_id": server.id, "now": rfc3339(server.clock.now()), "account_statz": accounts}


def account_connections(server: Observed, name: str) -> dict[str, Any]:
    """Return how much one account is used now."""
    clients = [client for client in server.clients if client.account_name == name]
    return {
        "acc": name,
        "name": name,
        "conns": len(clients),
        "leafnodes": 0,
        "total_conns": len(clients),
        "num_subscriptions": server.observed_accounts[name].num_subscriptions,
        "sent": {"msgs": sum(c.out_msgs for c in clients), "bytes": sum(c.out_bytes for c in clients)},
        "received": {"msgs": sum(c.in_msgs for c in clients), "bytes": sum(c.in_bytes for c in clients)},
        "slow_consumers": 0,
    }


async def healthz(server: Observed, parameters: Parameters) -> dict[str, Any]:
    """Return whether the server can do its work: every store answers."""
    for account in server.observed_accounts.values():
        if account.has_jetstream and await _info(account) is None:
            return {"status": "unavailable", "status_code": 503, "error": f"the store of account {account.name} fails"}
    return {"status": "ok", "status_code": 200}


async def statsz(server: Observed, parameters: Parameters) -> dict[str, Any]:
    """Return the few numbers that a server tells on ``$SYS.SERVER.<id>.STATSZ``."""
    now, flow = server.clock.now(), traffic(server)
    return {
        "start": rfc3339(server.begun),
        "mem": memory_bytes(),
        "cores": os.cpu_count() or 1,
        "cpu": round(100 * cpu_seconds() / max((now - server.begun) / _SECOND, 0.001), 1),
        "connections": len(server.clients),
        "total_connections": server.totals.connections,
        "active_accounts": sum(account.num_clients > 0 for account in server.observed_accounts.values()),
        "subscriptions": sum(account.num_subscriptions for account in server.observed_accounts.values()),
        "sent": {"msgs": flow["out_msgs"], "bytes": flow["out_bytes"]},
        "received": {"msgs": flow["in_msgs"], "bytes": flow["in_bytes"]},
        "slow_consumers": server.totals.slow_consumers,
    }


REPORTS: Final[dict[str, Report]] = {
    "varz": varz,
    "connz": connz,
    "subsz": subsz,
    "jsz": jsz,
    "accountz": accountz,
    "accstatz": accstatz,
    "healthz": healthz,
}
"""Each report by its name: ``/varz`` over HTTP, ``$SYS.REQ.SERVER.<id>.VARZ``."""
