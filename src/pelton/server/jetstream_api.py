"""The JetStream API of an account: administrative verbs (ADR-1), acks (ADR-15), direct gets (ADR-31), pulls (ADR-13).

Acks of one round of the event loop are one group for each consumer. Every ack that asks for an answer gets it when it
is durable, also one that comes too late, as NATS does: what it has settled then is nothing. If nobody of a group asks,
it is stored at once and synced with what follows: a message that was acked may come again after a power loss.

A batch of direct gets is read and sent in pages, as the client keeps up: all of it may be larger
than what may wait for a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from pelton.api import (
    AccountInfo,
    AccountInfoRequest,
    AccountLimits,
    AckOp,
    ApiError,
    ClusterInfo,
    ConfigError,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerInfo,
    ConsumerListReply,
    Delivered,
    DirectGetDisabledError,
    DirectReply,
    PeltonError,
    Request,
    StreamConfig,
    StreamCreate,
    StreamInfo,
    StreamInfoRequest,
    StreamListReply,
    StreamNotFoundError,
    StreamUpdate,
    api_error,
    headers,
)
from pelton.api.build import check_token
from pelton.api.codec import decode_request, encode_error, encode_failure, encode_reply, names_of, verb_of
from pelton.api.direct import MAX_BYTES, WireGet, direct_frames, direct_refusal, direct_request
from pelton.api.json_values import is_level
from pelton.api.message import (
    BATCH_COMPLETED,
    EXPIRED,
    HEARTBEAT,
    PIN_TAKEN,
    TOO_LARGE,
    NextRequest,
    PullStatus,
    ack_target,
    ack_verdict,
    decode_next,
    long_ack_prefix,
    plain_acks,
)
from pelton.api.times import ZERO_TIME
from pelton.engine.serving import Serving
from pelton.engine.verbs.streams import checked_update
from pelton.server.connection import AccountPort, Published
from pelton.server.settings.options import SINGLE_TIER, AccountConfig
from pelton.server.store_link import StoreLink, as_api_error
from pelton.wire import status_block

# Clients tell features by it: what it names is what this server does.
NATS_VERSION: Final = "2.15.1"
API_LEVEL: Final = 3
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
            return replace(reply, streams=tuple(map(as_listed, reply.streams)))
        if isinstance(reply, ConsumerListReply):
            return replace(reply, consumers=tuple(map(as_listed, reply.consumers)))
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


def as_listed(info: Info) -> Info:
    """Return the info of a stream or consumer as it stands in a list."""
    return _with_metadata(info, {})


def _with_metadata(info: Info, own: dict[str, str]) -> Info:
    """Return an info whose configuration tells the API level that it needs, and what the server itself has."""
    config = info.config
    needed = _level_of_stream(config) if isinstance(config, StreamConfig) else _level_of_consumer(config)
    metadata = {**config.metadata, "_nats.req.level": str(needed), **own}
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
_API: Final = "$JS.API."
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
        subject = f"{_API}{path}"
        verb = verb_of(subject)
        if verb is None:
            refusal = refusal_for_clusters(path)
            if refusal is not None:
                self._refuse(message, subject, refusal)
            return refusal is not None
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


# --- answers JetStream requests of accounts that have no store, on a server where others have one

_PURGE: Final = "$JS.API.ACCOUNT.PURGE."
_PURGED: Final = {"type": "io.nats.jetstream.api.v1.account_purge_response", "initiated": True}
ARCHIVES: Final = {"STREAM.SNAPSHOT.": "stream_snapshot", "STREAM.RESTORE.": "stream_restore"}


class MissingJetStream:
    """Tells clients that their account has no JetStream, as nats-server does.

    ``purge`` removes the streams of another account, and calls back; None if this one is not the system account.
    """

    def __init__(self, account: AccountPort, purge: Callable[[str, Callable[[], None]], None] | None = None) -> None:
        self._account = account
        self._purge = purge

    def take(self, message: Published) -> bool:
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
            return encode_failure("system", error)
        if verb is not None:
            return encode_error(verb.request, error)
        kind = next((ARCHIVES[name] for name in ARCHIVES if path.startswith(name)), "")
        return encode_failure(kind, error) if kind else refusal_for_clusters(path)


TRANSFERS: Final = "$JS.SNAPSHOT."
_MISSING: Final = "archives need cramjam and crc32c: pip install 'pelton[serve]'"
_Key = tuple[str, str]


class ClientAcks:
    """The acks of one account's clients. ``long_prefix`` is how the longer form of their subjects begins."""

    def __init__(self, link: StoreLink, pulls: ClientPulls, long_prefix: str) -> None:
        self._link = link
        self._serving = link.serving
        self._answer = link.account.answer
        self._pulls = pulls
        self._long_prefix = long_prefix
        # The acks of a consumer, and where the answers to some of them are awaited.
        self._waiting: dict[_Key, tuple[list[AckOp], list[str]]] = {}
        link.take_acks = self.take_run

    def take_run(self, subjects: Sequence[str]) -> bool:
        """Take plain acks that ask for no answer; False if any of their subjects is not in its usual form."""
        found = plain_acks(subjects)
        if found is None:
            return False
        for key, acks in found.items():
            # Those of no consumer are for nobody.
            if self._takes(*key):
                self._gather(key, acks)
        return True

    def _takes(self, stream: str, consumer: str) -> bool:
        config = self._serving.consumer(stream, consumer)
        return config is not None and config.ack_policy not in ("none", "flow_control")

    def _gather(self, key: _Key, acks: list[AckOp], reply: str = "") -> None:
        if not self._waiting:
            self._serving.soon(self._flush)
        gathered, replies = self._waiting.setdefault(key, ([], []))
        gathered += acks
        if reply:
            replies.append(reply)

    def take(self, message: Published) -> bool:
        """Take an ack; False if no consumer does."""
        target = ack_target(message.subject, self._long_prefix)
        if target is None or not self._takes(target.stream, target.consumer):
            return False
        reply = message.reply
        try:
            verdict = ack_verdict(message.data)
        except ApiError as error:
            self._answer(reply, status_block(error.code, error.description), b"")
            return True
        ack = verdict.of(target)
        if ack is None:
            self._answer(reply, None, b"")
            return True
        following = verdict.following
        self._gather((target.stream, target.consumer), [ack], "" if following else reply)
        if following is not None and reply:
            self._flush()
            self._pulls.pull(target.stream, target.consumer, following, reply)
        return True

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (stream, consumer), (acks, replies) in waiting.items():
            try:
                done = self._serving.ack(stream, consumer, acks, durable=bool(replies))
            except PeltonError:
                # The store is closed, or has failed: what is not answered is redelivered.
                continue
            self._link.answers_after(done)
            done.add_done_callback(lambda done, replies=replies: self._on_settled(done, replies))  # type: ignore[misc]  # a default argument

    def _on_settled(self, done: asyncio.Future[list[PeltonError | None]], replies: list[str]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        for reply in replies:
            self._answer(reply, None, b"")


_PAGE: Final = 1 << 20
_PAUSE_S: Final = 0.005


class DirectGetService:
    """Answers direct gets."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._account = link.account

    def take(self, path: str, message: Published) -> bool:
        """Answer a request; ``path`` is the stream, and the subject whose last message is wanted."""
        stream, _, subject = path.partition(".")
        if not message.reply:
            return True
        try:
            request = direct_request(subject, message.data)
        except ApiError as error:
            self._refuse(message.reply, error)
            return True
        if not self._get_now(stream, request, message.reply):
            self._link.spawn(message.client, self._get(stream, request, message), "pelton answers a direct get")
        return True

    def _get_now(self, stream: str, request: WireGet, reply: str) -> bool:
        """Answer at once, if there is one message to read and nothing to wait for; return whether it was answered."""
        try:
            found = self._link.engine.direct_get_now(stream, request) if self._link.storing.is_idle else None
            if found is not None:
                self._send(reply, self._link.serving.answering_directly(stream), request, found)
        except PeltonError:
            return False
        return found is not None

    async def _get(self, stream: str, request: WireGet, message: Published) -> None:
        reply, subject = message.reply, message.subject
        try:
            await self._link.storing.up_to_here()
            # A mirror of it may answer: this is told, and is no request to the mirror itself.
            name = self._link.serving.answering_directly(stream)
            if request.batch > 0 or request.multi_last:
                await self._get_pages(stream, name, request, reply)
            else:
                self._send(reply, name, request, await self._link.engine.direct_get(stream, request))
        except (StreamNotFoundError, DirectGetDisabledError):
            self._account.answer(reply, status_block(503, Nats_Subject=subject), b"")
        except PeltonError as error:
            self._refuse(reply, error, request)

    async def _get_pages(self, stream: str, name: str, request: WireGet, reply: str) -> None:
        """Read and send a batch, page by page; it ends where a single reply would have."""
        left, last = request.max_bytes or MAX_BYTES, 0
        while True:
            page = replace(request, max_bytes=min(left, _PAGE))
            found = await self._link.engine.direct_get(stream, page)
            left -= sum(len(one.subject.encode()) + len(one.hdrs) + len(one.data) for one in found.messages)
            batch = request.batch - len(found.messages) if request.batch else 0
            is_over = left <= 0 or not found.num_pending or (request.batch > 0 and batch <= 0) or not found.messages
            self._send(reply, name, request, found, after=last, is_over=is_over)
            if is_over:
                return
            last = found.last_seq
            up_to = found.up_to_seq if request.multi_last else 0
            following = replace(request, seq=last + 1, batch=batch, start_time="")
            request = replace(following, up_to_seq=up_to, up_to_time="") if request.multi_last else following
            await self._room(reply)

    async def _room(self, reply: str) -> None:
        """Wait until the client has read most of what it was sent; if it is gone, nothing more is sent anyway."""
        while self._account.receives(reply) and not self._account.has_room_for(reply):
            await self._link.runtime.clock.sleep(_PAUSE_S)

    def _send(
        self, reply: str, stream: str, request: WireGet, found: DirectReply, *, after: int = 0, is_over: bool = True
    ) -> None:
        for frame in direct_frames(stream, request, found, after=after, is_over=is_over):
            self._account.answer(reply, frame.block or None, frame.data)

    def _refuse(self, reply: str, error: PeltonError, request: WireGet | None = None) -> None:
        frame = direct_refusal(error, request)
        self._account.answer(reply, frame.block, frame.data)


# --- pulls of clients: each stands in the engine until it is filled or over, and answers on its reply subject (ADR-13)

_COUNTED: Final = (EXPIRED, TOO_LARGE, BATCH_COMPLETED, PIN_TAKEN)


class ClientPulls:
    """The pulls of one account's clients."""

    def __init__(self, serving: Serving, account: AccountPort) -> None:
        self._serving = serving
        self._account = account

    def take(self, names: str, message: Published) -> bool:
        """Let a pull stand; False if there is no such consumer."""
        stream, _, consumer = names.partition(".")
        config = self._serving.consumer(stream, consumer)
        if config is None:
            return False
        if not message.reply:
            return True
        try:
            request = decode_next(message.data)
        except ApiError as error:
            self._account.answer(message.reply, status_block(error.code, error.description), b"")
            return True
        self.pull(stream, consumer, request, message.reply)
        return True

    def pull(self, stream: str, consumer: str, asked: NextRequest, reply: str) -> None:
        sink = _ClientSink(self._account, reply)
        self._serving.pulls.stand(stream, consumer, asked.request, max(asked.idle_heartbeat, 0) / 1e9, sink)


class _ClientSink:
    """Sends what a pull gets to its reply subject."""

    def __init__(self, account: AccountPort, reply: str) -> None:
        self._account = account
        self._reply = reply

    @property
    def is_gone(self) -> bool:
        """Whether nobody subscribes to the reply subject any more."""
        return not self._account.receives(self._reply)

    @property
    def has_room(self) -> bool:
        """Whether the client reads what it gets."""
        return self._account.has_room_for(self._reply)

    def deliver(self, messages: Sequence[Delivered]) -> None:
        """Send messages, each with the subject that acknowledges it."""
        self._account.send_all(self._reply, messages)

    def beat(self, last_consumer: int, last_stream: int) -> None:
        """Send a sign of life."""
        self._tell(HEARTBEAT, {headers.LAST_CONSUMER: last_consumer, headers.LAST_STREAM: last_stream})

    def end(self, status: PullStatus, left: int, left_bytes: int) -> None:
        """Tell how the pull ended, and what it did not get."""
        counts = {headers.PENDING_MESSAGES: left, headers.PENDING_BYTES: left_bytes} if status in _COUNTED else {}
        self._tell(status, counts)

    def _tell(self, status: PullStatus, values: dict[str, int]) -> None:
        self._account.send(self._reply, self._reply, "", status_block(status.code, status.text, **values), b"")


_ACKS: Final = "$JS.ACK."
_NEXT: Final = "CONSUMER.MSG.NEXT."
_DIRECT: Final = "DIRECT.GET."
_BUCKETS: Final = ("$KV.", "$OBJ.")


class JetStreamService:
    """Answers messages on ``$JS.>``, and those of a domain on ``$JS.<domain>.>``."""

    def __init__(self, link: StoreLink, completion: ReplyCompletion) -> None:
        self._link = link
        domain = completion.domain
        self._domain = f"$JS.{domain}.API." if domain else ""
        self._pulls = ClientPulls(link.serving, link.account)
        self._acks = ClientAcks(link, self._pulls, long_ack_prefix(link.account.name, domain))
        self._direct = DirectGetService(link)
        self._verbs = ApiVerbs(link, completion)

    def take(self, message: Published) -> bool:
        subject = message.subject
        if subject.startswith((_ACKS, TRANSFERS)):
            return (self._acks if subject.startswith(_ACKS) else self._link.transfers).take(message)
        if subject.startswith(_API):
            path = subject[len(_API) :]
        elif self._domain and subject.startswith(self._domain):
            path = subject[len(self._domain) :]
            if path.startswith(_BUCKETS):
                return self._link.account.pass_on(message.client, path, message.reply, message.block, message.data)
        else:
            return False
        if path.startswith(_NEXT):
            return self._pulls.take(path[len(_NEXT) :], message)
        if path.startswith(_DIRECT):
            return self._direct.take(path[len(_DIRECT) :], message)
        verb = next((verb for verb in ARCHIVES if path.startswith(verb)), "")
        return self._take_archive(verb, path[len(verb) :], message) if verb else self._verbs.take(path, message)

    def _take_archive(self, verb: str, stream: str, message: Published) -> bool:
        try:
            from pelton.server.transfers import begin_restore, begin_snapshot
        except ModuleNotFoundError:
            error = api_error("JSStreamGeneralErrorF", err=_MISSING)
            self._link.account.answer(message.reply, None, encode_failure(ARCHIVES[verb], error))
            return True
        begin = begin_snapshot if verb == "STREAM.SNAPSHOT." else begin_restore
        self._link.runtime.spawn(begin(self._link, stream, message), "pelton begins to transfer an archive")
        return True
