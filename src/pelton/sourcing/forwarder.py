"""Copies a stream's messages to another store or cluster: store and forward, over any two backends.

Design: A durable consumer of the origin, ``feed_<name>``, is the position: it is kept in the origin,
and a batch is acknowledged only when the target has stored it durably. While one batch is in flight the next one is
fetched: never more is in memory, however long the target is away. While it is away the same batch is retried.

If a process dies between the target's store and its own ack, it is unknown what was stored: the next one starts at the
first unacknowledged message, in order (the consumer is reset), and asks before it sends. Each message carries its
origin (``Pelton-Feed``); since the order of a subject is kept, the last message of a subject in the target shows
whether one was stored. If it cannot (others publish to the subject, or it was consumed), the message id,
the same each time, makes the target drop the duplicate within its duplicate window.

One process feeds at a time: a new one takes over, and the previous one stops. A process that was suspended with a batch
cannot know for how long others continued: before it stores the batch, it checks whether it still feeds, and what is
missing.

**The origin's end of a feed: a durable consumer, which is the position, and its ownership.** A process that starts to
feed writes its name into the consumer (metadata ``pelton.feeder``), and resets it: it starts at the first
unacknowledged message. Deliveries are numbered without a gap, and nothing is redelivered by itself, so a gap means that
a delivery went to another process, or was lost on the way. Messages after a gap are never stored: they would overtake
the missing one. Then the name in the consumer decides who continues: its owner resets it again and starts at the first
unacknowledged message, any other process stops.

So a process stores without a gap from a message before which everything was stored; two that do so at the same
time, until one of them notices, store the same messages in the same order.

**Totals of copied counters (ADR-49): how much each message adds in the target.** A counter's message contains its
total. In the target it adds the growth of the total since the last copied message: so nothing is lost of messages that
limits removed before they were copied. The last message of the subject in the target shows that total, if it is one of
ours, or that there was none. If others add to the same counter the total is unknown: then a message adds what it added
in its origin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from pelton.api import (
    AckOp,
    AckRejectedError,
    ApiError,
    Backend,
    Backoff,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerReset,
    Delivered,
    LimitError,
    MsgGet,
    NotFoundError,
    Outgoing,
    PeltonError,
    PullRequest,
    StoreError,
    StreamInfoRequest,
    StreamNames,
    headers,
)
from pelton.api.json_values import counter_value, from_digits, to_digits
from pelton.api.store_errors import FINAL_ERRORS
from pelton.api.times import SECOND, Duration
from pelton.runtime import Runtime
from pelton.sourcing.plan import identity_of

T = TypeVar("T")
_log: Final = logging.getLogger("pelton.sourcing")
_OWNER: Final = "pelton.feeder"
BATCH: Final = 1000
_BYTES: Final = 8 * 1024 * 1024
_LOOK_NS: Final = 5 * SECOND
# An outage of the target must not cause redeliveries: no other process may get the messages.
_NEVER: Final = Duration(366 * 24 * 3600)
PATIENCE: Final = Backoff(base=0.05, cap=5.0)


class Origin:
    """The consumer ``feed_<name>`` of a stream, used by one process that feeds."""

    def __init__(self, backend: Backend, stream: str, name: str, runtime: Runtime) -> None:
        self._backend = backend
        self._stream = stream
        self._consumer = f"feed_{name}"
        self._runtime = runtime
        self._me = runtime.ids.new()
        self._number = self._seq = 0
        self._gaps = 0

    async def begin(self, filters: tuple[str, ...]) -> None:
        """Take over: the next delivery is the first unacknowledged message."""
        config = ConsumerConfig(
            durable_name=self._consumer,
            ack_policy="explicit",
            ack_wait=_NEVER,
            filter_subjects=filters,
            max_ack_pending=2 * BATCH,
            description="carries messages to another store",
            metadata={_OWNER: self._me},
        )
        await self._backend.call(ConsumerCreate(stream_name=self._stream, config=config))
        await self._reset()

    async def _reset(self) -> None:
        request = ConsumerReset(stream=self._stream, name=self._consumer)
        info = await self._until_answered(lambda: self._backend.call(request))
        self._number, self._seq = info.delivered.consumer_seq, info.reset_seq - 1

    async def pull(self, *, wait: bool) -> list[Delivered]:
        """Return the next messages: those ready now, or with ``wait`` those that come within some seconds."""
        request = PullRequest(batch=BATCH, max_bytes=_BYTES, no_wait=not wait, expires_ns=_LOOK_NS if wait else None)
        return await self._until_answered(lambda: self._backend.pull(self._stream, self._consumer, request))

    def follows(self, batch: Sequence[Delivered]) -> bool:
        """Whether a batch follows the previous one without a gap."""
        number, seq = self._number, self._seq
        for message in batch:
            if message.consumer_seq != number + 1 or message.seq <= seq:
                return False
            number, seq = message.consumer_seq, message.seq
        self._number, self._seq = number, seq
        return True

    async def is_done(self) -> bool:
        """Whether, with no batch pending here, no delivery is in flight or was lost."""
        return not (await self._info()).num_ack_pending

    async def go_back(self) -> None:
        """Start again at the first unacknowledged message.

        Raises AckRejectedError if another process has taken over.
        """
        await self.check_owner()
        self._gaps += 1
        if self._gaps > 1:
            await self._runtime.clock.sleep(PATIENCE.delay(self._gaps, self._runtime.random))
        await self._reset()

    async def check_owner(self) -> None:
        """Raise AckRejectedError if another process has taken over."""
        if (await self._info()).config.metadata.get(_OWNER) != self._me:
            reason = "another process feeds this stream now"
            raise AckRejectedError(self._stream, self._consumer, self._seq + 1, reason)

    async def _info(self) -> ConsumerInfo:
        request = ConsumerInfoRequest(stream=self._stream, name=self._consumer)
        return await self._until_answered(lambda: self._backend.call(request))

    async def note(self, batch: Sequence[Delivered]) -> bool:
        """Acknowledge messages that the target has; return False if the origin does not know all these deliveries.

        Then another process copies as well, or a server has forgotten them, because it was killed.
        """
        acks = [AckOp(seq=message.seq, consumer_seq=message.consumer_seq, token=message.token) for message in batch]
        tries = 0

        async def acknowledge() -> list[PeltonError | None]:
            nonlocal tries
            tries += 1
            return await self._backend.ack(self._stream, self._consumer, acks)

        for refused in await self._until_answered(acknowledge):
            # After an outage of the origin, acks that took effect before it are refused when retried.
            if refused is not None and tries == 1:
                return False
        self._gaps = 0
        return True

    async def _until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        attempt = 0
        while True:
            try:
                return await ask()
            except FINAL_ERRORS:
                raise
            except StoreError as error:
                attempt += 1
                if attempt == 1:
                    _log.warning("feed of stream %r waits: %s", self._stream, error, extra={"stream": self._stream})
                await self._runtime.clock.sleep(PATIENCE.delay(attempt, self._runtime.random))


_MOST: Final = 10_000


class Totals:
    """The last copied total of each counter, bounded to the most recently used."""

    def __init__(self) -> None:
        self._known: dict[str, int | None] = {}

    def knows(self, subject: str) -> bool:
        return subject in self._known

    def learn(self, subject: str, total: int | None) -> None:
        """Note the total that the target has from us; None if unknown."""
        self._known.pop(subject, None)
        self._known[subject] = total

    def forget(self) -> None:
        """Forget all: the last messages sent may have been stored or not."""
        self._known.clear()

    def tidy(self) -> None:
        """Forget the least recently used."""
        while len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def added_by(self, message: Delivered) -> tuple[int, int]:
        """Return what a message adds in the target, and its total, which is remembered as the last one."""
        total = counter_value(message.data)
        before = self._known.get(message.subject)
        own = from_digits(headers.first(message.headers or b"", headers.INCREMENT) or "0")
        self.learn(message.subject, total)
        return (own if before is None else total - before), total


def is_counted(message: Delivered) -> bool:
    """Whether a message belongs to a counter."""
    return message.headers is not None and headers.first(message.headers, headers.INCREMENT) is not None


FEED: Final = "Pelton-Feed"
_TOO_LARGE: Final = 10054
# Well within any duplicate window, and longer than a pull waits.
_STALE_S: Final = 20.0
_NOT_CARRIED: Final = (headers.MSG_ID, "Nats-Expected-", headers.STREAM_SOURCE, FEED)
_NOT_COUNTED: Final = (*_NOT_CARRIED, headers.INCREMENT, headers.COUNTER_SOURCES)


class _Last(NamedTuple):
    """The target's state of a subject: the sequence of our last message, 0 if unknown; its total."""

    seq: int = 0
    total: int | None = None


class Forwarder:
    """Copies the messages of ``stream`` of ``origin`` to the streams of ``target`` that take their subjects."""

    def __init__(self, origin: Backend, target: Backend, stream: str, name: str, runtime: Runtime) -> None:
        self._backend = origin
        self._origin = Origin(origin, stream, name, runtime)
        self._target = target
        self._stream = stream
        self._runtime = runtime
        self._identity = ""
        self._doubtful = True
        # When the current batch was requested: monotonic seconds, wall nanoseconds.
        self._asked = (0.0, 0)
        self._streams: dict[str, str] = {}
        self._totals = Totals()

    async def run(self, filters: Sequence[str], *, until_empty: bool) -> int:
        """Copy messages, for ever or until nothing is left; return how many were copied.

        Raises ApiError for messages that the target never takes (no stream for a subject, a message too large),
        AckRejectedError when another process has taken over, StoreClosedError.
        """
        info = await self._backend.call(StreamInfoRequest(name=self._stream))
        self._identity = identity_of(self._stream, info.created)
        await self._origin.begin(tuple(filters))
        wait, carried, batch = not until_empty, 0, list[Delivered]()
        while True:
            if not batch:
                self._asked = self._moment()
                batch = await self._origin.pull(wait=wait)
            if not batch and await self._origin.is_done():
                if until_empty:
                    return carried
                continue
            following = await self._copy_batch(batch, wait=wait) if batch and self._origin.follows(batch) else None
            if following is None:
                await self._origin.go_back()
                self._doubt()
                batch = []
            else:
                carried += len(batch)
                batch = following

    async def _copy_batch(self, batch: Sequence[Delivered], *, wait: bool) -> list[Delivered] | None:
        """Store a batch, and return the next one; None if it has to be delivered again."""
        asked = self._moment()
        following = self._runtime.spawn(self._origin.pull(wait=wait), f"feed of {self._stream}")
        try:
            await self._store(batch)
            if not await self._origin.note(batch):
                return None
            if wait and len(batch) < BATCH:
                # A waiting pull may get everything, and never see a gap.
                await self._origin.check_owner()
            found = await following
            self._asked = asked
            return found
        finally:
            following.cancel()

    def _moment(self) -> tuple[float, int]:
        return self._runtime.clock.monotonic(), self._runtime.clock.now()

    def _is_stale(self) -> bool:
        """Whether the current batch is old: process or machine was suspended, which one clock alone may not show."""
        (then, wall_then), (now, wall_now) = self._asked, self._moment()
        return max(now - then, (wall_now - wall_then) / 1e9) > _STALE_S

    async def _store(self, batch: Sequence[Delivered]) -> None:
        """Store a batch in the target, however long that takes."""
        attempt = 0
        if self._is_stale():
            await self._origin.check_owner()
            self._doubt()
        while True:
            try:
                left = await self._missing(batch) if self._doubtful else batch
                await self._learn_totals(left)
                await self._target.publish_batch([self._outgoing(message) for message in left])
            except (*FINAL_ERRORS, asyncio.CancelledError):
                raise
            except (StoreError, LimitError) as error:
                if isinstance(error, ApiError) and error.err_code == _TOO_LARGE:
                    raise
                # Some of it may have been stored.
                self._doubt()
                attempt += 1
                await self._pause(attempt, error)
            else:
                self._doubtful = False
                self._totals.tidy()
                return

    def _doubt(self) -> None:
        self._doubtful = True
        self._totals.forget()

    def _outgoing(self, message: Delivered) -> Outgoing:
        # Use our own message id for deduplication: a publisher's may have been used twice.
        name = f"{self._identity}.{message.seq}"
        place = f"{self._identity} {message.seq}"
        data, asked = message.data, ""
        if is_counted(message):
            more, total = self._totals.added_by(message)
            data, asked = b"", f"{headers.INCREMENT}: {to_digits(more)}\r\n"
            place = f"{place} {to_digits(total)}"
            block = headers.without_headers(message.headers, *_NOT_COUNTED)
        else:
            block = headers.without_headers(message.headers, *_NOT_CARRIED) if message.headers else b"NATS/1.0\r\n\r\n"
        ours = f"{headers.MSG_ID}: {name}\r\n{FEED}: {place}\r\n{asked}\r\n".encode()
        return Outgoing(message.subject, data, block[:-2] + ours)

    # --- the state of the target

    async def _missing(self, batch: Sequence[Delivered]) -> list[Delivered]:
        """Return the messages that the target is not known to have."""
        last = await self._lasts(message.subject for message in batch)
        return [message for message in batch if message.seq > last[message.subject].seq]

    async def _learn_totals(self, batch: Sequence[Delivered]) -> None:
        """Look up the totals to which the counters of a batch were copied."""
        counters = {message.subject for message in batch if is_counted(message)}
        for subject, last in (await self._lasts(one for one in counters if not self._totals.knows(one))).items():
            self._totals.learn(subject, last.total)

    async def _lasts(self, subjects: Iterable[str]) -> dict[str, _Last]:
        return {subject: await self._last_of(subject) for subject in {*subjects}}

    async def _last_of(self, subject: str) -> _Last:
        stream = self._streams.get(subject)
        if stream is None:
            found = (await self._target.call(StreamNames(subject=subject))).streams
            if not found:
                return _Last()
            stream = self._streams[subject] = found[0]
        try:
            reply = await self._target.call(MsgGet(stream=stream, last_by_subj=subject))
        except NotFoundError:
            return _Last(0, 0)
        identity, *told = (headers.first(reply.message.hdrs, FEED) or "").split(" ")
        if identity != self._identity:
            return _Last()
        return _Last(int(told[0]), from_digits(told[1]) if len(told) > 1 else None)

    async def _pause(self, attempt: int, error: Exception) -> None:
        if attempt == 1:
            _log.warning("feed of stream %r waits: %s", self._stream, error, extra={"stream": self._stream})
        await self._runtime.clock.sleep(PATIENCE.delay(attempt, self._runtime.random))
