"""The handles a user holds: for a store (:class:`Streams`), a stream, a consumer, a message.

They add names, defaults and types to a ``Backend`` and hold no state of their own beyond the last known
configuration, so any number of handles on the same thing may exist. Everything here runs unchanged on every
backend.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self

from pelton.api import (
    AccountInfo,
    AccountInfoRequest,
    ApiError,
    Backend,
    PubAck,
    StreamConfig,
    StreamCreate,
    StreamDelete,
    StreamInfoRequest,
    StreamNames,
    StreamUpdate,
    stream_config,
)
from pelton.api.admission import explain
from pelton.api.arguments import check_text, message_of
from pelton.api.numbers import from_digits, to_digits
from pelton.api.times import Seconds
from pelton.api.timing import schedule_headers, schedule_text
from pelton.jet.outgoing import AnyMessage, HeaderValues, all_outgoing, batch_of, header_block, publish_block
from pelton.jet.stream import Stream, total_of
from pelton.jet.subscription import Subscription
from pelton.runtime import Runtime


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
        wanted = stream_config(name, **config)
        try:
            info = await self.backend.call(StreamCreate(config=wanted))
        except ApiError as error:
            raise explain(error, wanted.subjects) from None
        return Stream(self.backend, info.config, self.runtime)

    async def update_stream(self, name: str | StreamConfig, /, **config: Any) -> Stream:
        """Change fields of a stream's configuration.

        The others stay. Raises StreamNotFoundError, ApiError.
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
        if type(subject) is not str or type(data) is not bytes:
            subject, data = message_of(subject, data)
        block = publish_block(
            {
                "msg_id": msg_id,
                "headers": headers,
                "expected_stream": expected_stream,
                "expected_last_msg_id": expected_last_msg_id,
                "expected_last_seq": expected_last_seq,
                "expected_last_subject_seq": expected_last_subject_seq,
                "expected_last_subject_seq_subject": expected_last_subject_seq_subject,
                "ttl": ttl,
            }
        )
        return await self.backend.publish(subject, data, block)

    async def add(self, subject: str, delta: int = 1, *, msg_id: str | None = None) -> int:
        """Add to a counter and return its new total; numbers are of any size (ADR-49).

        The subject's stream counts (``allow_msg_counter``). With a ``msg_id`` repeating the call adds once, and
        returns the present total. Raises NoStreamForSubjectError, ApiError 10168 where the stream does not count.
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
        subject, data = message_of(subject, data)
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

    async def subscribe(self, subject: str, *, queue: str = "") -> Subscription:
        """Listen to what is published from now on under a subject or filter, by whichever process, stored or not.

        At most once, as NATS's own subscriptions: nothing from before, nothing again; a consumer is for those who must
        miss nothing. Republished messages and events (``$JS.EVENT.>``) are heard so. Each message is told to one of
        those with the same ``queue``. Close it, or use it in ``async with``. Raises ConfigError.
        """
        check_text("subscribe", "subject", subject)
        check_text("subscribe", "queue", queue)
        return Subscription(await self.backend.subscribe(subject, queue), self.backend.check_loop)

    async def publish_batch(self, messages: Iterable[AnyMessage]) -> list[PubAck]:
        """Store messages in order, durable together: the fast way to write many.

        Raises the error of the first message that is refused; those before it are stored, those after it are
        not.
        """
        return await self.backend.publish_batch(all_outgoing(messages))
