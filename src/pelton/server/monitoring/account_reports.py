"""The reports on accounts (``/accountz``, ``/accstatz``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pelton.api import rfc3339
from pelton.server.connection import ClientConnection
from pelton.server.monitoring.observed import Observed, ObservedAccount
from pelton.server.monitoring.parameters import ReportError, ReportParameters
from pelton.server.settings.config import ExportConfig, ImportConfig

_NOTHING: Final = {"msgs": 0, "bytes": 0}
_NO_OTHERS: Final[dict[str, Any]] = {"gateways": _NOTHING, "routes": _NOTHING, "leafs": _NOTHING}


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
        "sent": _NO_OTHERS | {"msgs": sum(c.out_msgs for c in clients), "bytes": sum(c.out_bytes for c in clients)},
        "received": _NO_OTHERS | {"msgs": sum(c.in_msgs for c in clients), "bytes": sum(c.in_bytes for c in clients)},
        "slow_consumers": 0,
    }
