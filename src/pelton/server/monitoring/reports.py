"""The reports, one function each; field names are NATS's.

**The reports, one function each; field names are NATS's.** A report takes the server and the parameters of a request,
and raises ReportError if they make no sense. Those on connections, accounts and streams have files of their own.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from pelton.api import rfc3339
from pelton.runtime import cpu_seconds, memory_bytes
from pelton.server.connection import ClientConnection
from pelton.server.monitoring.connections import connz, span, subsz
from pelton.server.monitoring.observed import Observed, ObservedAccount, ReportError, ReportParameters
from pelton.server.monitoring.stream_reports import healthz, jetstream_config, jetstream_usage, jsz
from pelton.server.settings.options import ExportConfig, ImportConfig

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
        return found | {"accounts": list(server.observed_accounts)}
    return found | {"account_detail": account_detail(server, wanted)}


def account_detail(server: Observed, name: str) -> dict[str, Any]:
    """Return one account. Raises ReportError if there is none of the name."""
    account = server.observed_accounts.get(name)
    if account is None:
        raise ReportError(f"Account {name} does not exist")
    config = server.settings.accounts.get(name)
    detail = {
        "account_name": name,
        "update_time": rfc3339(server.begun),
        "expired": False,
        "complete": True,
        "jetstream_enabled": account.has_jetstream,
        "leafnode_connections": 0,
        "client_connections": account.num_clients,
        "subscriptions": account.num_subscriptions,
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
    clients: dict[str, list[ClientConnection]] = {}
    for client in server.clients:
        clients.setdefault(client.account_name, []).append(client)
    accounts = [
        _connections(name, account.num_subscriptions, clients.get(name, []))
        for name, account in server.observed_accounts.items()
        if (not wanted or name in wanted) and (is_all or _is_used(account))
    ]
    return {"server_id": server.id, "now": rfc3339(server.clock.now()), "account_statz": accounts}


def _is_used(account: ObservedAccount) -> bool:
    return account.num_clients > 0


def account_connections(server: Observed, name: str) -> dict[str, Any]:
    """Return how much one account is used now, also one that is not served any more while its last clients leave."""
    clients = [client for client in server.clients if client.account_name == name]
    account = server.observed_accounts.get(name)
    return _connections(name, account.num_subscriptions if account is not None else 0, clients)


def _connections(name: str, subscriptions: int, clients: Sequence[ClientConnection]) -> dict[str, Any]:
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
        name: getattr(server.totals, name) + sum(getattr(client, name) for client in server.clients) for name in names
    }


async def varz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the server: its settings, and what it did since it started."""
    settings, about, now, totals = server.settings, server.about(), server.clock.now(), server.totals
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
        "leaf": {},
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
        "leafnodes": 0,
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
    return sum(account.num_subscriptions for account in server.observed_accounts.values())


async def statsz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the few numbers that a server tells on ``$SYS.SERVER.<id>.STATSZ``."""
    flow = traffic(server)
    sent = {"msgs": flow["out_msgs"], "bytes": flow["out_bytes"]}
    received = {"msgs": flow["in_msgs"], "bytes": flow["in_bytes"]}
    found = {
        "start": rfc3339(server.begun),
        **_machine(server),
        "connections": len(server.clients),
        "total_connections": server.totals.connections,
        "active_accounts": sum(account.num_clients > 0 for account in server.observed_accounts.values()),
        "subscriptions": _subscriptions(server),
        "sent": sent,
        "sent_to_clients": sent,
        "received": received,
        "received_from_clients": received,
        "slow_consumers": server.totals.slow_consumers,
        "active_servers": 1,
    }
    if not server.about().jetstream:
        return found
    return found | {"jetstream": {"config": jetstream_config(server), "stats": await jetstream_usage(server)}}


async def idz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return what the server is called."""
    return {"name": server.name, "host": server.about().host, "id": server.id}


def _here(server: Observed) -> dict[str, Any]:
    return {"server_id": server.id, "now": rfc3339(server.clock.now())}


async def routez(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the routes to other servers: none."""
    return {**_here(server), "server_name": server.name, "num_routes": 0, "routes": []}


async def gatewayz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the gateways to other clusters: none."""
    return {**_here(server), "outbound_gateways": {}, "inbound_gateways": {}}


async def leafz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return the leaf nodes: none."""
    return {**_here(server), "leafnodes": 0, "leafs": []}


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
