"""The reports on JetStream (``/jsz``, ``/healthz``)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pelton.api import (
    AccountInfo,
    AccountInfoRequest,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerList,
    NotFoundError,
    PeltonError,
    StreamInfoRequest,
    StreamList,
    rfc3339,
)
from pelton.api.durations import enc_hook
from pelton.server.monitoring.observed import Observed, ObservedAccount
from pelton.server.monitoring.parameters import ReportError, ReportParameters

_PAGE: Final = 1024
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
    found = [info for account in server.observed_accounts.values() if (info := await info_of(account)) is not None]
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


async def info_of(account: ObservedAccount) -> AccountInfo | None:
    """Return what an account's store holds; None if it has none, or if the store fails."""
    if not account.has_jetstream:
        return None
    try:
        info: AccountInfo = await account.call(AccountInfoRequest())
    except PeltonError:
        return None
    return info


async def jsz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return what JetStream holds; with ``accounts``, ``streams``, ``consumers``, ``config`` more and more of it."""
    # The same accounts throughout: a reload may come at any time.
    usage, accounts = await jetstream_usage(server), server.observed_accounts
    infos = {name: await info_of(account) for name, account in accounts.items()}
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
        if not account.has_jetstream:
            continue
        streams = await _streams(account, parameters)
        found["messages"] += sum(stream["state"]["messages"] for stream in streams)
        found["bytes"] += sum(stream["state"]["bytes"] for stream in streams)
        if wanted in ("", name):
            details.append(_account_detail(name, infos[name], streams, parameters))
    if details and (wanted or any(parameters.flag(name) for name in ("accounts", *_DETAILS))):
        offset, limit = parameters.number("offset"), parameters.number("limit", _PAGE)
        found["account_details"] = details[offset : offset + limit]
    return found


async def account_jsz(server: Observed, parameters: ReportParameters) -> dict[str, Any]:
    """Return what one account's store holds. Raises ReportError."""
    name = parameters.text("acc")
    account = server.observed_accounts.get(name)
    if account is None:
        raise ReportError(f'account "{name}" not found')
    if not account.has_jetstream:
        raise ReportError(f'account "{name}" not jetstream enabled')
    return _account_detail(name, await info_of(account), await _streams(account, parameters), parameters)


def _account_detail(
    name: str, info: AccountInfo | None, streams: list[dict[str, Any]], parameters: ReportParameters
) -> dict[str, Any]:
    detail: dict[str, Any] = {"name": name, "id": name}
    if info is not None:
        detail |= {"memory": info.memory, "storage": info.storage, "api": msgspec.to_builtins(info.api)}
        detail |= {"reserved_memory": info.reserved_memory, "reserved_storage": info.reserved_storage}
    if any(parameters.flag(each) for each in _DETAILS):
        detail["stream_detail"] = streams
    return detail


async def _streams(account: ObservedAccount, parameters: ReportParameters) -> list[dict[str, Any]]:
    streams: list[dict[str, Any]] = []
    while page := (await account.call(StreamList(offset=len(streams)))).streams:
        for info in page:
            value = msgspec.to_builtins(info, enc_hook=enc_hook)
            stream = {"name": info.config.name, "created": info.created, "state": value["state"]}
            if parameters.flag("config"):
                stream["config"] = value["config"]
            if parameters.flag("consumers"):
                stream["consumer_detail"] = await _consumers(account, info.config.name, parameters)
            streams.append(stream)
    return streams


async def _consumers(account: ObservedAccount, stream: str, parameters: ReportParameters) -> list[dict[str, Any]]:
    consumers: list[dict[str, Any]] = []
    while page := (await account.call(ConsumerList(stream=stream, offset=len(consumers)))).consumers:
        consumers += [_consumer(one, parameters) for one in page]
    return consumers


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
    for account in server.observed_accounts.values():
        if account.has_jetstream and await info_of(account) is None:
            return _unhealthy(503, f"the store of account {account.name} fails")
    if not name:
        return {"status": "ok", "status_code": 200}
    found = server.observed_accounts.get(name)
    if found is None or not found.has_jetstream:
        return _unhealthy(404, f'JetStream account "{name}" not found')
    return await _health_of(found, stream, consumer)


async def _health_of(account: ObservedAccount, stream: str, consumer: str) -> dict[str, Any]:
    try:
        if stream:
            await account.call(StreamInfoRequest(name=stream))
    except NotFoundError:
        return _unhealthy(404, f"JetStream stream '{account.name} > {stream}' not found")
    try:
        if consumer:
            await account.call(ConsumerInfoRequest(stream=stream, name=consumer))
    except NotFoundError:
        return _unhealthy(404, f"JetStream consumer '{account.name} > {stream} > {consumer}' not found")
    return {"status": "ok", "status_code": 200}


def _unhealthy(status: int, text: str) -> dict[str, Any]:
    return {"status": "error" if status == 400 else "unavailable", "status_code": status, "error": text}
