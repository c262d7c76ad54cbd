"""The reports, one function each; field names are NATS's.

A report takes the server and the parameters of a request, and raises ReportError if they make no sense. Those on
connections stand with what they observe.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from pelton.api import (
    AccountInfo,
    AccountInfoRequest,
    AccountLimits,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerList,
    NotFoundError,
    PeltonError,
    Request,
    StoreClosedError,
    StreamInfo,
    StreamInfoRequest,
    StreamList,
    rfc3339,
)
from pelton.api.times import enc_hook, format_duration
from pelton.runtime import cpu_seconds, memory_bytes
from pelton.server.account import ServerAccount
from pelton.server.clients import Client
from pelton.server.jetstream_api import as_listed
from pelton.server.leaf import LeafConnection
from pelton.server.leaf_links import shown_url
from pelton.server.observed import (
    JsonList,
    Observed,
    ReportError,
    ReportParameters,
    connz,
    num_subscriptions,
    span,
    subsz,
)
from pelton.server.router import in_portions
from pelton.server.settings.options import AccountConfig, ExportConfig, ImportConfig, LeafRemoteConfig

R = TypeVar("R")
_PAGE: Final = 1024
_LARGEST: Final = 1 << 64
# So many streams or consumers are told of in one round of the event loop.
_AT_ONCE: Final = 32
_DETAILS: Final = ("streams", "consumers", "config")


def jetstream_config(server: Observed) -> dict[str, Any]:
    """Return the settings of all stores together."""
    stores = server.settings.stores.values()
    found: dict[str, Any] = {
        "max_memory": server.settings.max_memory_store,
        "max_storage": server.settings.max_file_store,
        "compress_ok": True,
        "sync_interval": 0,
        "strict": True,
    }
    if folder := next((one.path.rpartition("/")[0] for one in stores), ""):
        found["store_dir"] = folder
    return found | ({"domain": server.settings.domain} if server.settings.domain else {})


async def jetstream_usage(server: Observed) -> dict[str, Any]:
    """Return what all stores together hold and were asked."""
    return _usage(server, await _infos(server.accounts))


async def _infos(accounts: Mapping[str, ServerAccount]) -> dict[str, AccountInfo | None]:
    infos = {}
    for name, account in accounts.items():
        infos[name] = await info_of(account)
        # What is only read is answered at once: others have their turn.
        await asyncio.sleep(0)
    return infos


def _usage(server: Observed, infos: Mapping[str, AccountInfo | None]) -> dict[str, Any]:
    found = [info for info in infos.values() if info is not None]
    return {
        "memory": sum(info.memory for info in found),
        "storage": sum(info.storage for info in found),
        "reserved_memory": sum(info.reserved_memory for info in found),
        "reserved_storage": sum(info.reserved_storage for info in found),
        "accounts": len(found),
        "ha_assets": 0,
        "api": {
            "level": server.about().api_lvl,
            "total": sum(info.api.total for info in found),
            "errors": sum(info.api.errors for info in found),
        },
    }


async def info_of(account: ServerAccount) -> AccountInfo | None:
    """Return what an account's store holds; None if it has none, or if the store fails."""
    with suppress(PeltonError):
        return await ask(account, AccountInfoRequest())
    return None


async def ask(account: ServerAccount, request: Request[R]) -> R:
    """Make a request to an account's store. Raises StoreClosedError if it has none, or none any more."""
    if account.link is None:
        raise StoreClosedError(account.name)
    return await account.link.engine.ask(request)


async def jsz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return what JetStream holds; with ``accounts``, ``streams``, ``consumers``, ``config`` more and more of it."""
    # The same accounts throughout: a reload may come at any time.
    accounts = server.accounts
    infos = await _infos(accounts)
    usage = _usage(server, infos)
    found = {
        "server_id": server.id,
        "now": rfc3339(server.clock.now()),
        "config": jetstream_config(server),
        **usage,
        "streams": sum(info.streams for info in infos.values() if info is not None),
        "consumers": sum(info.consumers for info in infos.values() if info is not None),
        "messages": 0,
        "bytes": 0,
        "total": usage["accounts"],
    }
    wanted = parameters.text("acc")
    details = []
    for name, account in accounts.items():
        if account.link is None:
            continue
        streams = await _streams(server, account, parameters)
        found["messages"] += streams.messages
        found["bytes"] += streams.bytes
        if wanted in ("", name):
            details.append(_account_detail(server, name, infos[name], streams, parameters))
    if details and (wanted or any(parameters.flag(name) for name in ("accounts", *_DETAILS))):
        offset, limit = parameters.number("offset"), parameters.number("limit", _PAGE)
        found["account_details"] = page = JsonList()
        for detail in details[offset : offset + limit]:
            page.append(detail)
    return found


async def account_jsz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return what one account's store holds. Raises ReportError."""
    name = parameters.text("acc")
    account = server.accounts.get(name)
    if account is None:
        raise ReportError(f'account "{name}" not found')
    if account.link is None:
        raise ReportError(f'account "{name}" not jetstream enabled')
    return _account_detail(
        server, name, await info_of(account), await _streams(server, account, parameters), parameters
    )


def _account_detail(
    server: Observed, name: str, info: AccountInfo | None, streams: _Streams, parameters: ReportParameters
) -> dict[str, Any]:
    detail: dict[str, Any] = {"name": name, "id": name}
    if info is not None:
        detail |= {"memory": info.memory, "storage": info.storage, "api": msgspec.to_builtins(info.api)}
        detail |= {"accounts": 0, "ha_assets": 0}
        # What the account may use; "any number" is the largest one.
        limits = (server.settings.accounts.get(name) or AccountConfig(name=name)).jetstream or AccountLimits()
        detail |= {"reserved_memory": limits.max_memory % _LARGEST, "reserved_storage": limits.max_storage % _LARGEST}
    if _has_details(parameters):
        detail["stream_detail"] = streams.details
    return detail


def _has_details(parameters: ReportParameters) -> bool:
    return any(parameters.flag(each) for each in _DETAILS)


class _Streams:
    """What the streams of an account hold together, and, if it is asked for, each of them."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self.details = JsonList()


async def _streams(server: Observed, account: ServerAccount, parameters: ReportParameters) -> _Streams:
    found, offset = _Streams(), 0
    while page := (await ask(account, StreamList(offset=offset))).streams:
        offset += len(page)
        async for some in in_portions(page, _AT_ONCE):
            for info in some:
                found.messages += info.state.messages
                found.bytes += info.state.bytes
                if _has_details(parameters):
                    detail = await _stream(account, as_listed(info), parameters)
                    found.details.append(detail | {"cluster": {"leader": server.name}})
    return found


async def _stream(account: ServerAccount, info: StreamInfo, parameters: ReportParameters) -> dict[str, Any]:
    state = msgspec.to_builtins(info.state, enc_hook=enc_hook)
    stream: dict[str, Any] = {"name": info.config.name, "created": info.created, "state": state}
    if parameters.flag("config"):
        stream["config"] = msgspec.to_builtins(info.config, enc_hook=enc_hook)
    if parameters.flag("consumers"):
        # Without more of them if the stream is deleted meanwhile.
        stream["consumer_detail"] = consumers = JsonList()
        with suppress(NotFoundError):
            await _add_consumers(account, info.config.name, parameters, consumers)
    return stream


async def _add_consumers(
    account: ServerAccount, stream: str, parameters: ReportParameters, consumers: JsonList
) -> None:
    offset = 0
    while page := (await ask(account, ConsumerList(stream=stream, offset=offset))).consumers:
        offset += len(page)
        async for some in in_portions(page, _AT_ONCE):
            consumers.extend(_consumer(as_listed(one), parameters) for one in some)


def _consumer(info: ConsumerInfo, parameters: ReportParameters) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(info, enc_hook=enc_hook)
    if not parameters.flag("config"):
        del value["config"]
    return value


async def healthz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return whether the server can do its work: every store answers, and what is asked for is there."""
    if parameters.flag("js-server-only") or parameters.flag("js-enabled-only"):
        return {"status": "ok", "status_code": 200}
    name, stream, consumer = (parameters.text(each) for each in ("acc", "stream", "consumers"))
    if stream and not name:
        return _unhealthy(400, '"account" must not be empty when checking stream health')
    if consumer and not stream:
        return _unhealthy(400, '"stream" must not be empty when checking consumer health')
    for account in server.accounts.values():
        if account.link is not None and await info_of(account) is None:
            return _unhealthy(503, f"the store of account {account.name} fails")
    if not name:
        return {"status": "ok", "status_code": 200}
    found = server.accounts.get(name)
    if found is None or found.link is None:
        return _unhealthy(404, f'JetStream account "{name}" not found')
    return await _health_of(found, stream, consumer)


async def _health_of(account: ServerAccount, stream: str, consumer: str) -> dict[str, Any]:
    try:
        if stream:
            await ask(account, StreamInfoRequest(name=stream))
    except NotFoundError:
        return _unhealthy(404, f"JetStream stream '{account.name} > {stream}' not found")
    try:
        if consumer:
            await ask(account, ConsumerInfoRequest(stream=stream, name=consumer))
    except NotFoundError:
        return _unhealthy(404, f"JetStream consumer '{account.name} > {stream} > {consumer}' not found")
    return {"status": "ok", "status_code": 200}


def _unhealthy(status: int, text: str) -> dict[str, Any]:
    return {"status": "error" if status == 400 else "unavailable", "status_code": status, "error": text}


_NOTHING: Final = {"msgs": 0, "bytes": 0}
_NO_SERVERS: Final[dict[str, Any]] = {"gateways": _NOTHING, "routes": _NOTHING, "leafs": _NOTHING}


async def accountz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the accounts, or one of them in detail."""
    found: dict[str, Any] = {
        "server_id": server.id,
        "now": rfc3339(server.clock.now()),
        "system_account": server.settings.system_account,
    }
    wanted = parameters.text("acc")
    if not wanted:
        return found | {"accounts": list(server.accounts)}
    return found | {"account_detail": account_detail(server, wanted)}


def account_detail(server: Observed, name: str) -> dict[str, Any]:
    """Return one account. Raises ReportError if there is none of the name."""
    account = server.accounts.get(name)
    if account is None:
        raise ReportError(f"Account {name} does not exist")
    config = server.settings.accounts.get(name)
    detail = {
        "account_name": name,
        "update_time": rfc3339(server.begun),
        "expired": False,
        "complete": True,
        "jetstream_enabled": account.link is not None,
        "leafnode_connections": sum(link.account is account for link in server.leafs.open_links),
        "client_connections": len(account.clients),
        "subscriptions": num_subscriptions(server, account),
        "name_tag": (config.name_tag if config is not None else "") or name,
    }
    if config is not None and config.exports:
        detail["exports"] = [_export(one) for one in config.exports]
    if config is not None and config.imports:
        detail["imports"] = [_import(one) for one in config.imports]
    return detail


def _export(one: ExportConfig) -> dict[str, Any]:
    shown: dict[str, Any] = {"subject": one.subject, "type": one.kind}
    if one.kind == "service":
        shown["response_type"] = one.response_type
    if one.accounts is not None:
        shown["approved_accounts"] = sorted(one.accounts)
    return shown


def _import(one: ImportConfig) -> dict[str, Any]:
    local = one.to or one.subject
    shown = {"subject": one.subject, "account": one.account, "local_subject": local, "type": one.kind}
    return {**shown, "invalid": False, "share": one.share, "tracking": False}


async def accstatz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return how much each account is used; with ``unused`` also those that are not."""
    wanted, is_all = parameters.texts("accounts"), parameters.flag("unused")
    clients: dict[str, list[Client]] = {}
    for client in server.clients:
        clients.setdefault(client.account_name, []).append(client)
    accounts = [
        _connections(name, num_subscriptions(server, account), clients.get(name, []))
        for name, account in server.accounts.items()
        if (not wanted or name in wanted) and (is_all or account.clients)
    ]
    return {"server_id": server.id, "now": rfc3339(server.clock.now()), "account_statz": accounts}


def account_connections(server: Observed, name: str) -> dict[str, Any]:
    """Return how much one account is used now, also one that is not served any more while its last clients leave."""
    clients = [client for client in server.clients if client.account_name == name]
    account = server.accounts.get(name)
    return _connections(name, num_subscriptions(server, account) if account is not None else 0, clients)


def _connections(name: str, subscriptions: int, clients: Sequence[Client]) -> dict[str, Any]:
    return {
        "acc": name,
        "name": name,
        "conns": len(clients),
        "leafnodes": 0,
        "total_conns": len(clients),
        "num_subscriptions": subscriptions,
        "sent": _NO_SERVERS | {"msgs": sum(c.out_msgs for c in clients), "bytes": sum(c.out_bytes for c in clients)},
        "received": _NO_SERVERS | {"msgs": sum(c.in_msgs for c in clients), "bytes": sum(c.in_bytes for c in clients)},
        "slow_consumers": 0,
    }


Report = Callable[[Observed, ReportParameters], Awaitable[dict[str, Any]]]
_SECOND: Final = 1_000_000_000
_TLS_TIMEOUT_S: Final = 2.0
_NO_OTHERS: Final = {"routes": 0, "gateways": 0, "leafs": 0}


def traffic(server: Observed) -> dict[str, int]:
    """Return the messages and bytes of all clients since the start."""
    names = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
    return {
        name: getattr(server.roster.totals, name) + sum(getattr(client, name) for client in server.clients)
        for name in names
    }


async def varz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the server: its settings, and what it did since it started."""
    settings, about, now, totals = server.settings, server.about(), server.clock.now(), server.roster.totals
    flow, monitoring = traffic(server), settings.monitoring
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
        "http_host": about.host if monitoring is None else monitoring.host,
        "http_port": 0 if monitoring is None else monitoring.port,
        "http_base_path": "",
        "https_port": 0,
        "max_control_line": settings.max_control_line,
        "max_payload": settings.max_payload,
        "max_pending": settings.max_pending,
        "write_deadline": int(settings.write_deadline * _SECOND),
        "auth_timeout": settings.auth_timeout,
        "tls_timeout": _TLS_TIMEOUT_S if settings.tls is None else settings.tls.timeout,
        "cluster": {},
        "gateway": {},
        "leaf": _remotes(server),
        "mqtt": {},
        "websocket": _websocket(server),
        "start": rfc3339(server.begun),
        "now": rfc3339(now),
        "uptime": span((now - server.begun) / _SECOND),
        **_machine(server),
        "connections": len(server.clients),
        "total_connections": totals.connections,
        "routes": 0,
        "remotes": 0,
        "leafnodes": len(server.leafs.open_links),
        "subscriptions": _subscriptions(server),
        "slow_consumers": totals.slow_consumers,
        "slow_consumer_stats": _NO_OTHERS | {"clients": totals.slow_consumers},
        "stale_connections": totals.stale_connections,
        "stale_connection_stats": _NO_OTHERS | {"clients": totals.stale_connections},
        "stalled_clients": 0,
        **flow,
        **{name.replace("_", "_client_"): count for name, count in flow.items()},
        "config_load_time": rfc3339(server.configured),
        **({"config_digest": settings.config_digest} if settings.config_digest else {}),
        "system_account": settings.system_account,
        "jetstream": {"config": jetstream_config(server), "stats": await jetstream_usage(server)},
    }


def _websocket(server: Observed) -> dict[str, Any]:
    door = server.settings.websocket
    return {} if door is None else {"host": door.host, "port": door.port, "compression": door.compression}


def _machine(server: Observed) -> dict[str, Any]:
    seconds = max((server.clock.now() - server.begun) / _SECOND, 0.001)
    cores = os.cpu_count() or 1
    return {"mem": memory_bytes(), "cores": cores, "gomaxprocs": cores, "cpu": round(100 * cpu_seconds() / seconds, 1)}


def _subscriptions(server: Observed) -> int:
    return sum(num_subscriptions(server, account) for account in server.accounts.values())


async def statsz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the few numbers that a server tells on ``$SYS.SERVER.<id>.STATSZ``."""
    flow = traffic(server)
    sent = {"msgs": flow["out_msgs"], "bytes": flow["out_bytes"]}
    received = {"msgs": flow["in_msgs"], "bytes": flow["in_bytes"]}
    found = {
        "start": rfc3339(server.begun),
        **_machine(server),
        "connections": len(server.clients),
        "total_connections": server.roster.totals.connections,
        "active_accounts": sum(bool(account.clients) for account in server.accounts.values()),
        "subscriptions": _subscriptions(server),
        "sent": sent,
        "sent_to_clients": sent,
        "received": received,
        "received_from_clients": received,
        "slow_consumers": server.roster.totals.slow_consumers,
        "active_servers": 1,
    }
    if not server.about().jetstream:
        return found
    return found | {"jetstream": {"config": jetstream_config(server), "stats": await jetstream_usage(server)}}


async def idz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    return {"name": server.name, "host": server.about().host, "id": server.id}


def _here(server: Observed) -> dict[str, Any]:
    return {"server_id": server.id, "now": rfc3339(server.clock.now())}


async def routez(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    return {**_here(server), "server_name": server.name, "num_routes": 0, "routes": []}


async def gatewayz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    return {**_here(server), "outbound_gateways": {}, "inbound_gateways": {}}


async def leafz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the hubs that are connected, whose leaf node an account is."""
    wanted = parameters.text("acc")
    hubs = [link for link in server.leafs.open_links if wanted in ("", link.account.name)]
    has_list = parameters.flag("subs")
    leafs = [_hub(link.account.name, link.connection, has_list) for link in hubs if link.connection is not None]
    return {**_here(server), "leafnodes": len(leafs), "leafs": leafs}


def _hub(account: str, hub: LeafConnection, has_list: bool) -> dict[str, Any]:
    host, _, port = hub.peer.rpartition(":")
    names = ("in_msgs", "out_msgs", "in_bytes", "out_bytes")
    return {
        "id": hub.number,
        "name": hub.hub.server_name,
        "is_spoke": True,
        "account": account,
        "ip": host.strip("[]"),
        "port": int(port),
        "rtt": format_duration(int((hub.rtt or 0.0) * _SECOND) // 1000 * 1000),
        **{name: getattr(hub, name) for name in names},
        "subscriptions": hub.num_subscriptions,
        **({"subscriptions_list": [one.subject for one in hub.subscription_list]} if has_list else {}),
        "compression": "off",
    }


def _remotes(server: Observed) -> dict[str, Any]:
    """Return the hubs of the settings, and why one is not connected ("reason", which nats-server does not tell)."""
    remotes = [
        {
            "local_account": link.account.name,
            "urls": [shown_url(url).partition("//")[2] for url in link.config.urls],
            **_denials_of(link.config),
            "connected": link.is_open,
            **({"reason": link.reason} if link.reason else {}),
        }
        for link in server.leafs.all
    ]
    return {"remotes": remotes} if remotes else {}


def _denials_of(config: LeafRemoteConfig) -> dict[str, Any]:
    given = (("exports", config.deny_exports), ("imports", config.deny_imports))
    denied = {name: list(subjects) for name, subjects in given if subjects}
    return {"deny": denied} if denied else {}


async def nothing(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return nothing, for what only nats-server has: its queues, its Raft groups."""
    return {}


REPORTS: Final[dict[str, Report]] = {
    "varz": varz,
    "connz": connz,
    "subsz": subsz,
    "jsz": jsz,
    "accountz": accountz,
    "accstatz": accstatz,
    "healthz": healthz,
    "routez": routez,
    "gatewayz": gatewayz,
    "leafz": leafz,
    "ipqueuesz": nothing,
    "raftz": nothing,
}
"""Each report by its name: ``/varz`` over HTTP, ``$SYS.REQ.SERVER.<id>.VARZ``."""
