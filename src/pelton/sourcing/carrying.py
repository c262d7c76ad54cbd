"""Carrying a stream's messages to another store or cluster: store and forward, over any two backends.

The story. A durable consumer of the origin, ``feed_<name>``, is the position: it lies in the origin, and a batch is
acknowledged only when the target has stored it durably. One batch is on its way and the next one is fetched meanwhile:
that is all there ever is in memory, however long the target is away. While it is away the same batch is tried again.

A process that dies between the target's store and its own note leaves a doubt: the next one begins at the first
message that is not acknowledged, in order (the consumer is reset), and asks before it sends. Each message carries where
it is from (``Pelton-Feed``); since the order of a subject is kept, the last message of a subject in the target tells
whether one was stored. Where that cannot be told (others publish to the subject, or it was consumed), the message id,
the same each time, makes the target drop the second within its duplicate window.

One process feeds at a time: who begins takes over, and the acks of the one before are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from pelton.api import (
    AckOp,
    ApiError,
    Backend,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerReset,
    Delivered,
    LimitError,
    MsgGet,
    NotFoundError,
    Outgoing,
    PullRequest,
    StoreClosedError,
    StoreError,
    StreamInfoRequest,
    StreamNames,
    headers,
)
from pelton.runtime import Backoff, Runtime
from pelton.sourcing.plan import identity_of
from pelton.streams import without_headers

_log: Final = logging.getLogger("pelton")
FEED: Final = "Pelton-Feed"
_BATCH: Final = 1000
_TOO_LARGE: Final = 10054
_BYTES: Final = 8 * 1024 * 1024
_LOOK_NS: Final = 5_000_000_000
_PATIENCE: Final = Backoff(base=0.05, cap=5.0)
_NOT_CARRIED: Final = (headers.MSG_ID, "Nats-Expected-", headers.STREAM_SOURCE, FEED)


class Carrier:
    """Carries the messages of ``stream`` of ``origin`` to whichever stream of ``target`` takes their subjects."""

    def __init__(self, origin: Backend, target: Backend, stream: str, name: str, runtime: Runtime) -> None:
        self._origin = origin
        self._target = target
        self._stream = stream
        self._consumer = f"feed_{name}"
        self._runtime = runtime
        self._identity = ""
        self._doubtful = True
        self._streams: dict[str, str] = {}

    async def run(self, filters: Sequence[str], *, until_empty: bool) -> int:
        """Carry on, for ever or until nothing is left; return how many messages were carried.

        Raises ApiError for what the target never takes (no stream for a subject, a message too large),
        AckRejectedError when another process has taken over, StoreClosedError.
        """
        await self._begin(tuple(filters))
        carried = 0
        batch = await self._pull(wait=not until_empty)
        while batch or not until_empty:
            following = self._runtime.spawn(self._pull(wait=not until_empty), f"feed of {self._stream}")
            try:
                if batch:
                    await self._store(batch)
                    await self._note(batch)
                carried += len(batch)
                batch = await following
            finally:
                following.cancel()
        return carried

    async def _begin(self, filters: tuple[str, ...]) -> None:
        info = await self._origin.call(StreamInfoRequest(name=self._stream))
        self._identity = identity_of(self._stream, info.created)
        config = ConsumerConfig(
            durable_name=self._consumer,
            ack_policy="explicit",
            filter_subjects=filters,
            max_ack_pending=2 * _BATCH,
            description="carries messages to another store",
        )
        await self._origin.call(ConsumerCreate(stream_name=self._stream, config=config))
        await self._origin.call(ConsumerReset(stream=self._stream, name=self._consumer))

    # --- from the origin

    async def _pull(self, *, wait: bool) -> list[Delivered]:
        request = PullRequest(batch=_BATCH, max_bytes=_BYTES, no_wait=not wait, expires_ns=_LOOK_NS if wait else None)
        attempt = 0
        while True:
            try:
                return await self._origin.pull(self._stream, self._consumer, request)
            except StoreClosedError:
                raise
            except StoreError as error:
                attempt += 1
                await self._pause(attempt, error)

    async def _note(self, batch: Sequence[Delivered]) -> None:
        """Acknowledge what the target has; AckRejectedError when somebody else carries it as well."""
        acks = [AckOp(seq=message.seq, consumer_seq=message.consumer_seq) for message in batch]
        attempt = 0
        while True:
            try:
                answers = await self._origin.ack(self._stream, self._consumer, acks)
            except StoreClosedError:
                raise
            except StoreError as error:
                attempt += 1
                await self._pause(attempt, error)
                continue
            for refused in answers:
                # After an outage of the origin, what was noted before it is refused the second time.
                if refused is not None and not attempt:
                    raise refused
            return

    # --- to the target

    async def _store(self, batch: Sequence[Delivered]) -> None:
        """Store a batch in the target, however long that takes."""
        attempt = 0
        while True:
            try:
                left = await self._missing(batch) if self._doubtful else batch
                await self._target.publish_batch([self._outgoing(message) for message in left])
            except (StoreClosedError, asyncio.CancelledError):
                raise
            except (StoreError, LimitError) as error:
                if isinstance(error, ApiError) and error.err_code == _TOO_LARGE:
                    raise
                # Some of it may have been stored.
                self._doubtful = True
                attempt += 1
                await self._pause(attempt, error)
            else:
                self._doubtful = False
                return

    def _outgoing(self, message: Delivered) -> Outgoing:
        # Its own id is the one that has to be known again: a publisher's may have been used twice.
        name = f"{self._identity}.{message.seq}"
        ours = f"{headers.MSG_ID}: {name}\r\n{FEED}: {self._identity} {message.seq}\r\n\r\n".encode()
        block = without_headers(message.headers, *_NOT_CARRIED) if message.headers else b"NATS/1.0\r\n\r\n"
        return message.subject, message.data, block[:-2] + ours

    async def _missing(self, batch: Sequence[Delivered]) -> list[Delivered]:
        """Return the messages that the target has not, as far as it can tell."""
        last = {subject: await self._last_of(subject) for subject in {message.subject for message in batch}}
        return [message for message in batch if message.seq > last[message.subject]]

    async def _last_of(self, subject: str) -> int:
        """Return the sequence of the last message of a subject that the target has of us, 0 if it cannot tell."""
        stream = self._streams.get(subject)
        if stream is None:
            found = (await self._target.call(StreamNames(subject=subject))).streams
            if not found:
                return 0
            stream = self._streams[subject] = found[0]
        try:
            reply = await self._target.call(MsgGet(stream=stream, last_by_subj=subject))
        except NotFoundError:
            return 0
        identity, _, seq = (headers.first(reply.message.hdrs, FEED) or "").partition(" ")
        return int(seq) if identity == self._identity else 0

    async def _pause(self, attempt: int, error: Exception) -> None:
        if attempt == 1:
            _log.warning("feed of stream %r waits: %s", self._stream, error)
        await self._runtime.clock.sleep(_PATIENCE.delay(attempt, self._runtime.random))
