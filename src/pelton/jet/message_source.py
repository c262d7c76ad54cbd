"""The messages of an iteration: prefetched from a pull consumer, pushed by one, or read exactly in order.

**Pushed.** A push consumer sends messages to its deliver subject, and status messages of its own (100): heartbeats when
it is idle, and flow control requests, which must be answered before it continues. :class:`Pushed` subscribes to the
subject, answers, and hands out only deliveries. If heartbeats are configured and two in a row are missed, the sender is
gone or unreachable: :class:`HeartbeatMissedError`.

**Pulled (ADR-37).** Messages that were pulled and not handed out wait in a buffer, at most ``prefetch`` messages and
``max_bytes``. If pulls take round trips, the next one starts when the buffer is half empty, for as much as there is
room; embedded, where they take none, when it is empty, so that no message waits here that others could have. Closing
ends a pull in progress, which gives back its messages, and returns what is left in the buffer, to be given back as
well.

**In order, even if deliveries are lost (ADR-17).** An ordered reader creates a private consumer: pushed, without acks,
in memory, with heartbeats and flow control. Deliveries are numbered; a number that is not the next one means that
something was lost, and so do a heartbeat that names a later number, missed heartbeats, and a consumer that is gone. The
reader then creates another one, from the message after the last it handed out: you see every message once, in order,
and none of this.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from pelton.api import (
    Backend,
    BackendSubscription,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfoRequest,
    Delivered,
    HeartbeatMissedError,
    Incoming,
    PeltonError,
    consumer_config,
    from_reply,
    headers,
)
from pelton.api import delivery_of as parsed
from pelton.api.times import duration_of
from pelton.jet.message import Message
from pelton.runtime import Runtime, Tasks, within

_MISSED: Final = 2
_ALL: Final = 1 << 30
_STATUS: Final = b"NATS/1.0 100"


class Pushed:
    """The deliveries of one push consumer, from :meth:`open` on. ``path`` names the store in errors."""

    last_consumer_seq: int
    is_idle: bool

    def __init__(self, backend: Backend, config: ConsumerConfig, stream: str) -> None:
        self._backend = backend
        self._config = config
        self._stream = stream
        self._subscription: BackendSubscription | None = None
        self._statuses: list[Incoming] = []
        self.last_consumer_seq = 0
        self.is_idle = False
        self._got = (0, 0)

    async def open(self) -> None:
        """Start listening."""
        self._subscription = await self._backend.subscribe(self._config.deliver_subject, self._config.deliver_group)

    async def close(self) -> list[Delivered]:
        """Stop listening; return deliveries that arrived and were not taken. Idempotent."""
        if self._subscription is None:
            return []
        await self._subscription.close()
        rest = self.take(_ALL)
        self._subscription = None
        return rest

    async def next(self, timeout: float | None = None) -> Delivered | None:
        """Return the next delivery, or None for a status or on timeout.

        A status sets :attr:`last_consumer_seq`, and :attr:`is_idle` if everything was sent.
        Raises HeartbeatMissedError, StoreClosedError.
        """
        assert self._subscription is not None
        if self._statuses:
            status = self._statuses.pop(0)
            await self._answer(status, status.headers or b"")
            return None
        beat = self._config.idle_heartbeat.seconds * _MISSED
        limit = min((value for value in (timeout, beat or None) if value is not None), default=None)
        message = await self._subscription.next(limit)
        if message is None:
            if timeout is not None and (not beat or timeout < beat):
                return None
            raise HeartbeatMissedError(self._stream, self._config.name, beat)
        if message.delivered is None and message.headers is not None and message.headers.startswith(_STATUS):
            await self._answer(message, message.headers)
            return None
        return self._delivered_of(message)

    def _delivered_of(self, message: Incoming) -> Delivered:
        one = message.delivered or parsed(message.subject, message.reply, message.headers, message.data)
        self._got = (one.consumer_seq, one.seq)
        return one

    def take(self, limit: int) -> list[Delivered]:
        """Return deliveries that have already arrived; statuses among them are answered by the next :meth:`next`."""
        assert self._subscription is not None
        deliveries: list[Delivered] = []
        for message in self._subscription.take(limit):
            if message.delivered is None and message.headers is not None and message.headers.startswith(_STATUS):
                self._statuses.append(message)
            else:
                deliveries.append(self._delivered_of(message))
        return deliveries

    async def _answer(self, message: Incoming, block: bytes) -> None:
        stalled = message.reply or headers.first(block, headers.CONSUMER_STALLED)
        self.is_idle = not stalled
        if stalled:
            # If flow control acknowledges, the answer names the last message received (ADR-60).
            consumer_seq, seq = self._got
            said = {headers.LAST_CONSUMER: str(consumer_seq), headers.LAST_STREAM: str(seq)}
            await self._backend.send(stalled, headers=headers.encode(said))
        last = headers.first(block, headers.LAST_CONSUMER)
        if last and last.isdecimal():
            self.last_consumer_seq = int(last)


# --- the message sources of an iteration: pull and push

# How much a push consumer without a limit buffers while its program is busy; the rest waits in the subscription.
_MOST_READY: Final = 4096


class Shelf(Protocol):
    """Holds prefetched messages."""

    def ready(self) -> list[Message]:
        """Return the messages that are ready now."""

    def drop(self, messages: Iterable[Message]) -> None:
        """Stop handing these out: others have them, or will."""


class MessageSource(Shelf, Protocol):
    """Yields messages as they arrive; some are ready in advance."""

    async def wait(self) -> None:
        """Return when a message may be ready."""

    def pop(self) -> Message | None:
        """Return the next ready message."""

    async def close(self) -> list[Message]:
        """Stop taking messages; return the ready ones."""


def without(ready: deque[Message], messages: Iterable[Message]) -> deque[Message]:
    gone = set(messages)
    return deque(message for message in ready if message not in gone)


class CallbackBatch:
    """Messages for a callback: ``left`` to be called back with, ``done``, and ``failed``; settled together."""

    def __init__(self, source: MessageSource) -> None:
        self._source = source
        self.left: deque[Message] = deque()
        self.done: list[Message] = []
        self.failed: list[Message] = []

    def take(self, limit: int) -> None:
        """Take ready messages, at most ``limit``."""
        while len(self.left) < limit and (message := self._source.pop()) is not None:
            self.left.append(message)

    def clear(self) -> tuple[list[Message], list[Message]]:
        """Return the messages to acknowledge, and those to give back; forget all."""
        cleared = self.done, [*self.failed, *self.left]
        self.left, self.done, self.failed = deque(), [], []
        return cleared

    def ready(self) -> list[Message]:
        """Return the messages that wait for the callback, or to be settled."""
        return [*self.left, *self.done, *self.failed, *self._source.ready()]

    def drop(self, messages: Iterable[Message]) -> None:
        """Do not call back with these; if one is already done, its ack will be rejected."""
        gone = list(messages)
        self.left = without(self.left, gone)
        self._source.drop(gone)


class PushSource:
    """A push consumer's messages, ``prefetch`` at a time."""

    def __init__(self, backend: Backend, pushed: Pushed, prefetch: int) -> None:
        self._backend = backend
        self._pushed = pushed
        self._prefetch = prefetch
        self._ready: deque[Message] = deque()
        # Whether :meth:`wait` is pending; it alone may then take the next message.
        self._awaits = False

    async def wait(self) -> None:
        """Return when a message may be ready. Raises HeartbeatMissedError, StoreClosedError."""
        if self._ready:
            return
        self._awaits = True
        try:
            first = await self._pushed.next()
        finally:
            self._awaits = False
        if first is not None:
            self._ready.extend(Message(self._backend, one) for one in (first, *self._pushed.take(self._prefetch - 1)))

    def pop(self) -> Message | None:
        return self._ready.popleft() if self._ready else None

    def ready(self) -> list[Message]:
        """Return all ready messages, including those pushed since."""
        if not self._awaits and len(self._ready) < _MOST_READY:
            came = self._pushed.take(_MOST_READY - len(self._ready))
            self._ready.extend(Message(self._backend, one) for one in came)
        return list(self._ready)

    def drop(self, messages: Iterable[Message]) -> None:
        self._ready = without(self._ready, messages)

    async def close(self) -> list[Message]:
        """Stop listening; return all ready messages, including those that arrived since."""
        rest = await self._pushed.close()
        return [*self._ready, *(Message(self._backend, one) for one in rest)]


Fetch = Callable[[int, int], Awaitable[list[Message]]]
"""Waits for messages, given their maximum number and bytes (0: any); empty when the first is larger."""

_OVERHEAD: Final = 200
_CONFLICT: Final = 409


class PrefetchLimit(msgspec.Struct, frozen=True):
    """Limits of the buffer; ``max_bytes`` 0 is no limit."""

    prefetch: int
    max_bytes: int = 0


class PullSource:
    """The messages of one consumer, as they arrive. ``overlaps``: pulls take round trips."""

    def __init__(self, fetch: Fetch, room: PrefetchLimit, where: tuple[str, str], *, overlaps: bool) -> None:
        self._fetch = fetch
        self._room = room
        self._where = where
        self._overlaps = overlaps
        self._tasks = Tasks()
        self._pull: asyncio.Task[None] | None = None
        self._buffer: deque[Message] = deque()
        self._bytes = 0
        self._error: Exception | None = None
        self._narrow = False

    async def wait(self) -> None:
        """Return when there is at least one message. Raises as :meth:`Consumer.fetch`."""
        while not self._buffer:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._overlaps:
                # The pull is not awaited itself: if this waiter is cancelled it continues, until the source is closed.
                await asyncio.wait([self._pull_in_progress()])
            else:
                await self._pull_once()

    def pop(self) -> Message | None:
        if not self._buffer:
            return None
        message = self._buffer.popleft()
        self._bytes -= _size(message)
        if not self._buffer:
            self._narrow = False
        if self._overlaps and self._has_room():
            self._pull_in_progress()
        return message

    def ready(self) -> list[Message]:
        return list(self._buffer)

    def drop(self, messages: Iterable[Message]) -> None:
        self._buffer = without(self._buffer, messages)
        self._bytes = sum(map(_size, self._buffer))

    async def close(self) -> list[Message]:
        """Stop pulling; return the messages pulled and not handed out."""
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.cancel()
            await asyncio.wait([pull])
        left = list(self._buffer)
        self._buffer.clear()
        return left

    def _has_room(self) -> bool:
        """Whether the buffer is half empty and may be filled."""
        if self._narrow or self._error is not None or 2 * len(self._buffer) > self._room.prefetch:
            return False
        return 2 * self._bytes <= self._room.max_bytes or not self._room.max_bytes

    def _pull_in_progress(self) -> asyncio.Task[None]:
        """Return the pull in progress, starting one if necessary."""
        if self._pull is None or self._pull.done():
            self._pull = self._tasks.spawn(self._pull_or_note(), f"pelton pulls from {'/'.join(self._where)}")
        return self._pull

    async def _pull_or_note(self) -> None:
        try:
            await self._pull_once()
        except Exception as error:  # whatever it is: :meth:`wait` raises it
            self._error = error

    async def _pull_once(self) -> None:
        room, held = self._room, len(self._buffer)
        messages = await self._fetch(
            room.prefetch - held, max(room.max_bytes - self._bytes, 1) if room.max_bytes else 0
        )
        self._buffer.extend(messages)
        self._bytes += sum(map(_size, messages))
        if not messages and held:
            # The next message is larger than the free space: it has to wait until the buffer is empty.
            self._narrow = True
        elif not messages:
            stream, consumer = self._where
            raise from_reply(_CONFLICT, 0, "Message Size Exceeds MaxBytes", stream=stream, consumer=consumer)


def _size(message: Message) -> int:
    d = message.delivered
    return len(d.subject) + len(d.data) + len(d.headers or b"") + _OVERHEAD


HEARTBEAT_S: Final = 5.0
_IDLE_S: Final = 300
_TRIES: Final = 2


class OrderedReader:
    """Reads a stream once, in order. ``heartbeat`` (seconds) is the idle heartbeat of its consumer."""

    def __init__(
        self, backend: Backend, runtime: Runtime, stream: str, *, heartbeat: float = HEARTBEAT_S, **fields: Any
    ) -> None:
        self._backend = backend
        self._runtime = runtime
        self._stream = stream
        self._base = msgspec.structs.replace(
            consumer_config(None, **fields),
            ack_policy="none",
            max_deliver=1,
            flow_control=True,
            idle_heartbeat=duration_of("heartbeat", heartbeat),
            inactive_threshold=_IDLE_S,
            mem_storage=True,
            num_replicas=1,
        )
        # Everything up to this sequence was handed out, or is not wanted; None: nothing was yet.
        self._passed: int | None = None
        self._expected = 1
        self._name = ""
        self._pushed: Pushed | None = None
        self._pending = 0

    async def begin(self) -> int:
        """Start reading, and return the number of messages to read now. :meth:`close` it afterwards."""
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise
        return self._pending

    async def follow(self) -> AsyncGenerator[Delivered | None, None]:
        """Yield deliveries for ever, and None once, after all that existed at the start.

        Ends with StoreClosedError when the store is closed.
        """
        try:
            pushed = self._pushed or await self._begin()
            is_behind = self._pending > 0
            if not is_behind:
                yield None
            while True:
                async for delivered in self._in_order(pushed):
                    if delivered is not None:
                        yield delivered
                    # Messages may have been removed before they came: then no delivery is known to be the last.
                    if is_behind and (await self._is_through() if delivered is None else not delivered.num_pending):
                        is_behind = False
                        yield None
                # A consumer that died with its server never answers: do not wait for it before making the next one.
                self._end()
                pushed = await self._begin()
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop reading. Idempotent; the consumer is removed even if the caller is cancelled."""
        ending = self._end()
        if ending is not None:
            await asyncio.shield(ending)

    def _end(self) -> asyncio.Task[None] | None:
        """Remove the consumer in the background: the reader may be cancelled, and must leave nothing behind."""
        pushed, self._pushed = self._pushed, None
        if pushed is None:
            return None
        return self._runtime.spawn(self._leave(pushed, self._name), "pelton leaves the consumer of an ordered reader")

    async def _leave(self, pushed: Pushed, name: str) -> None:
        # If it is already gone, fine; if it cannot be deleted now, its inactive threshold removes it.
        with suppress(PeltonError):
            await pushed.close()
        with suppress(PeltonError):
            await self._backend.call(ConsumerDelete(stream=self._stream, name=name))

    async def _in_order(self, pushed: Pushed) -> AsyncGenerator[Delivered | None, None]:
        """Yield deliveries until one is missing, and None whenever the consumer is idle, or its reader is slow."""
        self._expected = 1
        while True:
            try:
                delivered = await pushed.next()
            except HeartbeatMissedError:
                return
            if delivered is None:
                if pushed.last_consumer_seq >= self._expected:
                    return
                if pushed.is_idle:
                    yield None
                continue
            if delivered.consumer_seq != self._expected:
                return
            self._expected += 1
            self._passed = delivered.seq
            yield delivered

    async def _is_through(self) -> bool:
        """Whether everything was delivered, and handed out."""
        try:
            info = await self._backend.call(ConsumerInfoRequest(stream=self._stream, name=self._name))
        except PeltonError:
            # If it is gone, the next heartbeat does not come.
            return False
        return not info.num_pending and info.delivered.consumer_seq < self._expected

    async def _begin(self) -> Pushed:
        """Start with a new consumer; with another one if a cluster does not answer (ADR-17)."""
        timeout = self._backend.planning.consumer_timeout
        if timeout is not None:
            for _ in range(_TRIES):
                try:
                    return await within(self._runtime.clock, timeout, self._make())
                except TimeoutError:
                    # A consumer that was placed on a server that has just died exists, but never answers.
                    self._end()
        return await self._make()

    async def _make(self) -> Pushed:
        """Create a consumer that continues after the last message handed out."""
        self._name = self._runtime.ids.new()
        config = msgspec.structs.replace(self._base, name=self._name, deliver_subject=f"_INBOX.{self._name}")
        if self._passed is not None:
            config = msgspec.structs.replace(
                config, deliver_policy="by_start_sequence", opt_start_seq=self._passed + 1, opt_start_time=""
            )
        pushed = Pushed(self._backend, config, self._stream)
        await pushed.open()
        # From here on there is a consumer to remove, even if the caller is cancelled.
        self._pushed = pushed
        await self._create(config)
        return pushed

    async def _create(self, config: ConsumerConfig) -> None:
        info = await self._backend.call(ConsumerCreate(stream_name=self._stream, config=config))
        self._pending = info.num_pending
        if self._passed is None and config.deliver_policy == "new":
            # If this consumer is lost before it delivers, the next one continues from here, not with what is new then.
            self._passed = info.delivered.stream_seq
