"""The handles a user holds: for a store (:class:`Streams`), a stream, a consumer, a message.

They add names, defaults and types to a ``Backend`` and hold no state of their own beyond the last known
configuration, so any number of handles on the same thing may exist. Everything here runs unchanged on every
backend.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from inspect import isawaitable
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from pelton.api import (
    AccountInfo,
    AccountInfoRequest,
    AckKind,
    AckOp,
    AckRejectedError,
    Backend,
    ConfigError,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerNames,
    ConsumerPause,
    ConsumerReset,
    ConsumerUnpin,
    Delivered,
    Headers,
    Incoming,
    MessageNotFoundError,
    MsgDelete,
    MsgGet,
    NotFoundError,
    Outgoing,
    PauseReply,
    PeltonError,
    PinLostError,
    PubAck,
    PullRequest,
    StoreClosedError,
    StreamConfig,
    StreamCreate,
    StreamDelete,
    StreamInfo,
    StreamInfoRequest,
    StreamNames,
    StreamPurge,
    StreamUpdate,
    Subscription,
    consumer_config,
    headers,
    rfc3339,
    stream_config,
)
from pelton.api.build import seconds_to_ns
from pelton.api.numbers import counter_value, from_digits, to_digits
from pelton.api.times import datetime_ns
from pelton.api.timing import schedule_headers, schedule_text, ttl_text
from pelton.jet.ordered import HEARTBEAT_S, OrderedReader
from pelton.jet.push import Pushed
from pelton.jet.reading import Readable
from pelton.runtime import Runtime

HeaderValues = Mapping[str, str | Sequence[str]]
Seconds = float | timedelta
AnyMessage = tuple[str, bytes] | tuple[str, bytes, HeaderValues | None]
"""Subject, data, and headers where there are any."""
_PREFETCH: Final = 64
_LARGEST_BATCH: Final = 1000
_BATCH_HEADERS: Final = (headers.BATCH_ID, headers.BATCH_SEQUENCE, headers.BATCH_COMMIT)
_CONSUMED: Final = 512
_log: Final = logging.getLogger("pelton")


class Streams:
    """The streams of an open store or cluster.

    The part of :class:`pelton.Jet` that everything else is built on.
    """

    def __init__(self, backend: Backend, runtime: Runtime) -> None:
        self.backend = backend
        self.runtime = runtime

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what is under way and let go of the store. Idempotent."""
        await self.backend.close()

    async def create_stream(self, name: str | StreamConfig, /, **config: Any) -> Stream:
        """Make a stream, or return the one there is with the same configuration.

        Keyword arguments are the fields of :class:`StreamConfig`; durations are seconds or ``timedelta``.
        Raises ConfigError for a bad argument, ApiError 10058 when the name is taken by another configuration,
        10065 for overlapping subjects.
        """
        info = await self.backend.call(StreamCreate(config=stream_config(name, **config)))
        return Stream(self.backend, info.config, self.runtime)

    async def update_stream(self, name: str | StreamConfig, /, **config: Any) -> Stream:
        """Change fields of a stream's configuration.

        The others stay. Raises StreamNotFoundError, ApiError.
        """
        base: str | StreamConfig = name
        if isinstance(name, str):
            base = (await self.backend.call(StreamInfoRequest(name=name))).config
        info = await self.backend.call(StreamUpdate(config=stream_config(base, **config)))
        return Stream(self.backend, info.config, self.runtime)

    async def stream(self, name: str) -> Stream:
        """Return a stream that exists. Raises StreamNotFoundError."""
        return Stream(self.backend, (await self.backend.call(StreamInfoRequest(name=name))).config, self.runtime)

    async def delete_stream(self, name: str) -> None:
        """Remove a stream, its messages and its consumers. Raises StreamNotFoundError."""
        await self.backend.call(StreamDelete(name=name))

    async def stream_names(self, subject: str = "") -> list[str]:
        """Return the names of all streams, or of those that take ``subject``."""
        names: list[str] = []
        while True:
            page = await self.backend.call(StreamNames(subject=subject, offset=len(names)))
            names += page.streams
            if not page.streams or len(names) >= page.total:
                return names

    async def account_info(self) -> AccountInfo:
        """Return how much is stored in how many streams."""
        return await self.backend.call(AccountInfoRequest())

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        msg_id: str | None = None,
        headers: HeaderValues | None = None,
        expected_stream: str | None = None,
        expected_last_msg_id: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_subject_seq_subject: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
    ) -> PubAck:
        """Store a message; returns when it is durable (after fsync, unless the store was opened otherwise).

        ``msg_id`` makes repeating the call harmless within the stream's duplicate window. The ``expected_*``
        conditions are NATS's. After ``ttl`` (whole seconds) the message is removed, with ``"never"`` not even
        for the stream's ``max_age``; the stream must allow it (``allow_msg_ttl``, else ApiError 10166).

        Raises NoStreamForSubjectError, ExpectationError, LimitError.
        """
        asked = {
            "Nats-Msg-Id": msg_id,
            "Nats-Expected-Stream": expected_stream,
            "Nats-Expected-Last-Msg-Id": expected_last_msg_id,
            "Nats-Expected-Last-Sequence": expected_last_seq,
            "Nats-Expected-Last-Subject-Sequence": expected_last_subject_seq,
            "Nats-Expected-Last-Subject-Sequence-Subject": expected_last_subject_seq_subject,
            "Nats-TTL": None if ttl is None else ttl_text(ttl),
        }
        return await self.backend.publish(subject, data, header_block(headers, asked))

    async def add(self, subject: str, delta: int = 1, *, msg_id: str | None = None) -> int:
        """Add to a counter and return its new total; numbers are of any size (ADR-49).

        The subject's stream counts (``allow_msg_counter``). With a ``msg_id`` repeating the call adds once, and
        returns the present total. Raises NoStreamForSubjectError, ApiError 10168 where the stream does not count.
        """
        asked = {"Nats-Incr": to_digits(delta), "Nats-Msg-Id": msg_id}
        ack = await self.backend.publish(subject, b"", header_block(None, asked))
        return await _total(self.backend, ack.stream, subject) if ack.duplicate else from_digits(ack.val)

    async def schedule(
        self,
        subject: str,
        data: bytes = b"",
        *,
        target: str,
        at: datetime | None = None,
        delay: Seconds | None = None,
        every: Seconds | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        source: str | None = None,
        replace: bool = False,
        headers: HeaderValues | None = None,
    ) -> PubAck:
        """Have a message published to ``target`` later: once, ``at`` a time or after a ``delay``, or again and again.

        Again and again is ``every`` so many seconds (at least 1), or by ``cron``: six fields, seconds first, or
        ``"@hourly"``, ``"@daily"`` and the like, read in UTC or in a ``time_zone`` such as ``"Europe/Berlin"``.
        The schedule is a message itself, kept under ``subject``, one a subject: the next one replaces it, and
        removing it (``stream.purge(filter=subject)``) ends it. One stream takes both subjects, with
        ``allow_msg_schedules``. With ``source`` the last message of that subject is published instead of ``data``,
        if there is one; ``ttl`` is for what is published; ``replace`` lets it take the place of its predecessors.

        Raises ConfigError; ApiError 10188 where the stream allows no schedules, 10189 for a bad ``cron``, 10223 for
        a bad ``time_zone``, 10190 for a ``target`` that the stream does not take.
        """
        text = schedule_text(self.runtime.clock.now(), at=at, delay=delay, every=every, cron=cron)
        asked = schedule_headers(text, target, time_zone, ttl, source, replace)
        return await self.backend.publish(subject, data, header_block(headers, asked))

    async def publish_atomic(self, messages: Iterable[AnyMessage]) -> PubAck:
        """Store up to 1,000 messages of one stream together, or none of them (ADR-50).

        Returns the acknowledgement of the last; ``count`` of them have the sequences up to its ``seq``. Conditions
        (headers ``Nats-Expected-*``) are about the stream before the batch. Raises ConfigError, ApiError 10174
        where the stream does not say ``allow_atomic``, 10201 for a message id that is known, 10176 for messages of
        different streams, and as :meth:`publish`: nothing is stored then.
        """
        return await self.backend.publish_atomic(batch_of(messages))

    async def subscribe(self, subject: str, *, queue: str = "") -> Listening:
        """Listen to what is published from now on under a subject or filter, by whichever process, stored or not.

        At most once, as NATS's own subscriptions: nothing from before, nothing again; a consumer is for those who must
        miss nothing. Republished messages and events (``$JS.EVENT.>``) are heard so. Each message is told to one of
        those with the same ``queue``. Close it, or use it in ``async with``. Raises ConfigError.
        """
        return Listening(await self.backend.subscribe(subject, queue))

    async def publish_batch(self, messages: Iterable[AnyMessage]) -> list[PubAck]:
        """Store messages in order, durable together: the fast way to write many.

        Raises the error of the first message that is refused; those before it are stored, those after it are
        not.
        """
        return await self.backend.publish_batch([outgoing(*message) for message in messages])


async def _total(backend: Backend, stream: str, subject: str) -> int:
    try:
        found = await backend.call(MsgGet(stream=stream, last_by_subj=subject))
    except MessageNotFoundError:
        return 0
    return counter_value(found.message.data)


def batch_of(messages: Iterable[AnyMessage]) -> list[Outgoing]:
    """Return the messages of a batch that is stored as one, in the port's form. Raises ConfigError."""
    found = [outgoing(*message) for message in messages]
    if not 1 <= len(found) <= _LARGEST_BATCH:
        raise ConfigError(f"a batch of {len(found)} messages: 1 to {_LARGEST_BATCH} are stored together or not at all")
    for _, _, block in found:
        for name in _BATCH_HEADERS if block is not None else ():
            if headers.first(block or b"", name) is not None:
                raise ConfigError(f"header {name}: publish_atomic makes the batch itself; leave it out")
    return found


def header_block(values: HeaderValues | None, asked: Mapping[str, object]) -> bytes | None:
    """Return the encoded header block of a message.

    The user's headers and the conditions that are not None.
    """
    given = {name: str(value) for name, value in asked.items() if value is not None}
    if not given and not values:
        return None
    return headers.encode({**(values or {}), **given})


def outgoing(subject: str, data: bytes, values: HeaderValues | None = None) -> Outgoing:
    """Return a message in the port's form."""
    return subject, data, headers.encode(values) if values else None


class Listening:
    """What is published while one listens; made by :meth:`Streams.subscribe`."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def next(self, *, timeout: Seconds | None = None) -> Heard | None:
        """Return the next message; None when none came within ``timeout``. Raises StoreClosedError."""
        limit = None if timeout is None else seconds_to_ns("timeout", timeout) / 1e9
        found = await self._subscription.next(limit)
        return None if found is None else Heard(found)

    async def __aiter__(self) -> AsyncIterator[Heard]:
        while True:
            found = await self._subscription.next()
            if found is not None:
                yield Heard(found)

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        await self._subscription.close()


class Heard:
    """A message that was heard when it was published."""

    __slots__ = ("_incoming",)

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    def __repr__(self) -> str:
        return f"<Heard {self.subject!r} {len(self.data)} bytes>"

    @property
    def subject(self) -> str:
        """The subject it was published under."""
        return self._incoming.subject

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._incoming.data

    @property
    def headers(self) -> Headers:
        """The headers; empty when the message has none."""
        block = self._incoming.headers
        return Headers() if block is None else headers.decode(block)

    @property
    def reply(self) -> str:
        """Where its publisher awaits an answer, or empty."""
        return self._incoming.reply


class Stream(Readable):
    """A stream. ``config`` is what was last known of its configuration."""

    def __init__(self, backend: Backend, config: StreamConfig, runtime: Runtime) -> None:
        super().__init__(backend, config)
        self._runtime = runtime

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    async def info(self, *, subjects_filter: str = "", deleted_details: bool = False) -> StreamInfo:
        """Return configuration and state; with a filter also the number of messages per subject."""
        request = StreamInfoRequest(name=self.name, subjects_filter=subjects_filter, deleted_details=deleted_details)
        return await self._backend.call(request)

    async def purge(self, *, filter: str = "", seq: int = 0, keep: int = 0) -> int:
        """Remove messages.

        All, of one subject filter, below a sequence, or all but the newest ``keep``; return how many.
        """
        request = StreamPurge(name=self.name, filter=filter, seq=seq, keep=keep)
        return (await self._backend.call(request)).purged

    async def counter(self, subject: str) -> int:
        """Return the total of a counter, 0 where nothing was added yet (ADR-49); :meth:`Jet.add` adds.

        Raises ConfigError where the subject's last message is no counter.
        """
        return await _total(self._backend, self.name, subject)

    async def delete_message(self, seq: int) -> None:
        """Remove one message. Raises ApiError 10057 or 10043 when there is none."""
        await self._backend.call(MsgDelete(stream=self.name, seq=seq))

    async def delete(self) -> None:
        """Remove the stream, its messages and its consumers."""
        await self._backend.call(StreamDelete(name=self.name))

    async def create_consumer(self, config: ConsumerConfig | None = None, /, **fields: Any) -> Consumer:
        """Make a consumer, change it, or return the one there is.

        Keyword arguments are the fields of :class:`ConsumerConfig`; without ``durable_name`` it is ephemeral:
        removed when nobody has used it for ``inactive_threshold``.
        """
        request = ConsumerCreate(stream_name=self.name, config=consumer_config(config, **fields))
        info = await self._backend.call(request)
        return Consumer(self._backend, info)

    async def consumer(self, name: str) -> Consumer:
        """Return a consumer that exists. Raises ConsumerNotFoundError."""
        info = await self._backend.call(ConsumerInfoRequest(stream=self.name, name=name))
        return Consumer(self._backend, info)

    async def consumer_names(self) -> list[str]:
        """Return the names of the stream's consumers."""
        names: list[str] = []
        while True:
            page = await self._backend.call(ConsumerNames(stream=self.name, offset=len(names)))
            names += page.consumers
            if not page.consumers or len(names) >= page.total:
                return names

    async def delete_consumer(self, name: str) -> None:
        """Remove a consumer. Raises ConsumerNotFoundError."""
        await self._backend.call(ConsumerDelete(stream=self.name, name=name))

    async def ordered(self, *, heartbeat: Seconds = HEARTBEAT_S, **fields: Any) -> AsyncIterator[Message]:
        """Read messages exactly in order, each once, for ever: for readers that keep no position of their own.

        ``fields`` are those of a consumer that say where to begin and what to take (``deliver_policy``,
        ``opt_start_seq``, ``filter_subject``, ``headers_only`` ...). Whatever is lost on the way is read again, from
        another consumer if need be (ADR-17); two missed ``heartbeat``s count as a loss. Nothing is acknowledged.
        Raises ConfigError, StreamNotFoundError.
        """
        seconds = seconds_to_ns("heartbeat", heartbeat) / 1e9
        reader = OrderedReader(self._backend, self._runtime, self.name, heartbeat=seconds, **fields)
        deliveries = reader.read()
        try:
            async for delivered in deliveries:
                yield Message(self._backend, delivered)
        finally:
            await deliveries.aclose()


class Consumer:
    """A consumer of a stream. ``config`` is what was last known of its configuration."""

    def __init__(self, backend: Backend, info: ConsumerInfo) -> None:
        self._backend = backend
        self.stream_name = info.stream_name
        self.name = info.name
        self.config = info.config
        self._pins: dict[str, str] = {}

    async def info(self) -> ConsumerInfo:
        """Return configuration, positions and what is outstanding."""
        return await self._backend.call(ConsumerInfoRequest(stream=self.stream_name, name=self.name))

    async def fetch(
        self,
        batch: int = 1,
        *,
        timeout: Seconds | None = 5.0,
        max_bytes: int = 0,
        no_wait: bool = False,
        group: str = "",
        priority: int = 0,
        min_pending: int = 0,
        min_ack_pending: int = 0,
        failover: Seconds = 0,
    ) -> list[Message]:
        """Take up to ``batch`` messages; waits up to ``timeout`` (None: for ever) for the first, returns what is there.

        Empty when none came, and at once where the next message is larger than ``max_bytes``. On a consumer with
        priority groups ``group`` names one, and the other four say when this client is served (ADR-42): see
        :class:`PullRequest`. Raises ConfigError, ConsumerNotFoundError, PullRefusedError, BadRequestError.
        """
        if batch < 1 or max_bytes < 0:
            raise ConfigError(f"fetch of {batch} messages, {max_bytes} bytes: at least 1, and 0 (no limit) or more")
        request = PullRequest(
            batch=batch,
            max_bytes=max_bytes,
            # A limit of the consumer holds for each pull: waiting longer is pulling again.
            expires_ns=self.config.max_expires or None if timeout is None else seconds_to_ns("timeout", timeout),
            no_wait=no_wait,
            group=group,
            pin_id=self._pins.get(group, ""),
            priority=priority,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            failover_ns=seconds_to_ns("failover", failover),
        )
        while True:
            try:
                found = await self._backend.pull(self.stream_name, self.name, request)
            except PinLostError:
                del self._pins[group]
                request = msgspec.structs.replace(request, pin_id="")
                continue
            if found and group:
                self._remember_pin(group, found[0])
            if found or no_wait or timeout is not None or request.expires_ns is None:
                return [Message(self._backend, delivered) for delivered in found]

    def _remember_pin(self, group: str, delivered: Delivered) -> None:
        pin = headers.first(delivered.headers or b"", headers.PIN_ID)
        if pin:
            self._pins[group] = pin

    def pin(self, group: str) -> str:
        """Return the id under which this handle is pinned in a priority group, as far as it knows; or empty."""
        return self._pins.get(group, "")

    async def unpin(self, group: str) -> None:
        """Take the pin of a priority group from whoever holds it, so that another client gets it (ADR-42).

        What was delivered already is finished first. Raises ApiError 10160 for a group that the consumer has not.
        """
        await self._backend.call(ConsumerUnpin(stream=self.stream_name, name=self.name, group=group))

    async def messages(self, *, prefetch: int = _PREFETCH, **pull: Any) -> AsyncIterator[Message]:
        """Iterate over messages for ever, taking up to ``prefetch`` at a time.

        A pull consumer is pulled from: ``pull`` are further arguments of :meth:`fetch`, such as ``group``. A push
        consumer is listened to. What was taken and not handed out when the iteration is closed goes back at once.
        Raises HeartbeatMissedError for a push consumer that asks for heartbeats, and is silent.
        """
        taken: list[Message] = []
        batches = self._batches(prefetch, pull)
        try:
            async for taken in batches:
                taken.reverse()
                while taken:
                    yield taken.pop()
        finally:
            await batches.aclose()
            if taken and self.config.ack_policy not in ("none", "flow_control"):
                await self._give_back(taken)

    async def consume(self, callback: Callable[[Message], object], *, prefetch: int = _CONSUMED, **pull: Any) -> None:
        """Call back with every message, one after the other, until cancelled.

        When ``callback`` (a function, or a coroutine function) returns, the message is acknowledged, unless it was
        settled by the callback itself; when it raises, the error is logged and the message given back. Acks become
        durable in groups; ``prefetch`` bounds them, and ``pull`` is passed to :meth:`fetch`.
        """
        acked = self.config.ack_policy not in ("none", "flow_control")
        batches = self._batches(prefetch, pull)
        try:
            async for messages in batches:
                done, failed = await self._called_back(callback, messages)
                if acked and done:
                    await self._settled("ack", done)
                if acked and failed:
                    await self._settled("nak", failed)
        finally:
            await batches.aclose()

    async def _called_back(
        self, callback: Callable[[Message], object], messages: Sequence[Message]
    ) -> tuple[list[Message], list[Message]]:
        done: list[Message] = []
        failed: list[Message] = []
        for message in messages:
            try:
                result = callback(message)
                if isawaitable(result):
                    await result
            except Exception:  # whatever it is: one message that fails must not stop the others
                _log.exception("the callback of consumer %s/%s failed", self.stream_name, self.name)
                failed.append(message)
                continue
            if not message.is_settled:
                done.append(message)
        return done, failed

    async def _settled(self, kind: AckKind, messages: Sequence[Message]) -> None:
        try:
            await self._acked(kind, messages)
        except AckRejectedError as error:
            _log.warning("%s", error)

    async def _batches(self, prefetch: int, pull: Mapping[str, Any]) -> AsyncGenerator[list[Message], None]:
        if not self.config.deliver_subject:
            while True:
                yield await self.fetch(prefetch, timeout=None, **pull)
        pushed = Pushed(self._backend, self.config, self.stream_name)
        await pushed.open()
        try:
            while True:
                first = await pushed.next()
                if first is not None:
                    yield [Message(self._backend, one) for one in (first, *pushed.take(prefetch - 1))]
        finally:
            await pushed.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def ack(self, messages: Iterable[Message]) -> None:
        """Acknowledge many messages at once; returns when durable.

        Raises the AckRejectedError of the first that had no effect; the others took effect.
        """
        await self._acked("ack", list(messages))

    async def _give_back(self, messages: Sequence[Message]) -> None:
        # Those that are delivered elsewhere by now, or whose consumer or store is gone, need no handing back.
        with suppress(AckRejectedError, NotFoundError, StoreClosedError):
            await self._acked("nak", messages)

    async def _acked(self, kind: AckKind, messages: Sequence[Message]) -> None:
        acks = [
            AckOp(kind=kind, seq=d.seq, consumer_seq=d.consumer_seq, num_delivered=d.num_delivered)
            for d in (message.delivered for message in messages)
        ]
        for refused in await self._backend.ack(self.stream_name, self.name, acks):
            if refused is not None:
                raise refused

    async def pause(self, until: datetime | str) -> PauseReply:
        """Deliver nothing until a time (an aware datetime, or RFC 3339 text). Raises ConsumerNotFoundError."""
        time = rfc3339(datetime_ns(until)) if isinstance(until, datetime) else until
        return await self._backend.call(ConsumerPause(stream=self.stream_name, name=self.name, pause_until=time))

    async def resume(self) -> None:
        """Deliver again, if the consumer was paused."""
        await self._backend.call(ConsumerPause(stream=self.stream_name, name=self.name))

    async def reset(self, seq: int = 0) -> ConsumerInfo:
        """Forget what was delivered and go on from ``seq``, or (0) from the first message that is not acknowledged.

        Raises ApiError 10204 for a sequence that the consumer's deliver policy leaves out.
        """
        return await self._backend.call(ConsumerReset(stream=self.stream_name, name=self.name, seq=seq))

    async def delete(self) -> None:
        """Remove the consumer; messages that it awaited acks for stay in the stream."""
        await self._backend.call(ConsumerDelete(stream=self.stream_name, name=self.name))


class Message:
    """A delivered message. ``delivered`` is the delivery itself (sequences, counts, time, fencing token)."""

    __slots__ = ("_backend", "_headers", "delivered", "is_settled")

    def __init__(self, backend: Backend, delivered: Delivered) -> None:
        self._backend = backend
        self._headers: Headers | None = None
        self.delivered = delivered
        # Whether this handle has said what is to become of it.
        self.is_settled: bool = False

    def __repr__(self) -> str:
        d = self.delivered
        return f"<Message {d.stream}/{d.seq} {d.subject!r} {len(d.data)} bytes, delivery {d.num_delivered}>"

    @property
    def subject(self) -> str:
        """The subject it was stored under."""
        return self.delivered.subject

    @property
    def data(self) -> bytes:
        """The payload."""
        return self.delivered.data

    @property
    def headers(self) -> Headers:
        """The headers; empty when the message has none."""
        if self._headers is None:
            block = self.delivered.headers
            self._headers = Headers() if block is None else headers.decode(block)
        return self._headers

    @property
    def metadata(self) -> Metadata:
        """Where the message comes from and how often it was delivered."""
        return Metadata(self.delivered)

    async def ack(self) -> None:
        """Settle the message.

        Returns when that is durable. Raises AckRejectedError when the delivery is no longer ours.
        """
        await self._say("ack")

    async def ack_sync(self) -> None:
        """The same as :meth:`ack`, which already awaits durability; NATS's name for it."""
        await self._say("ack")

    async def nak(self, *, delay: Seconds = 0) -> None:
        """Give the message back, to be delivered again after ``delay``. Raises AckRejectedError."""
        await self._say("nak", delay_ns=seconds_to_ns("delay", delay))

    async def in_progress(self) -> None:
        """Start the ack wait again: still working. Raises AckRejectedError."""
        await self._say("progress")

    async def term(self, *, reason: str = "") -> None:
        """Settle the message as one that must not be delivered again. Raises AckRejectedError."""
        await self._say("term", reason=reason)

    async def _say(self, kind: AckKind, *, delay_ns: int = 0, reason: str = "") -> None:
        d = self.delivered
        ack = AckOp(
            kind=kind,
            seq=d.seq,
            consumer_seq=d.consumer_seq,
            delay_ns=delay_ns,
            reason=reason,
            num_delivered=d.num_delivered,
        )
        answers: list[PeltonError | None] = await self._backend.ack(d.stream, d.consumer, (ack,))
        self.is_settled = self.is_settled or kind != "progress"
        if answers[0] is not None:
            raise answers[0]


class Metadata:
    """NATS's metadata of a delivery, under NATS's names.

    ``timestamp`` is wall nanoseconds since the epoch.
    """

    __slots__ = (
        "consumer",
        "consumer_seq",
        "num_delivered",
        "num_pending",
        "stream",
        "stream_seq",
        "timestamp",
        "token",
    )

    def __init__(self, delivered: Delivered) -> None:
        self.stream = delivered.stream
        self.consumer = delivered.consumer
        self.stream_seq = delivered.seq
        self.consumer_seq = delivered.consumer_seq
        self.num_delivered = delivered.num_delivered
        self.num_pending = delivered.num_pending
        self.timestamp = delivered.time_ns
        self.token = delivered.token
