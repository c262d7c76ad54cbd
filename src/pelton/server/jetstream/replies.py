"""What a single nats-server adds to the engine's replies: its name as the leader, and API levels (ADR-44)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

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

# Clients tell features by it: what it names is what this server does.
NATS_VERSION: Final = "2.15.1"
API_LEVEL: Final = 3
_REQUIRED: Final = "_nats.req.level"
_OWN: Final = {"_nats.ver": NATS_VERSION, "_nats.level": str(API_LEVEL)}


class ReplyCompletion:
    """Completes the replies of one account's engine. ``domain`` is the JetStream domain, "" for none.

    ``limits`` returns the account's own: those of the server bound it, too, and are not shown.
    """

    def __init__(self, server_name: str, domain: str, limits: Callable[[], AccountLimits]) -> None:
        self._cluster = ClusterInfo(leader=server_name)
        self.domain: str = domain
        self._limits = limits

    def complete(self, request: Request[Any], reply: Any) -> Any:
        """Return a reply as clients get it."""
        if isinstance(reply, AccountInfo):
            return replace(reply, limits=self._limits(), domain=self.domain, api=replace(reply.api, level=API_LEVEL))
        if isinstance(reply, StreamListReply):
            return replace(reply, streams=tuple(map(_listed, reply.streams)))
        if isinstance(reply, ConsumerListReply):
            return replace(reply, consumers=tuple(map(_listed, reply.consumers)))
        if isinstance(reply, StreamInfo | ConsumerInfo):
            reply = _with_metadata(reply, _OWN)
        if isinstance(request, StreamInfoRequest):
            return replace(reply, domain=self.domain, cluster=self._cluster)
        if isinstance(request, StreamCreate):
            # Also for one that is there already, as on NATS.
            return replace(reply, did_create=True)
        return reply


def _listed(info: StreamInfo | ConsumerInfo) -> StreamInfo | ConsumerInfo:
    return _with_metadata(info, {})


def _with_metadata(info: StreamInfo | ConsumerInfo, own: dict[str, str]) -> StreamInfo | ConsumerInfo:
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
