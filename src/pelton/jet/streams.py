"""Handles for users: a store (:class:`Streams`), a stream, a consumer, a message.

They add names, defaults and types to a ``Backend`` and hold no state of their own beyond the last known
configuration, so any number of handles on the same thing may exist. Everything here runs unchanged on every
backend.

**The wall clock of a store: this machine's for a file, the servers' for a cluster.** A program gives a server times of
day, such as when a delay ends. If the program's clock is wrong, so are they. So it asks what time it is there, by the
information of a stream: once a minute, or each time while its own clock shows another one, because either may be wrong
only for a moment. In between, the time since boot goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal, Self, cast

from pelton.api import (
    AccountInfo,
    AccountInfoRequest,
    ApiError,
    Backend,
    BackendSubscription,
    Headers,
    Incoming,
    Outgoing,
    PeltonError,
    PubAck,
    StreamConfig,
    StreamCreate,
    StreamDelete,
    StreamInfoRequest,
    StreamNames,
    StreamUpdate,
    headers,
    parse_rfc3339,
    stream_config,
)
from pelton.api.admission import explain
from pelton.api.arguments import check_text, message_of
from pelton.api.build import schedule_headers, schedule_text, seconds_to_ns
from pelton.api.json_values import from_digits, to_digits
from pelton.api.times import SECOND, Seconds
from pelton.jet.message import (
    AnyMessage,
    HeaderValues,
    PublishOptions,
    all_outgoing,
    batch_of,
    header_block,
    publish_block,
    send,
    send_one,
)
from pelton.jet.stream import Stream, list_all, total_of
from pelton.runtime import Runtime, at_home, steady_now, wall_ahead, within

_KNOWN_FOR_S: Final = 60.0
_LONGEST_S: Final = 2.0
# Clocks that differ by less, and by less than the answer took, are taken for equal.
_CLOSE: Final = SECOND // 10


class StoreTime:
    """The wall clock of the store of one opening."""

    def __init__(self, backend: Backend, runtime: Runtime) -> None:
        self._backend = backend
        self._clock = runtime.clock
        # The clocks of the processes that have a file open are one.
        self._is_here = backend.planning.steady_time
        self._asked = float("-inf")
        # By how much our own clock was ahead of the time since boot when we asked, and the store's, if we did.
        self._mine = 0
        self._theirs: int | None = None

    async def refresh(self, stream: str = "", *, subject: str = "") -> None:
        """Ask for the time if it is not known well: of a stream, or of one that takes ``subject``."""
        if self._is_here or self._is_known:
            return
        mine, before = wall_ahead(self._clock), self._clock.boottime()
        text, differs = "", 0
        # The caller goes on without it, or meets the error next.
        with suppress(PeltonError, TimeoutError):
            text = await within(self._clock, _LONGEST_S, self._ask(stream, subject))
        took = self._clock.boottime() - before
        if text:
            differs = parse_rfc3339(text) - mine - round((before + took / 2) * SECOND)
        if text or self._theirs is None:
            self._theirs = mine + (differs if abs(differs) > _CLOSE + took * SECOND else 0)
        self._asked, self._mine = before, mine

    @property
    def _is_known(self) -> bool:
        is_recent = self._theirs == self._mine and self._clock.boottime() - self._asked < _KNOWN_FOR_S
        return is_recent and abs(wall_ahead(self._clock) - self._mine) < _CLOSE

    async def _ask(self, stream: str, subject: str) -> str:
        names = [stream] if stream else (await self._backend.call(StreamNames(subject=subject))).streams
        return (await self._backend.call(StreamInfoRequest(name=names[0]))).ts if names else ""

    def now(self) -> int:
        """Return the store's wall time in nanoseconds, as far as it is known: call ``refresh`` before."""
        return self._clock.now() if self._theirs is None else self._steady()

    def steady(self) -> Callable[[], int]:
        """Return the store's wall clock from now on; it goes on evenly though this machine's clock is set."""
        return steady_now(self._clock) if self._theirs is None else self._steady

    def _steady(self) -> int:
        return (self._theirs or 0) + round(self._clock.boottime() * SECOND)


class Subscription:
    """A subscription to messages as they are published; returned by :meth:`Streams.subscribe`."""

    def __init__(self, subscription: BackendSubscription, check_loop: Callable[[], None]) -> None:
        self._subscription = subscription
        self._check_loop = check_loop

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def next(self, *, timeout: Seconds | None = None) -> CoreMessage | None:
        """Return the next message, or None after ``timeout`` seconds (None: wait for ever). Raises StoreClosedError."""
        limit = None if timeout is None else seconds_to_ns("timeout", timeout, "a subscription") / 1e9
        incoming = await self._subscription.next(limit)
        return None if incoming is None else CoreMessage(incoming)

    @at_home
    async def __aiter__(self) -> AsyncIterator[CoreMessage]:
        while True:
            incoming = await self._subscription.next()
            if incoming is not None:
                yield CoreMessage(incoming)

    async def close(self) -> None:
        """Unsubscribe. Idempotent."""
        await self._subscription.close()


class CoreMessage:
    """A message received by a subscription."""

    __slots__ = ("_incoming",)

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    def __repr__(self) -> str:
        return f"<CoreMessage {self.subject!r} {len(self.data)} bytes>"

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
        return Headers() if not block else headers.decode(block)

    @property
    def reply(self) -> str:
        """The subject on which its publisher awaits an answer, or empty."""
        return self._incoming.reply


_OPTIONS: Final = tuple(PublishOptions.__annotations__)
_NO_OPTIONS: Final = (None,) * len(_OPTIONS)


class Streams:
    """The streams of an open store or cluster.

    The part of :class:`pelton.Jet` that the rest is built on.
    """

    def __init__(self, backend: Backend, runtime: Runtime) -> None:
        self.backend = backend
        self.runtime = runtime
        self._time = StoreTime(backend, runtime)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what is in progress and close the store. Idempotent."""
        await self.backend.close()

    async def create_stream(self, name: str | StreamConfig, /, **config: Any) -> Stream:
        """Create a stream, or return the existing one if its configuration is the same.

        Keyword arguments are the fields of :class:`StreamConfig`; durations are seconds or ``timedelta``.
        Raises ConfigError for a bad argument, ApiError 10058 if the stream exists with another configuration,
        10065 for overlapping subjects.
        """
        wanted = stream_config(name, **config)
        try:
            info = await self.backend.call(StreamCreate(config=wanted))
        except ApiError as error:
            raise explain(error, wanted.subjects) from None
        return Stream(self.backend, info.config, self.runtime)

    async def update_stream(self, name: str | StreamConfig, /, **config: Any) -> Stream:
        """Change fields of a stream's configuration; the others stay.

        What lower limits do not allow is removed before they hold, in a file in portions between which others can
        write (``discard="new"``: at once); if it is interrupted, the old limits stay. Raises StreamNotFoundError,
        ApiError.
        """
        base: str | StreamConfig = name
        if isinstance(name, str):
            base = (await self.backend.call(StreamInfoRequest(name=name))).config
        wanted = stream_config(base, **config)
        try:
            info = await self.backend.call(StreamUpdate(config=wanted))
        except ApiError as error:
            raise explain(error, wanted.subjects) from None
        return Stream(self.backend, info.config, self.runtime)

    async def stream(self, name: str) -> Stream:
        """Return an existing stream. Raises StreamNotFoundError."""
        return Stream(self.backend, (await self.backend.call(StreamInfoRequest(name=name))).config, self.runtime)

    async def delete_stream(self, name: str) -> None:
        """Remove a stream, its messages and its consumers. Raises StreamNotFoundError."""
        await self.backend.call(StreamDelete(name=name))

    async def stream_names(self, subject: str = "") -> list[str]:
        """Return the names of all streams, or of those that take ``subject``."""
        return await list_all(self.backend, StreamNames(subject=subject), attrgetter("streams"))

    async def account_info(self) -> AccountInfo:
        """Return the storage in use and the numbers of streams and consumers."""
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

        With ``msg_id`` you can safely repeat the call within the stream's duplicate window. ``headers`` map names to
        one text or to several. The message is refused (ExpectationError) unless the stream that takes it has the name
        ``expected_stream``, its last message has the id ``expected_last_msg_id`` and the sequence
        ``expected_last_seq``, and the last message of the subject, or of ``expected_last_subject_seq_subject``, has the
        sequence ``expected_last_subject_seq`` (0: there is none). The message is removed after ``ttl`` (whole seconds);
        ``"never"`` exempts it even from the stream's ``max_age``. The stream must allow it (``allow_msg_ttl``, else
        ApiError 10166).

        Raises NoStreamForSubjectError, ExpectationError, LimitError.
        """
        if type(subject) is not str or type(data) is not bytes:
            subject, data = message_of(subject, data)
        options = (
            msg_id,
            headers,
            expected_stream,
            expected_last_msg_id,
            expected_last_seq,
            expected_last_subject_seq,
            expected_last_subject_seq_subject,
            ttl,
        )
        block: bytes | None = None
        if options != _NO_OPTIONS:
            block = publish_block(cast(PublishOptions, dict(zip(_OPTIONS, options, strict=True))))
        if self.backend.tracing is not None:
            return await send_one(self.backend, Outgoing(subject, data, block))
        return await self.backend.publish(subject, data, block)

    async def add(self, subject: str, delta: int = 1, *, msg_id: str | None = None) -> int:
        """Add ``delta`` to a counter and return its new total; numbers are of any size (ADR-49).

        The subject's stream must allow counters (``allow_msg_counter``). With a ``msg_id`` a repeated call adds only
        once, and returns the current total. Raises NoStreamForSubjectError, ApiError 10168 without counters.
        """
        subject, _ = message_of(subject, b"")
        if msg_id is not None:
            check_text("add", "msg_id", msg_id)
        asked = {"Nats-Incr": to_digits(delta), "Nats-Msg-Id": msg_id}
        ack = await self.backend.publish(subject, b"", header_block(None, asked))
        return await total_of(self.backend, ack.stream, subject) if ack.duplicate else from_digits(ack.val)

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
        """Schedule a message to ``target``: once, ``at`` a time or after a ``delay``, or repeatedly.

        To repeat it, give ``every`` in seconds (at least 1), or ``cron``: six fields, seconds first, or ``"@hourly"``,
        ``"@daily"`` and the like, in UTC or in a ``time_zone`` such as ``"Europe/Berlin"``. The schedule is itself a
        message under ``subject``, one per subject: the next one replaces it, and removing it
        (``stream.purge(filter=subject)``) ends it. One stream must take both subjects, with ``allow_msg_schedules``.
        With ``source`` the last message of that subject is published instead of ``data``, if there is one; ``ttl``
        (seconds) and ``headers`` are those of the published message; ``replace`` lets it replace its predecessors.

        Raises ConfigError; ApiError 10188 if the stream allows no schedules, 10189 for a bad ``cron``, 10223 for
        a bad ``time_zone``, 10190 for a ``target`` that the stream does not take.
        """
        subject, data = message_of(subject, data)
        if delay is not None:
            await self._time.refresh(subject=subject)
        text = schedule_text(self._time.now(), at=at, delay=delay, every=every, cron=cron)
        asked = schedule_headers(text, target, time_zone, ttl, source, replace, delay)
        message = Outgoing(subject, data, header_block(headers, asked))
        if at is not None or delay is not None:
            return await send_one(self.backend, message)
        # One that repeats would put all that it ever causes into one trace.
        return await self.backend.publish(message.subject, message.data, message.headers)

    async def publish_atomic(self, messages: Iterable[AnyMessage]) -> PubAck:
        """Store up to 1,000 messages of one stream together, or none of them (ADR-50).

        Returns the acknowledgement of the last; the batch has the ``count`` sequences up to its ``seq``. Conditions
        (headers ``Nats-Expected-*``) are checked against the stream before the batch. Raises ConfigError, ApiError
        10174 if the stream lacks ``allow_atomic``, 10201 for a duplicate message id, 10176 for messages of different
        streams, and what :meth:`publish` raises: nothing is stored then.
        """

        async def store(given: Sequence[Outgoing]) -> list[PubAck]:
            return [await self.backend.publish_atomic(given)]

        return (await send(self.backend, batch_of(messages), store))[0]

    async def subscribe(self, subject: str, *, queue: str = "") -> Subscription:
        """Subscribe to messages published from now on under a subject or filter, by any process, stored or not.

        Delivery is at most once, like NATS core subscriptions: nothing older, no redelivery. If you cannot miss
        messages, create a consumer. Republished messages and advisories (``$JS.EVENT.>``) arrive here too. Of the
        subscribers with the same ``queue``, one gets each message. Close it, or use it in ``async with``.
        Raises ConfigError.
        """
        check_text("subscribe", "subject", subject)
        check_text("subscribe", "queue", queue)
        return Subscription(await self.backend.subscribe(subject, queue), self.backend.check_loop)

    async def publish_batch(self, messages: Iterable[AnyMessage]) -> list[PubAck]:
        """Store messages in order, durable together: the fast way to write many.

        Raises the error of the first message that is refused; those before it are stored, those after it are
        not.
        """
        return await send(self.backend, all_outgoing(messages), self.backend.publish_batch)
