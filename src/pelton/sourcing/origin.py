"""The origin's end of a feed: a durable consumer, which is the position, and its ownership.

Design: A process that starts to feed writes its name into the consumer (metadata ``pelton.feeder``), and resets it: it
starts at the first unacknowledged message. Deliveries are numbered without a gap, and nothing is redelivered by itself,
so a gap means that a delivery went to another process, or was lost on the way. Messages after a gap are never stored:
they would overtake the missing one. Then the name in the consumer decides who continues: its owner resets it again
and starts at the first unacknowledged message, any other process stops.

So a process stores without a gap from a message before which everything was stored; two that do so at the same
time, until one of them notices, store the same messages in the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from pelton.api import (
    AckOp,
    AckRejectedError,
    Backend,
    Backoff,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerReset,
    Delivered,
    PeltonError,
    PullRequest,
    StoreError,
)
from pelton.api.durations import Duration
from pelton.api.store_errors import FINAL_ERRORS
from pelton.api.times import SECOND
from pelton.runtime import Runtime

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
        self._number, self._seq, self._gaps = number, seq, 0
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

    async def note(self, batch: Sequence[Delivered]) -> None:
        """Acknowledge messages that the target has; AckRejectedError if another process copies them as well."""
        acks = [AckOp(seq=message.seq, consumer_seq=message.consumer_seq, token=message.token) for message in batch]
        tries = 0

        async def acknowledge() -> list[PeltonError | None]:
            nonlocal tries
            tries += 1
            return await self._backend.ack(self._stream, self._consumer, acks)

        for refused in await self._until_answered(acknowledge):
            # After an outage of the origin, acks that took effect before it are refused when retried.
            if refused is not None and tries == 1:
                raise refused

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
