"""Reads a stream exactly in order, even if deliveries are lost (ADR-17).

Design: An ordered reader creates a private consumer: pushed, without acks, in memory, with heartbeats and flow
control. Deliveries are numbered; a number that is not the next one means that something was lost, and so do a
heartbeat that names a later number, missed heartbeats, and a consumer that is gone. The reader then creates another
one, from the message after the last it handed out: you see every message once, in order, and none of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

import msgspec

from pelton.api import (
    Backend,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfoRequest,
    Delivered,
    HeartbeatMissedError,
    PeltonError,
    consumer_config,
)
from pelton.api.durations import given
from pelton.jet.push import Pushed
from pelton.runtime import Runtime, within

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
            idle_heartbeat=given("heartbeat", heartbeat),
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
