"""What a single nats-server adds to the engine's replies: its name as the leader, and API levels (ADR-44)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from pelton.api import (
    AccountInfo,
    AccountLimits,
    ClusterInfo,
    ConsumerConfig,
    ConsumerInfo,
    ConsumerListReply,
    Request,
    StreamConfig,
    StreamCreate,
    StreamInfo,
    StreamInfoRequest,
    StreamListReply,
)
from pelton.api.times import ZERO_TIME
from pelton.server.settings.config import SINGLE_TIER, AccountConfig

# Clients tell features by it: what it names is what this server does.
NATS_VERSION: Final = "2.15.1"
API_LEVEL: Final = 3
_REQUIRED: Final = "_nats.req.level"
_NO_LIMITS: Final = AccountLimits(
    max_memory=0,
    max_storage=0,
    max_streams=0,
    max_consumers=0,
    max_ack_pending=0,
    memory_max_stream_bytes=0,
    storage_max_stream_bytes=0,
)
_OWN: Final = {"_nats.ver": NATS_VERSION, "_nats.level": str(API_LEVEL)}


class _Tier(msgspec.Struct, kw_only=True):
    """What an account uses and may use for streams of so many copies."""

    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits


class _TieredInfo(AccountInfo, kw_only=True):
    tiers: dict[str, _Tier]


Info = TypeVar("Info", bound=StreamInfo | ConsumerInfo)


class ReplyCompletion:
    """Completes the replies of one account's engine. ``domain`` is the JetStream domain, "" for none.

    ``config`` returns the account's own limits: those of the server bound it, too, and are not shown.
    """

    def __init__(self, server_name: str, domain: str, config: Callable[[], AccountConfig]) -> None:
        self._cluster = ClusterInfo(leader=server_name)
        self.domain: str = domain
        self._config = config

    def complete(self, request: Request[Any], reply: Any) -> Any:
        """Return a reply as clients get it."""
        if isinstance(reply, AccountInfo):
            return self._account(reply)
        if isinstance(reply, StreamListReply):
            return replace(reply, streams=tuple(map(listed, reply.streams)))
        if isinstance(reply, ConsumerListReply):
            return replace(reply, consumers=tuple(map(listed, reply.consumers)))
        if isinstance(reply, StreamInfo | ConsumerInfo):
            reply = _with_metadata(reply, _OWN)
        if isinstance(request, StreamInfoRequest):
            return replace(reply, domain=self.domain, cluster=self._cluster)
        if isinstance(request, StreamCreate):
            # Also for one that is there already, as on NATS.
            return replace(reply, did_create=True)
        return reply

    def _account(self, reply: AccountInfo) -> AccountInfo:
        config = self._config()
        limits = config.jetstream or AccountLimits()
        reply = replace(reply, limits=limits, domain=self.domain, api=replace(reply.api, level=API_LEVEL))
        if not config.tiers:
            return reply
        # All streams have one copy.
        used = {name: getattr(reply, name) for name in _Tier.__struct_fields__ if name != "limits"}
        tiers = {
            name: _Tier(limits=limits, **used if name == SINGLE_TIER else {}) for name, limits in config.tiers.items()
        }
        return _TieredInfo(**asdict(replace(reply, limits=_NO_LIMITS)), tiers=tiers)


def listed(info: Info) -> Info:
    """Return the info of a stream or consumer as it stands in a list."""
    return _with_metadata(info, {})


def _with_metadata(info: Info, own: dict[str, str]) -> Info:
    """Return an info whose configuration tells the API level that it needs, and what the server itself has."""
    config = info.config
    needed = _level_of_stream(config) if isinstance(config, StreamConfig) else _level_of_consumer(config)
    metadata = {**config.metadata, _REQUIRED: str(needed), **own}
    return replace(info, config=replace(config, metadata=metadata))


def _level_of_stream(config: StreamConfig) -> int:
    if config.allow_batched:
        return 4
    if config.allow_msg_counter or config.allow_atomic or config.allow_msg_schedules or config.persist_mode == "async":
        return 2
    return int(config.allow_msg_ttl or bool(config.subject_delete_marker_ttl))


def _level_of_consumer(config: ConsumerConfig) -> int:
    if config.ack_policy == "flow_control":
        return 4
    return int(config.pause_until not in ("", ZERO_TIME) or bool(config.priority_policy))
