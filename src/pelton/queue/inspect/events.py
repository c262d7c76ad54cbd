"""The events of a queue, as they happen in any process.

Design: How jobs end, that they are retried, and their progress are read from the streams in which the queue keeps them,
in order and without a gap, from the moment at which the reader begins. That they were enqueued, and that they start, is
stored nowhere, because it would cost each job a message: it is announced to those who listen, at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from pelton.api import ConfigError, Delivered, PeltonError, StreamInfoRequest
from pelton.api.json_values import UNREADABLE
from pelton.jet.message_source import OrderedReader
from pelton.jet.registers import Follower, is_busy
from pelton.queue.enqueue.enqueuer import (
    ANNOUNCED,
    EVENT_KINDS,
    QueueEvent,
    QueueEventKind,
    ending_event,
    progress_event,
    read_announcement,
    retry_event,
)
from pelton.queue.model.options import seconds
from pelton.queue.model.states import ENDINGS
from pelton.runtime import at_home, within

if TYPE_CHECKING:
    from pelton.api import BackendSubscription
    from pelton.api.times import Seconds
    from pelton.queue.define.queue_context import QueueContext

_MOST: Final = 1000


class _Source(NamedTuple):
    """A stream that keeps events, and how they are read."""

    stream: str
    filter_subject: str
    read: Callable[[Delivered], QueueEvent | None]


class QueueEvents:
    """What happens to the jobs of a queue, in any process: made by ``queue.events()``.

    Use it in ``async with``, which begins to listen; or iterate over it, which begins by itself, and ends with
    the iteration. Retries, ends and progress are told in their order, without a gap; that jobs are enqueued or start is
    told at most once. Whoever is slow to read them holds nobody up.
    """

    def __init__(self, queue: QueueContext, kinds: Sequence[QueueEventKind]) -> None:
        for kind in kinds:
            if kind not in EVENT_KINDS:
                raise ConfigError(f"queue {queue.name!r}: no events {kind!r}; give {', '.join(EVENT_KINDS)}")
        self._queue = queue
        self._check_loop = queue.backend.check_loop
        self._kinds = frozenset(kinds or EVENT_KINDS)
        self._found: asyncio.Queue[QueueEvent | PeltonError] = asyncio.Queue(_MOST)
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[OrderedReader] = []
        self._subscription: BackendSubscription | None = None
        self._has_begun = False
        self._failure: PeltonError | None = None

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def next(self, *, timeout: Seconds | None = None) -> QueueEvent | None:
        """Return the next event, or None on ``timeout`` (seconds; None: wait for ever).

        Raises ConfigError, also after :meth:`close`, StoreClosedError, StreamNotFoundError if there is no such queue.
        """
        limit = None if timeout is None else seconds(f"events of queue {self._queue.name!r}: timeout", timeout)
        await self._begin()
        if self._failure is not None and self._found.empty():
            raise self._failure
        if limit is None:
            told = await self._found.get()
        else:
            try:
                told = await within(self._queue.clock, limit, self._found.get())
            except TimeoutError:
                return None
        if isinstance(told, PeltonError):
            # Whoever asks again is told again.
            self._failure = told
            raise told
        return told

    @at_home
    async def __aiter__(self) -> AsyncIterator[QueueEvent]:
        has_begun = self._has_begun
        try:
            while True:
                event = await self.next()
                if event is not None:
                    yield event
        finally:
            if not has_begun:
                await self.close()

    async def close(self) -> None:
        """Listen no more. Idempotent."""
        self._failure = self._failure or ConfigError(f"these events of queue {self._queue.name!r} were closed")
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        readers, self._readers = self._readers, []
        for reader in readers:
            await reader.close()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(PeltonError):
                await subscription.close()

    # --- reading

    async def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        try:
            if self._kinds & ANNOUNCED:
                self._subscription = await self._queue.backend.subscribe(self._queue.names.events)
                self._spawn(partial(self._listen, self._subscription))
            for source in self._sources():
                await self._read(source)
        except BaseException:
            await self.close()
            raise

    def _sources(self) -> list[_Source]:
        names, sources = self._queue.names, list[_Source]()
        endings = [ending for ending in ENDINGS if ending in self._kinds]
        if endings:
            one = names.ending_subject(endings[0], "*") if len(endings) == 1 else ""
            sources.append(_Source(names.history, one, ending_event))
        if "retrying" in self._kinds:
            sources.append(_Source(names.attempts, "", retry_event))
        if "progress" in self._kinds:
            sources.append(_Source(names.running, names.progress_subject("*"), progress_event))
        return sources

    async def _read(self, source: _Source) -> None:
        backend = self._queue.backend
        info = await backend.call(StreamInfoRequest(name=source.stream))
        reader = OrderedReader(
            backend,
            self._queue.runtime,
            source.stream,
            deliver_policy="by_start_sequence",
            opt_start_seq=info.state.last_seq + 1,
            filter_subject=source.filter_subject,
        )
        await reader.begin()
        self._readers.append(reader)

        async def saw(one: Delivered | None) -> None:
            # One that cannot be read is of another version.
            with suppress(*UNREADABLE):
                await self._tell(None if one is None else source.read(one))

        outage = self._queue.outage(f"events in stream {source.stream}", is_busy)
        self._spawn(Follower(reader.follow, saw, outage.wait, outage.end).follow)

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(self._queue.runtime.spawn(self._told(work), f"pelton {self._queue.name} events"))

    async def _told(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except PeltonError as error:
            await self._found.put(error)

    async def _listen(self, subscription: BackendSubscription) -> None:
        while True:
            told = await subscription.next()
            for event in read_announcement(told.data) if told is not None else ():
                await self._tell(event)

    async def _tell(self, event: QueueEvent | None) -> None:
        if event is not None and event.kind in self._kinds:
            await self._found.put(event)
