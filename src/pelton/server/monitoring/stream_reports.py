"""The reports on JetStream (``/jsz``, ``/healthz``)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

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
    StreamInfo,
    StreamInfoRequest,
    StreamList,
    rfc3339,
)
from pelton.api.durations import enc_hook
from pelton.server.jetstream.verbs import listed
from pelton.server.monitoring.observed import JsonList, Observed, ObservedAccount, ReportError, ReportParameters
from pelton.server.settings.options import AccountConfig
from pelton.server.turns import in_portions

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
    return _usage(server, await _infos(server.observed_accounts))


async def _infos(accounts: Mapping[str, ObservedAccount]) -> dict[str, AccountInfo | None]:
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
    accounts = server.observed_accounts
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
        if not account.has_jetstream:
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
    account = server.observed_accounts.get(name)
    if account is None:
        raise ReportError(f'account "{name}" not found')
    if not account.has_jetstream:
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


async def _streams(server: Observed, account: ObservedAccount, parameters: ReportParameters) -> _Streams:
    found, offset = _Streams(), 0
    while page := (await account.call(StreamList(offset=offset))).streams:
        offset += len(page)
        async for some in in_portions(page, _AT_ONCE):
            for info in some:
                found.messages += info.state.messages
                found.bytes += info.state.bytes
                if _has_details(parameters):
                    detail = await _stream(account, listed(info), parameters)
                    found.details.append(detail | {"cluster": {"leader": server.name}})
    return found


async def _stream(account: ObservedAccount, info: StreamInfo, parameters: ReportParameters) -> dict[str, Any]:
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
    account: ObservedAccount, stream: str, parameters: ReportParameters, consumers: JsonList
) -> None:
    offset = 0
    while page := (await account.call(ConsumerList(stream=stream, offset=offset))).consumers:
        offset += len(page)
        async for some in in_portions(page, _AT_ONCE):
            consumers.extend(_consumer(listed(one), parameters) for one in some)


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
