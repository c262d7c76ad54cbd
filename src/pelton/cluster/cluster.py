"""The cluster as a Backend: every verb is its JSON on its ``$JS.API`` subject, every hot path its own protocol.

What a NATS server cannot do is refused by name: a limit of unacknowledged messages per subject exists only in
embedded stores. What it does not report is not made up: a request for the unsettled messages returns an empty list
(:class:`ConsumerUnsettled`), so what a queue shows of such jobs it reads from the records of their attempts.

**Acknowledgements to a cluster, each confirmed by the server.** The subject of an ack is the reply subject of its
delivery, rebuilt from the fields that identify the delivery. A NATS server confirms an ack that comes late, or twice,
like any other: embedded stores raise ``AckRejectedError``. A server that was killed has forgotten the last deliveries
of its consumers, and never answers their acks: those are rejected here, since the messages are delivered again.

**Batches that a server stores together or not at all (ADR-50).** All messages are sent at once and all are answered, so
that a refusal has a reason; only the reply to the last one is an acknowledgement. If the last was not sent, or is
refused temporarily, nothing was stored, and the batch is sent again under another id. If the reply to the last one is
lost, the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

import msgspec

from pelton.api import (
    AckOp,
    AckRejectedError,
    ConfigError,
    ConsumerCreate,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerNotFoundError,
    ConsumerUnsettled,
    ConsumerUnsettledReply,
    Delivered,
    DirectGet,
    DirectGetDisabledError,
    DirectReply,
    MessageNotFoundError,
    MsgGet,
    Outgoing,
    PeltonError,
    PubAck,
    PullRequest,
    Request,
    ServerTimeoutError,
    Settled,
    StreamFill,
    StreamInfoRequest,
    StreamLastHeaders,
    StreamLastMessages,
    StreamNames,
    Transacting,
    UnsettledGroups,
    UnsettledGroupsReply,
    headers,
)
from pelton.api.admission import check_listening, check_request, check_subject
from pelton.api.backend import Backups, EmbeddedStore, Leftover, Planning, Progress, StrPath
from pelton.api.codec import PREFIX
from pelton.api.keys import Key
from pelton.api.message import ack_payload, ack_subject
from pelton.api.requests import FindMessages, SubjectTotals
from pelton.api.tracing import Replacement, Tracing, Withdrawn
from pelton.cluster.api_calls import ApiCall, Retry, direct_get, find_messages, subject_totals
from pelton.cluster.backups import back_up, restore
from pelton.cluster.connection import Answer, Connection, Interrupted, NotSent, Silent
from pelton.cluster.publisher import Publisher, ack_in, settle_each, unknown, withdraw_each
from pelton.cluster.pull import Channel, FreeChannels, Pull
from pelton.cluster.settings import ClusterSettings
from pelton.cluster.subscription import ClusterSubscription, Presence
from pelton.runtime import Deadline, Runtime


async def ack_all(
    connection: Connection, stream: str, consumer: str, acks: Sequence[AckOp]
) -> list[PeltonError | Interrupted | None]:
    """Send acks, all in flight at once; one entry each: None, why it failed, or Interrupted."""
    answers = await connection.ask_all([Outgoing(ack_subject(stream, consumer, ack), ack_payload(ack)) for ack in acks])
    return [_outcome(answer) for answer in answers]


class NoResponder(Interrupted):
    """No consumer takes this ack: the consumer is gone, or its ack policy is none."""


def _outcome(answer: Answer | Exception) -> PeltonError | Interrupted | None:
    if isinstance(answer, PeltonError | Interrupted):
        return answer
    if isinstance(answer, Exception):
        raise answer
    return NoResponder() if answer.is_unheard else None


async def publish_atomic(
    connection: Connection,
    messages: Sequence[Outgoing],
    new_id: Callable[[], str],
    passes: Callable[[PeltonError], Awaitable[bool]],
) -> PubAck:
    """Store messages together or not at all; raises as `Backend.publish_atomic`."""
    retry = Retry(connection)
    while True:
        try:
            return await _once(connection, messages, new_id())
        except NotSent as lost:
            reason: Exception = lost
        except Interrupted:
            raise unknown(connection, len(messages)) from None
        except PeltonError as error:
            if not await passes(error):
                raise
            reason = error
        await retry.after(reason)


async def _once(connection: Connection, messages: Sequence[Outgoing], batch: str) -> PubAck:
    answers = await connection.ask_all(_as_batch(messages, batch))
    for message, answer in zip(messages, answers, strict=True):
        if not isinstance(answer, Exception):
            ack = ack_in(message.subject, answer)
        elif not isinstance(answer, Interrupted):
            raise answer
    last = answers[-1]
    if isinstance(last, Exception):
        raise last
    return ack


def _as_batch(messages: Sequence[Outgoing], batch: str) -> list[Outgoing]:
    requests: list[Outgoing] = []
    for number, message in enumerate(messages, start=1):
        marked = headers.with_value(message.headers, headers.BATCH_ID, batch)
        marked = headers.with_value(marked, headers.BATCH_SEQUENCE, str(number))
        if number == len(messages):
            marked = headers.with_value(marked, headers.BATCH_COMMIT, "1")
        requests.append(Outgoing(message.subject, message.data, marked))
    return requests


# --- publishing many messages, or groups of messages, together: each is refused by itself

_AT_ONCE: Final = 500


async def publish_apart(publisher: Publisher, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
    """Publish messages, each of which is answered by itself; other errors are raised when all are answered."""
    answers: list[PubAck | PeltonError] = []
    failed = list[BaseException]()
    for start in range(0, len(messages), _AT_ONCE):
        sending = map(publisher.publish, messages[start : start + _AT_ONCE])
        for answer in await asyncio.gather(*sending, return_exceptions=True):
            if isinstance(answer, PubAck | PeltonError):
                answers.append(answer)
            else:
                failed.append(answer)
    if failed:
        raise failed[0]
    return answers


R = TypeVar("R")
_GIVE_BACK_S: Final = 3.0
# Longer than an election takes: it lets the first request go unanswered, and the second is answered.
_CONSUMER_TIMEOUT_S: Final = 8.0
_FORGOTTEN: Final = "the server has forgotten this delivery, since it was killed, and delivers the message again"


class Cluster:
    """A Backend on a NATS cluster; belongs to the event loop that uses it first."""

    planning: Planning = Planning(
        overlapping_pulls=True,
        consumer_timeout=_CONSUMER_TIMEOUT_S,
        atomic_batches=False,
        refuses_late_acks=False,
        has_exclusive_subjects=False,
        own_verbs=frozenset(),
    )
    tracing: Tracing | None = None

    def __init__(self, settings: ClusterSettings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        # Servers of another domain accept writes to their buckets only below their API's prefix.
        self.domain_prefix: str = "" if settings.api_prefix == PREFIX else f"{settings.api_prefix}."
        self._connection = Connection(settings, runtime)
        self._publisher = Publisher(self._connection, f"{runtime.ids.new()}.")
        self._presence = Presence(self._connection)
        self._channels = FreeChannels(self._connection)
        self._giving_back: set[asyncio.Task[None]] = set()

    @property
    def restarted_at(self) -> float:
        """When the only server was lost that was started anew since, in seconds since boot; -inf: never."""
        return self._connection.restarted_at

    async def connect(self) -> None:
        """Connect now rather than on first use.

        Raises ServerUnreachableError, ServerRefusedError, ServerTimeoutError, JetStreamMissingError.
        """
        self._check()
        await self._connection.client()

    # --- the port

    def check_loop(self) -> None:
        """Raise WrongLoopError on another event loop; anything closed or inherited raises its own error."""
        self._connection.belonging.check_loop()

    def _check(self) -> None:
        self._connection.belonging.check()

    async def call(self, request: Request[R]) -> R:
        """Do one administrative verb.

        Waits for elections. If no reply comes, a verb that is harmless to repeat is retried (``api_calls.py``);
        raises ServerTimeoutError for any other verb, which may have been done.
        """
        self._check()
        check_request(request)
        _refuse_embedded_only(request)
        if isinstance(request, ConsumerUnsettled):
            await self.call(ConsumerInfoRequest(stream=request.stream, name=request.name))
            return cast(R, ConsumerUnsettledReply())
        if isinstance(request, UnsettledGroups):
            return cast(R, UnsettledGroupsReply())
        if isinstance(request, FindMessages):
            return cast(R, await find_messages(self, self._runtime.clock, request))
        if isinstance(request, SubjectTotals):
            return cast(R, await subject_totals(self, request))
        return await ApiCall(self._connection, self._settings.api_prefix, request, self._runtime.ids.new).run()

    async def backup(self, target: StrPath, streams: Sequence[str] | None, progress: Progress | None) -> None:
        """Make the servers write backups of streams; see :meth:`pelton.Jet.backup`."""
        self._check()
        if streams is None:
            streams = []
            while page := (await self.call(StreamNames(offset=len(streams)))).streams:
                streams += page
        await back_up(self._connection, streams, os.fspath(target), progress or _no_progress)

    async def restore(
        self,
        source: StrPath,
        streams: Sequence[str] | None,
        names: Mapping[str, str],
        key: Key | None,
        progress: Progress | None,
    ) -> list[str]:
        """Make the servers restore streams from backups; see :meth:`pelton.Jet.restore`."""
        self._check()
        if key is not None:
            raise ConfigError("a backup of a cluster's streams has no key: leave key= out")
        return await restore(self._connection, os.fspath(source), streams, names, progress or _no_progress)

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        """Store a message once, even across a lost connection or an election."""
        self._check()
        return await self._publisher.publish(Outgoing(subject, data, headers))

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store messages in order; after a refused one, some of the next 4,096 may have been stored."""
        self._check()
        return await self._publisher.publish_all(messages)

    async def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        """Store messages, some at once, each answered by itself."""
        self._check()
        return await publish_apart(self._publisher, messages)

    async def publish_atomic(self, messages: Sequence[Outgoing]) -> PubAck:
        """Store messages together or not at all; stored messages keep the headers that made them a batch."""
        self._check()
        for message in messages:
            check_subject(message.subject)
        return await publish_atomic(self._connection, messages, self._runtime.ids.new, self._publisher.passes)

    def backups(self) -> Backups:
        """Return this cluster, whose servers read and write them."""
        return self

    def to_embedded(self, what: str) -> EmbeddedStore:
        raise ConfigError(f"{what} works on a store file; a cluster keeps its own: see the tools of nats-server")

    def transaction(self, timeout: float) -> Transacting:
        """Raise ConfigError: a cluster has no transactions."""
        raise ConfigError(
            "transaction: a cluster has none, they need the embedded engine (pelton.open with a file). The closest "
            "here: publish_atomic stores messages of one stream together or not at all, and a msg_id makes repeating "
            "a publish harmless, so publish first and ack after"
        )

    async def pull(
        self, stream: str, consumer: str, request: PullRequest, leftover: Leftover | None = None
    ) -> list[Delivered]:
        """Take up to ``request.batch`` messages; a pull outlasts lost connections and elections."""
        self._check()
        if request.batch < 1:
            return []
        if request.failover_ns:
            raise ConfigError(
                f"pull from consumer {consumer!r} of stream {stream!r}: failover is a feature of the embedded engine, "
                "a NATS server ignores it: leave it out, and use min_pending or min_ack_pending"
            )
        deadline = Deadline(self._runtime.clock, None if request.expires_ns is None else request.expires_ns / 1e9)
        retry: Retry | None = None
        while True:
            found = await self._pull(self._channels.take((stream, consumer)), (stream, consumer), request, leftover)
            if found is not None:
                return found
            retry = retry or Retry(self._connection)
            await retry.after(Interrupted())
            if (left := deadline.left) is not None:
                request = msgspec.structs.replace(request, expires_ns=int(left * 1e9))

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages directly from replicas; retried until a server answers."""
        self._check()
        retry = Retry(self._connection)
        while True:
            try:
                reply = await direct_get(self._connection, self._settings.api_prefix, stream, request)
                if reply is not None:
                    return reply
                if not (await self.call(StreamInfoRequest(name=stream))).config.allow_direct:
                    raise DirectGetDisabledError(stream)
                reason: Exception = ServerTimeoutError(
                    self._settings.name, f"no server answers direct gets of stream {stream!r}"
                )
            except Interrupted as lost:
                reason = lost
            await retry.after(reason)

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries, each confirmed by the server; repeated until it is."""
        self._check()
        answers: list[PeltonError | None] = [None] * len(acks)
        left = list(range(len(acks)))
        retry: Retry | None = None
        while left:
            found = await ack_all(self._connection, stream, consumer, [acks[index] for index in left])
            again: list[int] = []
            reason: Exception | None = None
            for index, answer in zip(left, found, strict=True):
                if isinstance(answer, Interrupted):
                    again.append(index)
                    reason = answer if reason is None or isinstance(answer, NoResponder) else reason
                else:
                    answers[index] = answer
            left = again
            if isinstance(reason, NoResponder):
                if (await self._explain(stream, consumer)).config.ack_policy == "none":
                    return answers
                # It exists, and will get a leader.
                reason = ServerTimeoutError(self._settings.name, f"no server took the acks of consumer {consumer!r}")
            elif isinstance(reason, Silent):
                delivered = (await self._explain(stream, consumer)).delivered.stream_seq
                for index in left:
                    if (seq := acks[index].seq) > delivered:
                        answers[index] = AckRejectedError(stream, consumer, seq, _FORGOTTEN)
                left = [index for index in left if answers[index] is None]
            if left and reason is not None:
                retry = retry or Retry(self._connection)
                await retry.after(reason)
        return answers

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        """Publish messages, each with an id, then acknowledge the delivery that produced them."""
        self._check()
        for message in publishes:
            check_subject(message.subject)
        named = self._publisher.with_ids(publishes)
        # The last one tells that the others are stored.
        acks = await self._publisher.publish_all(named[:-1])
        acks += await self._publisher.publish_all(named[-1:])
        refused = (await self.ack(stream, consumer, (ack,)))[0]
        if refused is not None:
            raise refused
        return acks

    async def settle_once(self, ending: Settled, stream: str, consumer: str) -> None:
        """Publish messages, the last on its condition, then acknowledge the delivery that produced them."""
        [refused] = await self.settle_many((ending,), stream, consumer)
        if refused is not None:
            raise refused

    async def settle_many(self, endings: Sequence[Settled], stream: str, consumer: str) -> list[PeltonError | None]:
        """Publish what many deliveries produced, each message with an id, then acknowledge them."""
        self._check()
        return await settle_each(self, self._publisher, endings, stream, consumer, self._runtime.clock.now())

    async def withdraw(self, stream: str, instead: Mapping[int, Replacement]) -> Withdrawn:
        """Store others in order, then remove the messages."""
        self._check()
        return await withdraw_each(self, stream, instead)

    async def send(self, subject: str, data: bytes = b"", headers: bytes | None = None, reply: str = "") -> None:
        """Send a message to all subscribers, without waiting for a reply; lost while there is no connection."""
        self._check()
        check_subject(subject)
        with suppress(Interrupted):
            await self._connection.tell(subject, data, reply, headers)

    async def has_message(self, stream: str, subjects: str) -> bool:
        """Whether a stream stores a message of a subject or filter, asked of its leader."""
        try:
            await self.call(MsgGet(stream=stream, last_by_subj=subjects))
        except MessageNotFoundError:
            return False
        return True

    async def has_seen_all(self, consumer: ConsumerInfo) -> bool:
        """Whether the stream's leader stores nothing for a consumer beyond what that had delivered."""
        config, delivered = consumer.config, consumer.delivered.stream_seq

        async def has_later(subjects: str) -> bool:
            try:
                last = await self.call(MsgGet(stream=consumer.stream_name, last_by_subj=subjects))
            except MessageNotFoundError:
                return False
            return last.message.seq > delivered

        filters = config.filter_subjects or (config.filter_subject or ">",)
        return not any(await asyncio.gather(*map(has_later, filters)))

    def might_reach(self, subject: str) -> bool:
        """Return True: only the servers know."""
        return True

    async def subscribe(self, subject: str, queue: str = "") -> ClusterSubscription:
        """Subscribe to messages published from now on, stored or not; with ``queue`` one member of the group gets each.

        Raises ConfigError, ServerPermissionError.
        """
        self._check()
        check_listening(subject, queue)
        subscription = ClusterSubscription(self._connection, subject, queue)
        try:
            await subscription.open()
        except BaseException:
            await subscription.close()
            raise
        return subscription

    async def begun_deliveries(self, stream: str) -> None:
        """Return None: its clients may be anywhere."""

    async def presence(self) -> str:
        """Return a subject to which this client is subscribed while it is connected."""
        self._check()
        return await self._presence.subject()

    async def is_gone(self, presence: str) -> bool:
        """Whether a client's subject has no subscriber; servers unsubscribe a client when its process ends."""
        self._check()
        return await self._presence.is_unheard(presence)

    def on_end(self, told: Callable[[Exception], None]) -> None:
        """Do nothing: a cluster never ends for good, its connection is remade."""

    def clone(self) -> Cluster:
        """Return another connection to the same cluster; it connects on first use."""
        return Cluster(self._settings, self._runtime)

    async def close(self) -> None:
        """Close the connection; waiting pulls end with StoreClosedError. Idempotent."""
        if self._connection.belonging.is_inherited:
            # The parent's socket is not ours to close.
            return
        self.check_loop()
        if self._giving_back:
            # Messages of cancelled pulls are redelivered now, not after the ack wait; bounded in time.
            await asyncio.wait(self._giving_back, timeout=_GIVE_BACK_S)
        await self._connection.close()

    # --- pulls

    async def _pull(
        self, channel: Channel, key: tuple[str, str], request: PullRequest, leftover: Leftover | None
    ) -> list[Delivered] | None:
        """Return what one pull got; None if it got nothing and must be repeated."""
        stream, consumer = key
        subject = f"{self._settings.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        try:
            usable = await Pull(self._connection, subject, request, key).run(channel)
            if not usable:
                await channel.retire()
        except BaseException as error:
            self._let_go(key, channel, leftover)
            if isinstance(error, PeltonError):
                await self._explain(stream, consumer)
                if isinstance(error, ConsumerNotFoundError):
                    # It exists, and has no leader at the moment.
                    return None
            raise
        found, channel.messages = channel.messages, []
        if usable:
            retired = self._channels.put_back(key, channel)
            if retired is not None:
                self._let_go(*retired)
        lost = not usable and not found and channel.is_lost
        return None if lost else found

    def _let_go(self, key: tuple[str, str], channel: Channel, leftover: Leftover | None = None) -> None:
        giving = self._runtime.spawn(self._give_back(channel, *key, leftover), "pelton gives back what it pulled")
        self._giving_back.add(giving)
        giving.add_done_callback(self._giving_back.discard)

    async def _give_back(self, channel: Channel, stream: str, consumer: str, leftover: Leftover | None) -> None:
        await channel.retire()
        if leftover is not None:
            if channel.messages:
                await leftover(channel.messages)
            return
        taken = channel.messages
        if acks := [
            AckOp(kind="nak", seq=m.seq, consumer_seq=m.consumer_seq, num_delivered=m.num_delivered) for m in taken
        ]:
            await self.ack(stream, consumer, acks)

    async def _explain(self, stream: str, consumer: str) -> ConsumerInfo:
        """Raise the server's own error if a stream or consumer is gone."""
        return await self.call(ConsumerInfoRequest(stream=stream, name=consumer))


def _refuse_embedded_only(request: Request[Any]) -> None:
    if isinstance(request, (StreamLastHeaders, StreamLastMessages)):
        raise ConfigError(
            f"stream {request.stream!r}: a NATS server does not list the last messages of its subjects: "
            "read them with a consumer (deliver_policy='last_per_subject')"
        )
    if isinstance(request, StreamFill):
        raise ConfigError(f"stream {request.stream!r}: a NATS server chooses sequences and times itself: publish")
    if isinstance(request, ConsumerCreate) and request.config.max_ack_pending_per_subject:
        name = request.config.name or request.config.durable_name
        raise ConfigError(
            f"consumer {name!r} of stream {request.stream_name!r}: max_ack_pending_per_subject is a feature of the "
            "embedded engine (pelton.open with a file), a NATS server has no such limit: leave it out here"
        )


def _no_progress(done: int, total: int) -> None:
    return None
