"""The handle of a consumer: pull from it, subscribe to it, manage it.

**Prefetched messages use up no deliveries while they wait for a slow program.** Such a message stays in this process
until the program asks for it. If its ack wait expired before that, it would be redelivered, here or elsewhere, and with
``max_deliver`` be given up although no program ever saw it. So, every third of the ack wait, all messages that have
been here since the last check get their ack wait restarted (``in_progress``), in one request. That stops when:

- The process dies, or blocks its event loop: nothing is extended, and others get the messages after their ack wait.
- An embedded store reports that a delivery was replaced: it is dropped, because another client has the message.
- Nothing was handed out for ten minutes: the program hangs, or has left its iteration open. All except messages at
  their last delivery are released, so that others get them, at the price of one delivery.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from inspect import isawaitable
from typing import Any, Final

import msgspec

from pelton.api import (
    AckKind,
    AckRejectedError,
    Backend,
    ConfigError,
    ConsumerConfig,
    ConsumerDelete,
    ConsumerInfo,
    ConsumerInfoRequest,
    ConsumerPause,
    ConsumerReset,
    ConsumerUnpin,
    Delivered,
    NotFoundError,
    PauseReply,
    PeltonError,
    PinLostError,
    PullRequest,
    headers,
)
from pelton.api.arguments import check_callback, check_instance, check_text, check_whole, items_of
from pelton.api.build import seconds_to_ns, time_text
from pelton.api.store_errors import FINAL_ERRORS, ServerTimeoutError
from pelton.api.times import Seconds
from pelton.jet.message import Message, ack_of, settle, traced_callback
from pelton.jet.message_source import CallbackBatch, MessageSource, PrefetchLimit, PullSource, Pushed, PushSource, Shelf
from pelton.runtime import Runtime, Timer, at_home

_log: Final = logging.getLogger("pelton.jet")
_DEFAULT_S: Final = 30.0
_SHARE: Final = 1 / 3
_SHORTEST_S: Final = 0.05
_LONGEST_S: Final = 600.0
_PAGE: Final = 256
_PATIENCE_S: Final = 2.0


class PrefetchKeeper:
    """Restarts the ack wait of the messages on a shelf, from :meth:`start` to :meth:`stop`."""

    def __init__(self, backend: Backend, config: ConsumerConfig, where: tuple[str, str], runtime: Runtime) -> None:
        self._backend = backend
        self._where = where
        self._runtime = runtime
        self._clock = runtime.clock
        self._most = config.max_deliver
        self._pause = interval_of(config)
        self._shelf: Shelf | None = None
        self._timer: Timer | None = None
        self._lain: set[Message] = set()
        self._first: Message | None = None
        self._since = 0.0
        self._renewing = False

    def start(self, shelf: Shelf) -> None:
        """Start to keep the messages of a shelf."""
        self._shelf = shelf
        self._set_timer()

    def stop(self) -> None:
        """Stop. Idempotent."""
        self._shelf = None
        self._lain.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self._timer = self._clock.call_later(self._pause, self._look)

    def _look(self) -> None:
        if self._shelf is None:
            return
        self._set_timer()
        ready = self._shelf.ready()
        if self._hangs(ready):
            ready = self._let_go(self._shelf, ready)
        due = [message for message in ready if message in self._lain]
        self._lain = set(ready)
        if due and not self._renewing:
            self._renewing = True
            stream, consumer = self._where
            self._runtime.spawn(self._renew(due), f"pelton keeps messages of {stream}/{consumer}")

    def _hangs(self, ready: list[Message]) -> bool:
        """Whether nothing has been handed out for too long."""
        first, now = ready[0] if ready else None, self._clock.monotonic()
        if first is not self._first:
            self._first, self._since = first, now
        return first is not None and now - self._since > _LONGEST_S

    def _let_go(self, shelf: Shelf, ready: list[Message]) -> list[Message]:
        kept = [message for message in ready if message.delivered.num_delivered >= self._most > 0]
        last = set(kept)
        others = [message for message in ready if message not in last]
        if others:
            shelf.drop(others)
            _log.warning(
                "consumer %s/%s: nothing was taken from its iteration for ten minutes: %d prefetched messages are "
                "released, to be delivered elsewhere; close the iteration, or bound the work on a message by a timeout",
                *self._where,
                len(others),
                extra={"stream": self._where[0], "consumer": self._where[1]},
            )
        return kept

    async def _renew(self, due: list[Message]) -> None:
        try:
            # If the store cannot be asked now, the next check asks again.
            with suppress(PeltonError):
                acks = [ack_of(message.delivered, "progress") for message in due]
                answers = await self._backend.ack(*self._where, acks)
                lost = [message for message, refused in zip(due, answers, strict=True) if refused is not None]
                if lost and self._shelf is not None:
                    self._shelf.drop(lost)
        finally:
            self._renewing = False


def interval_of(config: ConsumerConfig) -> float:
    """Return the time between two checks of a consumer's messages, in seconds."""
    shortest = min(config.backoff, default=config.ack_wait).seconds
    return max((shortest or _DEFAULT_S) * _SHARE, _SHORTEST_S)


_PREFETCH: Final = 64
_CONSUMED: Final = 512


class Consumer:
    """A consumer of a stream. ``config`` is its last known configuration."""

    def __init__(self, backend: Backend, info: ConsumerInfo, runtime: Runtime) -> None:
        self._backend = backend
        self._check_loop = backend.check_loop
        self._runtime = runtime
        self.stream_name: str = info.stream_name
        self.name: str = info.name
        self.config: ConsumerConfig = info.config
        self._about = f"consumer {self.name!r} of stream {self.stream_name!r}"
        self._pins: dict[str, str] = {}
        # The last pull and what it was asked for, with which configuration: most programs ask for the same each time.
        self._asked: tuple[object, ...] = ()
        self._asked_with = info.config
        self._request = PullRequest()
        # How many messages it had to deliver when this handle was made.
        self._pending = info.num_pending
        # Prefetched messages are traced when the program gets them.
        self._traces_fetches = True

    async def info(self) -> ConsumerInfo:
        """Return configuration, positions and outstanding messages."""
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
        on_pinned: Callable[[str], object] | None = None,
        on_unpinned: Callable[[str], object] | None = None,
    ) -> list[Message]:
        """Fetch up to ``batch`` messages; waits up to ``timeout`` seconds (None: for ever) for the first, and returns
        what is there. ``no_wait`` does not wait.

        Returns an empty list on timeout, and at once if the next message is larger than ``max_bytes``. On a consumer
        with priority groups ``group`` names one, and by its policy (ADR-42) a client is served by its ``priority`` (0
        to 9, the lowest first); only while at least ``min_pending`` messages wait, or ``min_ack_pending`` await acks;
        or, with ``failover``, only when no client without it has pulled for that many seconds. ``on_pinned`` and
        ``on_unpinned``, plain functions, are called with the group when this handle is pinned, and when it learns that
        it has lost the pin: it then stands by until it is pinned again. Raises ConfigError, ConsumerNotFoundError,
        PullRefusedError, BadRequestError.
        """
        asked = (batch, timeout, max_bytes, no_wait, group, priority, min_pending, min_ack_pending, failover)
        if asked != self._asked or self.config is not self._asked_with:
            self._request = self._request_of(*asked)
            self._asked, self._asked_with = asked, self.config
        request = self._request
        tracing = self._backend.tracing if self._traces_fetches else None
        began = 0 if tracing is None else self._runtime.clock.now()
        while True:
            deliveries = await self._pull(request, on_pinned, on_unpinned)
            if deliveries or no_wait or timeout is not None or request.expires_ns is None:
                if deliveries and tracing is not None:
                    tracing.on_received(deliveries, began)
                return [Message(self._backend, delivered) for delivered in deliveries]

    def _request_of(
        self,
        batch: int,
        timeout: Seconds | None,
        max_bytes: int,
        no_wait: bool,
        group: str,
        priority: int,
        min_pending: int,
        min_ack_pending: int,
        failover: Seconds,
    ) -> PullRequest:
        """Return the pull that :meth:`fetch` is asked for. Raises ConfigError."""
        about = self._about
        check_whole(about, "batch", batch, 1)
        check_whole(about, "max_bytes", max_bytes)
        check_text(about, "group", group)
        check_whole(about, "priority", priority, None)
        check_whole(about, "min_pending", min_pending)
        check_whole(about, "min_ack_pending", min_ack_pending)
        # The consumer limits how long one pull may wait: to wait longer, pull again.
        longest = self.config.max_expires.ns or None
        is_pinned = self.config.priority_policy == "pinned_client"
        return PullRequest(
            batch=batch,
            max_bytes=max_bytes,
            expires_ns=longest if timeout is None else seconds_to_ns("timeout", timeout, about),
            no_wait=no_wait,
            group=group,
            priority=priority,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            failover_ns=seconds_to_ns("failover", failover, about) if failover else 0,
            renew_ns=self.config.priority_timeout.ns // 2 if is_pinned else 0,
        )

    async def _pull(
        self,
        request: PullRequest,
        on_pinned: Callable[[str], object] | None,
        on_unpinned: Callable[[str], object] | None,
    ) -> list[Delivered]:
        """Pull, as the pinned client if this handle is that; after losing the pin, wait until it is pinned again."""
        group = request.group
        while True:
            pin = self._pins.get(group, "")
            try:
                deliveries = await self._backend.pull(
                    self.stream_name, self.name, msgspec.structs.replace(request, pin_id=pin) if pin else request
                )
            except PinLostError:
                # Another task with this handle may have been pinned again in the meantime.
                if self._pins.get(group) == pin:
                    del self._pins[group]
                    _tell(on_unpinned, group)
                continue
            if deliveries and group and self._is_newly_pinned(group, deliveries[0]):
                _tell(on_pinned, group)
            return deliveries

    async def next(self, *, timeout: Seconds | None = 5.0, **pull: Any) -> Message | None:
        """Fetch the next message, or None after ``timeout`` seconds (None: wait for ever).

        ``pull`` are further arguments of :meth:`fetch`; raises what that raises.
        """
        messages = await self.fetch(1, timeout=timeout, **pull)
        return messages[0] if messages else None

    def _is_newly_pinned(self, group: str, delivered: Delivered) -> bool:
        pin = headers.first(delivered.headers or b"", headers.PIN_ID)
        if not pin or pin == self._pins.get(group):
            return False
        self._pins[group] = pin
        return True

    def pin(self, group: str) -> str:
        """Return this handle's last known pin id in a priority group; empty if it is not pinned."""
        check_text(self._about, "group", group)
        return self._pins.get(group, "")

    async def unpin(self, group: str) -> None:
        """Take the pin of a priority group from its holder, so that another client gets it (ADR-42).

        Messages already delivered are finished first. Raises ApiError 10160 for a group that the consumer lacks.
        """
        await self._backend.call(ConsumerUnpin(stream=self.stream_name, name=self.name, group=group))

    @at_home
    async def messages(self, *, prefetch: int = _PREFETCH, max_bytes: int = 0, **pull: Any) -> AsyncIterator[Message]:
        """Iterate over messages for ever, prefetching at most ``prefetch`` messages and ``max_bytes`` (0: any).

        With a pull consumer ``pull`` are further arguments of :meth:`fetch`, such as ``group``; on a cluster the next
        pull starts once half of the prefetched messages are used up. With a push consumer it subscribes. The ack wait
        of prefetched messages is restarted until you get them; those you did not get when the iteration is closed are
        given back at once. Raises PullRefusedError for a message larger than ``max_bytes``, HeartbeatMissedError if a
        push consumer with heartbeats falls silent.
        """
        source = await self._source(PrefetchLimit(prefetch, max_bytes), pull)
        keeper = self._keeper(source)
        try:
            while True:
                message = source.pop()
                if message is None:
                    await source.wait()
                else:
                    if self._backend.tracing is not None:
                        self._backend.tracing.handed_out(message.delivered)
                    yield message
        finally:
            keeper.stop()
            left = await source.close()
            if left and self._is_acked:
                await self._give_back(left)

    async def consume(self, callback: Callable[[Message], object], *, prefetch: int = _CONSUMED, **pull: Any) -> None:
        """Call ``callback`` with every message, one after the other, until cancelled.

        When ``callback`` (a function, or a coroutine function) returns, the message is acknowledged, unless the
        callback has settled it; when it raises, the error is logged and the message is given back. Acks become
        durable in groups; ``prefetch`` bounds them, and ``pull`` is passed to :meth:`fetch`. On cancellation, finished
        messages are acknowledged, and the rest are given back.
        """
        check_callback(self._about, "callback", callback)
        if self._backend.tracing is not None:
            callback = traced_callback(self._backend.tracing, callback)
        source = await self._source(PrefetchLimit(prefetch), pull)
        taken = CallbackBatch(source)
        keeper = self._keeper(taken)
        try:
            while True:
                await source.wait()
                taken.take(prefetch)
                await self._call_back(callback, taken)
        finally:
            keeper.stop()
            left = await source.close()
            if left and self._is_acked:
                await self._give_back(left)

    @property
    def _is_acked(self) -> bool:
        return self.config.ack_policy not in ("none", "flow_control")

    def _keeper(self, shelf: Shelf) -> PrefetchKeeper:
        """Return the keeper that prevents the messages on a shelf from being redelivered."""
        keeper = PrefetchKeeper(self._backend, self.config, (self.stream_name, self.name), self._runtime)
        if self._is_acked:
            keeper.start(shelf)
        return keeper

    async def _call_back(self, callback: Callable[[Message], object], taken: CallbackBatch) -> None:
        """Call back with each message and settle them; if cancelled, still settle the finished ones."""
        done, failed = taken.done, taken.failed
        message: Message | None = None
        try:
            while taken.left:
                message = taken.left.popleft()
                try:
                    result = callback(message)
                    if result is not None and isawaitable(result):
                        await result
                except Exception:  # whatever it is: one message that fails must not stop the others
                    _log.exception(
                        "the callback of consumer %s/%s failed",
                        self.stream_name,
                        self.name,
                        extra={"stream": self.stream_name, "consumer": self.name, "seq": message.delivered.seq},
                    )
                    failed.append(message)
                else:
                    done.append(message)
                message = None
        finally:
            if message is not None:
                failed.append(message)
            done, back = taken.clear()
            if self._is_acked:
                await self._settle_all(done, back)

    async def _settle_all(self, done: list[Message], failed: list[Message]) -> None:
        """Acknowledge, and give back, what the callback has not settled itself."""
        try:
            await self._settle_unsettled("ack", done)
        finally:
            await self._settle_unsettled("nak", failed)

    async def _settle_unsettled(self, kind: AckKind, messages: list[Message]) -> None:
        unsettled = [message for message in messages if not message.is_settled]
        if not unsettled:
            return
        try:
            await self._send_acks(kind, unsettled)
        except AckRejectedError as error:
            _log.warning("%s", error, extra={"stream": self.stream_name, "consumer": self.name})

    async def _source(self, room: PrefetchLimit, pull: Mapping[str, Any]) -> MessageSource:
        check_whole(self._about, "prefetch", room.prefetch, 1)
        check_whole(self._about, "max_bytes", room.max_bytes)
        for name in ("batch", "timeout", "max_bytes"):
            if name in pull:
                raise ConfigError(f"{self._about}: {name} is decided while it is read: leave it out, or give prefetch")
        if self.config.deliver_subject:
            pushed = Pushed(self._backend, self.config, self.stream_name)
            await pushed.open()
            return PushSource(self._backend, pushed, room.prefetch)
        # A message with a single delivery would be lost if it were prefetched and given back.
        prefetch = 1 if self.config.max_deliver == 1 and self._is_acked else room.prefetch
        room = msgspec.structs.replace(room, prefetch=min(prefetch, self.config.max_batch or prefetch))

        prefetching = copy(self)
        prefetching._traces_fetches = False

        async def fetch(batch: int, max_bytes: int) -> list[Message]:
            return await prefetching.fetch(batch, timeout=None, max_bytes=max_bytes, **pull)

        overlaps = self._backend.planning.overlapping_pulls and room.prefetch > 1
        return PullSource(fetch, room, (self.stream_name, self.name), overlaps=overlaps)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def ack(self, messages: Iterable[Message]) -> None:
        """Acknowledge many messages at once; returns when durable.

        Raises the AckRejectedError of the first that had no effect; the others took effect.
        """
        given = items_of(self._about, "messages", messages, "messages")
        for message in given:
            check_instance(self._about, "a message", message, Message, "give messages that were fetched from it")
        await self._send_acks("ack", given)

    async def _give_back(self, messages: Sequence[Message]) -> None:
        # Messages that were redelivered, or whose consumer or store is gone, need not be given back.
        with suppress(AckRejectedError, NotFoundError, *FINAL_ERRORS):
            await self._send_acks("nak", messages)

    async def _send_acks(self, kind: AckKind, messages: Sequence[Message]) -> None:
        acks = [ack_of(message.delivered, kind) for message in messages]
        if self._backend.tracing is None or not acks:
            answers = await self._backend.ack(self.stream_name, self.name, acks)
        else:
            answers = await settle(self._backend, [one.delivered for one in messages], acks, self._backend.ack)
        for refused in answers:
            if refused is not None:
                raise refused

    async def pause(self, until: datetime | str) -> PauseReply:
        """Pause delivery until a time (an aware datetime, or RFC 3339 text). Raises ConsumerNotFoundError."""
        time = time_text("until", until, self._about)
        return await self._backend.call(ConsumerPause(stream=self.stream_name, name=self.name, pause_until=time))

    async def resume(self) -> None:
        """Resume delivery, if the consumer was paused."""
        await self._backend.call(ConsumerPause(stream=self.stream_name, name=self.name))

    async def reset(self, seq: int = 0) -> ConsumerInfo:
        """Forget all deliveries and continue from ``seq``, or (0) from the first unacknowledged message.

        Raises ApiError 10204 for a sequence that the consumer's deliver policy excludes.
        """
        return await self._backend.call(ConsumerReset(stream=self.stream_name, name=self.name, seq=seq))

    async def delete(self) -> None:
        """Remove the consumer; its unacknowledged messages stay in the stream."""
        await self._backend.call(ConsumerDelete(stream=self.stream_name, name=self.name))


def _tell(callback: Callable[[str], object] | None, group: str) -> None:
    if callback is None:
        return
    try:
        callback(group)
    except Exception:  # whatever it is: the messages just taken must not be lost over it
        _log.exception("the callback for priority group %r failed", group, extra={"group": group})


async def pages_of(consumer: Consumer, upto: int = 0) -> AsyncGenerator[list[Message], None]:
    """Yield all that a new consumer without acks has to deliver, or what it has up to a sequence that is stored.

    Raises ServerTimeoutError. No message is no end: a server that is busy may need a while for its answer, and then
    it says that there are more.
    """
    seen, pending, is_silent = 0, consumer._pending, False
    while seen < upto if upto else pending:
        if found := await consumer.fetch(_PAGE, timeout=_PATIENCE_S):
            yield found
            seen, pending, is_silent = found[-1].delivered.seq, found[-1].delivered.num_pending, False
        elif not (pending := (await consumer.info()).num_pending):
            return
        elif is_silent:
            reason = f"{pending} messages of stream {consumer.stream_name!r} did not come"
            raise ServerTimeoutError("the server", reason)
        else:
            is_silent = True
