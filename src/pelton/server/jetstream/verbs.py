"""The administrative verbs of the JetStream API: JSON in, the engine's reply as JSON out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from pelton.api import (
    AccountInfo,
    AccountInfoRequest,
    AccountLimits,
    ApiError,
    ClusterInfo,
    ConfigError,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerInfo,
    ConsumerListReply,
    ConsumerPause,
    PeltonError,
    Request,
    StoreError,
    StreamConfig,
    StreamCreate,
    StreamInfo,
    StreamInfoRequest,
    StreamListReply,
    StreamUpdate,
    api_error,
    headers,
)
from pelton.api.build import check_token
from pelton.api.codec import decode_request, encode_error, encode_failure, encode_reply, names_of, verb_of
from pelton.api.json_values import is_level
from pelton.api.times import ZERO_TIME
from pelton.engine.verbs.streams import checked_update
from pelton.server.connection import AccountPort, Published
from pelton.server.jetstream.link import StoreLink
from pelton.server.settings.options import SINGLE_TIER, AccountConfig

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


# --- the administrative verbs of the JetStream API: JSON in, the engine's reply as JSON out (ADR-1)

_log: Final = logging.getLogger("pelton.server")
_PREFIX: Final = "$JS.API"
_OF_CLUSTERS: Final = {
    "STREAM.LEADER.STEPDOWN": "stream_leader_stepdown",
    "STREAM.PEER.REMOVE": "stream_remove_peer",
    "CONSUMER.LEADER.STEPDOWN": "consumer_leader_stepdown",
    "META.LEADER.STEPDOWN": "meta_leader_stepdown",
    "SERVER.REMOVE": "meta_server_remove",
    "ACCOUNT.PURGE": "account_purge",
}


class ApiVerbs:
    """Answers the verbs of one account."""

    def __init__(self, link: StoreLink, completion: ReplyCompletion) -> None:
        self._link = link
        self._completion = completion

    def take(self, path: str, message: Published) -> bool:
        """Answer a request; ``path`` is its subject below the prefix. False if there is no such verb."""
        subject = f"{_PREFIX}.{path}"
        verb = verb_of(subject)
        if verb is None:
            return self._take_other(path, message)
        kind = verb.request
        try:
            _check_level(message.block)
            request = decode_request(subject, message.data, check=_check_update)
            assert request is not None
            _check_names(request)
        except ApiError as error:
            self._refuse(message, subject, encode_error(kind, error))
            return True
        self._link.spawn(message.client, self._call(request, message), "pelton answers a request of the API")
        return True

    def _take_other(self, path: str, message: Published) -> bool:
        """Refuse a request that is for clusters."""
        refusal = refusal_for_clusters(path)
        if refusal is None:
            return False
        self._refuse(message, f"{_PREFIX}.{path}", refusal)
        return True

    def _refuse(self, message: Published, subject: str, body: bytes) -> None:
        """Answer a request that the store does not hear of, but for its audit."""
        self._link.account.answer(message.reply, None, body)
        self._link.audit(message, subject, body, is_refused=True)

    async def _call(self, request: Request[Any], message: Published) -> None:
        kind = type(request)
        try:
            await self._link.storing.up_to_here()
            found = await self._link.engine.call(request, self._link.about(message.client))
            self._link.interest.look_at_pushes()
            if isinstance(found, ConsumerInfo) and self._link.interest.is_pushed_here(found.config.deliver_subject):
                # The engine may not know yet.
                found = replace(found, push_bound=True)
            body = encode_reply(kind, self._completion.complete(request, found))
        except PeltonError as error:
            body = encode_error(kind, as_api_error(request, error))
        self._link.account.answer(message.reply, None, body)


def refusal_for_clusters(path: str) -> bytes | None:
    """Return the refusal of a request that is for clusters; None for another one."""
    name = next((name for name in _OF_CLUSTERS if path.startswith(name)), "")
    return encode_failure(_OF_CLUSTERS[name], api_error("JSClusterRequiredErr")) if name else None


def _check_names(request: Request[Any]) -> None:
    """Raise ApiError if a request names what cannot be there; what is to be made gets its reason from the engine."""
    if isinstance(request, StreamCreate | StreamUpdate | ConsumerCreate):
        return
    for what, name in names_of(request).items():
        try:
            check_token(what, name)
        except ConfigError:
            raise api_error("JSStreamNotFoundErr" if what == "stream" else "JSConsumerNotFoundErr") from None


def _check_update(request: StreamUpdate) -> None:
    with suppress(ConfigError):
        checked_update(request)


def _check_level(block: bytes | None) -> None:
    """Refuse a request that needs a newer API (ADR-44)."""
    wanted = headers.first_value(block, headers.REQUIRED_API_LEVEL) if block else None
    if not is_level(wanted, API_LEVEL):
        raise api_error("JSRequiredApiLevelErr")


def as_api_error(request: Request[Any], error: PeltonError) -> ApiError:
    """Return what a client is told of an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ConfigError):
        if isinstance(request, StreamCreate | StreamUpdate | ConsumerCreate) and request.config.num_replicas > 1:
            return api_error("JSStreamReplicasNotSupportedErr")
        if isinstance(request, ConsumerPause):
            return api_error("JSInvalidJSONErr", err=str(error))
        return _missing(request) or api_error("JSStreamInvalidConfigF", err=str(error))
    if isinstance(error, StoreError):
        _log.warning("a request of the API was refused: %s", error)
        return api_error("JSClusterNotAvailErr")
    return api_error("JSStreamStoreFailedF", err=str(error))


def _missing(request: Request[Any]) -> ApiError | None:
    """Return that what a request is about is not there, if nothing can have its name."""
    wanted = {"StreamNotFound": getattr(request, "stream", ""), "ConsumerNotFound": getattr(request, "name", "")}
    if not wanted["StreamNotFound"]:
        wanted = {"StreamNotFound": wanted["ConsumerNotFound"]}
    codes = (f"JS{code}Err" for code, name in wanted.items() if "*" in name or ">" in name)
    return next(map(api_error, codes), None)


# --- answers JetStream requests of accounts that have no store, on a server where others have one

_API: Final = "$JS.API."
_PURGE: Final = "$JS.API.ACCOUNT.PURGE."
_PURGED: Final = {"type": "io.nats.jetstream.api.v1.account_purge_response", "initiated": True}
_SYSTEM: Final = "system"
_TRANSFERS: Final = {"STREAM.SNAPSHOT.": "stream_snapshot", "STREAM.RESTORE.": "stream_restore"}

Purge = Callable[[str, Callable[[], None]], None]
"""Removes the streams of an account by its name, and calls back then."""


class MissingJetStream:
    """Tells clients that their account has no JetStream, as nats-server does.

    ``purge`` removes the streams of another account; None if this one is not the system account.
    """

    def __init__(self, account: AccountPort, purge: Purge | None = None) -> None:
        self._account = account
        self._purge = purge

    def take(self, message: Published) -> bool:
        """Answer a request; False if nobody does."""
        subject = message.subject
        if not subject.startswith(_API) or self._account.is_answered_abroad(subject):
            return False
        if self._purge is not None and subject.startswith(_PURGE):
            purged = msgspec.json.encode(_PURGED)
            self._purge(subject[len(_PURGE) :], lambda: self._account.answer(message.reply, None, purged))
            return True
        body = self._refusal(subject)
        if body is not None:
            self._account.answer(message.reply, None, body)
        return body is not None

    def _refusal(self, subject: str) -> bytes | None:
        error, path, verb = api_error("JSNotEnabledForAccountErr"), subject[len(_API) :], verb_of(subject)
        if self._purge is not None and (verb is None or verb.request is not AccountInfoRequest):
            return encode_failure(_SYSTEM, error)
        if verb is not None:
            return encode_error(verb.request, error)
        kind = next((_TRANSFERS[name] for name in _TRANSFERS if path.startswith(name)), "")
        return encode_failure(kind, error) if kind else refusal_for_clusters(path)
