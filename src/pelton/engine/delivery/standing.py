"""Pulls that stand until they are filled, for clients of a server: those of one consumer take turns (ADR-13).

Design: A pull of an embedded user returns as soon as there is a message. A client of a server asks once, gets messages
one by one as they come, and is told how its pull ended. So the pulls of a consumer stand in a line, and one task for
each line delivers, in transactions like those of :class:`Pulls`: each message goes to the pull whose turn it is. In a
priority group, whose turn it is follows from the rows of all pulls (``consumers/turns.py``): each pull of the line
tries for itself, those with the lowest number first, and equals share what they got.

A pull ends when its messages or bytes are used up, when it expires, when its client is gone, with its consumer, or
with the server; a pull that does not wait ends when nothing is left to deliver. ``sink.end`` is called for all of these
except when the messages are used up, which the client has counted itself, or when it is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Final, Protocol

import msgspec

from pelton.api import ApiError, Delivered, NotFoundError, PinLostError, PullRequest, StoreError, api_error
from pelton.api.message import (
    BATCH_COMPLETED,
    CONSUMER_DELETED,
    EXPIRED,
    MAX_WAITING,
    NO_MESSAGES,
    PIN_TAKEN,
    REQUESTS_PENDING,
    SHUTDOWN,
    TOO_LARGE,
    PullStatus,
)
from pelton.api.store_errors import FINAL_ERRORS
from pelton.consumers import ConsumerLog, check_pull, is_conditional
from pelton.engine.delivery.pulls import Pulls, WaitingPull
from pelton.engine.delivery.waiting import WaitingPulls, delays_of
from pelton.engine.host import Host
from pelton.engine.session import Key
from pelton.runtime import Runtime, Signal

_BATCH: Final = 512
_BATCH_BYTES: Final = 8 << 20
_RETRY_S: Final = 1.0


class PullSink(Protocol):
    """The client's side of a standing pull; ``is_gone``: nobody receives any more, ``has_room``: it keeps up."""

    @property
    def is_gone(self) -> bool: ...
    @property
    def has_room(self) -> bool: ...
    def deliver(self, messages: Sequence[Delivered]) -> None: ...
    def beat(self, last_consumer: int, last_stream: int) -> None: ...
    def end(self, status: PullStatus, left: int, left_bytes: int) -> None: ...


class StandingPull:
    """One pull of a client: what is left of it, and until when it stands."""

    left: int
    left_bytes: int
    delivered: int
    next_beat: float

    def __init__(self, waiting: WaitingPull, sink: PullSink, now: float, beat_s: float) -> None:
        request = waiting.request
        self.waiting = waiting
        self.sink = sink
        self.left = request.batch
        self.left_bytes = request.max_bytes
        self.delivered = 0
        self.until: float | None = None if request.expires_ns is None else now + request.expires_ns / 1e9
        self.beat_s = beat_s
        self.next_beat = now + beat_s
        self.checked = False

    @property
    def is_filled(self) -> bool:
        """Whether all its messages, or bytes, were delivered."""
        return self.left <= 0 or (self.waiting.request.max_bytes > 0 and self.left_bytes <= 0)

    def take(self, messages: Sequence[Delivered], now: float) -> None:
        """Pass messages on, and subtract them from what is left."""
        self.sink.deliver(messages)
        self.left -= len(messages)
        self.delivered += len(messages)
        self.next_beat = now + self.beat_s
        if self.waiting.request.max_bytes:
            self.left_bytes -= sum(map(_size, messages))
            if self.is_filled and self.left_bytes > 0:
                self.end(BATCH_COMPLETED)

    def end(self, status: PullStatus) -> None:
        """Tell the client how its pull ended."""
        self.sink.end(status, max(self.left, 0), max(self.left_bytes, 0))


def _size(message: Delivered) -> int:
    return len(message.subject.encode()) + len(message.reply) + len(message.headers or b"") + len(message.data)


class StandingPulls:
    """The standing pulls of one engine, by consumer."""

    def __init__(self, host: Host, pulls: Pulls, waiting: WaitingPulls, runtime: Runtime) -> None:
        self._host = host
        self._pulls = pulls
        self._waiting = waiting
        self._runtime = runtime
        self._lines: dict[Key, _Line] = {}

    def pull(self, stream: str, consumer: str, request: PullRequest, beat_s: float, sink: PullSink) -> None:
        """Let a pull stand until it is filled or over; ``beat_s`` of silence are followed by a heartbeat (0: never)."""
        key = (stream, consumer)
        waiting = self._pulls.begin(stream, consumer, request, stands=True)
        one = StandingPull(waiting, sink, self._runtime.clock.monotonic(), beat_s)
        line = self._lines.get(key)
        if line is None:
            line = _Line(key, self._host, self._pulls, self._waiting, self._runtime, self._lines.pop)
            self._lines[key] = line
        line.add(one)

    def poke(self) -> None:
        """Continue with pulls whose clients had no room."""
        for line in self._lines.values():
            line.poke()

    async def close(self) -> None:
        """End all of them."""
        for line in list(self._lines.values()):
            await line.close()


class _Line:
    """The standing pulls of one consumer, and the task that delivers to them."""

    def __init__(
        self,
        key: Key,
        host: Host,
        pulls: Pulls,
        waiting: WaitingPulls,
        runtime: Runtime,
        ended: Callable[[Key], object],
    ) -> None:
        self._key = key
        self._host = host
        self._pulls = pulls
        self._waiting = waiting
        self._clock = runtime.clock
        self._ended = ended
        self._line: list[StandingPull] = []
        self._is_blocked = False
        self._signal = Signal()
        self._task = runtime.spawn(self._run(), "pelton serves the pulls of {}/{}".format(*key))

    def add(self, one: StandingPull) -> None:
        """Put a pull at the end of the line."""
        log = self._host.session.registry.consumers.by_name.get(self._key)
        self._line.append(one)
        # Each is counted; all have the same signal.
        self._signal = self._waiting.join(self._key, () if log is None else log.filters)
        self._signal.notify()

    def poke(self) -> None:
        if self._is_blocked:
            self._signal.notify()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        status = SHUTDOWN
        try:
            while self._line:
                seen = self._signal.generation
                delay = await self._round()
                if self._line and (delay is None or delay > 0):
                    await self._signal.wait_at_most(self._clock, delay, seen)
        except NotFoundError:
            status = CONSUMER_DELETED
        except StoreError:
            # The store is closed, or has failed for good: so is what stands on it.
            pass
        finally:
            self._ended(self._key)
            for one in list(self._line):
                self._end(one, status)

    def _end(self, one: StandingPull, status: PullStatus | None) -> None:
        """Take a pull out of the line; without a status its client knows."""
        self._line.remove(one)
        self._waiting.leave(self._key)
        self._pulls.end(one.waiting)
        if status is not None and not one.sink.is_gone:
            one.end(status)

    async def _round(self) -> float | None:
        """Deliver once; return the seconds until the next round: 0 for at once, None if only a signal can tell."""
        self._drop_ended()
        if not self._line:
            return None
        await self._host.readable()
        line = tuple(one for one in self._line if one.sink.has_room)
        self._is_blocked = len(line) < len(self._line)
        if line and (any(not one.checked for one in line) or self._host.read(self._look)[0]):
            try:
                plan: _Plan = await self._host.stage(lambda: self._planned(line), durable=False, at_once=True)
            except StoreError as error:
                if isinstance(error, FINAL_ERRORS):
                    raise
                return _RETRY_S
            if self._carry_out(plan):
                return 0.0
        self._end_the_impatient(line)
        return self._until_next(self._host.read(self._look)[1]) if self._line else None

    def _carry_out(self, plan: _Plan) -> bool:
        """Hand out what a transaction delivered, and end what it refused; return whether there were messages."""
        now = self._clock.monotonic()
        for one, pin in plan.pins.items():
            one.waiting.request = msgspec.structs.replace(one.waiting.request, pin_id=pin)
        for one, messages in plan.runs:
            one.take(messages, now)
        # Those that were served have their next turn after the others, and each after those served before it.
        served = dict.fromkeys(one for one, _ in reversed(plan.runs))
        for one in reversed(served):
            self._line.remove(one)
            self._line.append(one)
        for one, status in plan.ended:
            self._end(one, status)
        return bool(plan.runs)

    def _drop_ended(self) -> None:
        now = self._clock.monotonic()
        for one in list(self._line):
            if one.sink.is_gone or one.is_filled:
                self._end(one, None)
            elif one.until is not None and now >= one.until and one.checked:
                self._end(one, EXPIRED)
            elif one.beat_s and now >= one.next_beat:
                one.next_beat = now + one.beat_s
                log = self._host.session.registry.consumers.by_name.get(self._key)
                one.sink.beat(*((log.dseq, log.delivered) if log is not None else (0, 0)))

    def _end_the_impatient(self, line: Sequence[StandingPull]) -> None:
        """End the pulls that wait for nothing more, or only for their first message."""
        for one in line:
            request = one.waiting.request
            if one in self._line and request.no_wait and (one.delivered or not request.expires_ns):
                self._end(one, NO_MESSAGES)

    def _until_next(self, delay: float | None) -> float | None:
        now = self._clock.monotonic()
        delays = [delay]
        for one in self._line:
            delays += [None if one.until is None else one.until - now, one.next_beat - now if one.beat_s else None]
        known = [value for value in delays if value is not None]
        return max(min(known), 0.001) if known else None

    def _look(self) -> tuple[bool, float | None]:
        """Check, in a snapshot, whether any pull could get messages now, and if not, when to check again."""
        log = self._host.session.registry.consumer(*self._key)
        self._waiting.follow(self._key, log.filters)
        if log.config.priority_groups:
            try:
                looks = [self._pulls.look(one.waiting) for one in self._line]
            except PinLostError:
                # It is told so when it is tried.
                return True, None
            delays = [delay for _, delay in looks if delay is not None]
            return any(promising for promising, _ in looks), min(delays, default=None)
        now = self._host.session.now()
        return log.may_deliver(now) or log.has_use_to_record(now), min(delays_of(log, now), default=None)

    # --- in a transaction

    def _planned(self, line: Sequence[StandingPull]) -> _Plan:
        """Deliver what there is to the pulls in turn."""
        registry = self._host.session.registry
        log = registry.consumer(*self._key)
        now = self._host.session.now()
        if log.is_idle(now) and not any(one.checked for one in line):
            # An idle one has expired, even if no sweep has removed it yet.
            raise api_error("JSConsumerNotFoundErr", stream=log.log.name, consumer=log.name)
        log.record_use(now)
        plan = _Plan()
        admitted = self._admitted(line, log, plan)
        if log.config.priority_groups:
            self._deliver_in_groups(admitted, log, plan)
        elif any(one.waiting.request.max_bytes for one in admitted):
            self._deliver_one(admitted, log, now, plan)
        elif admitted:
            wanted = min(sum(one.left for one in admitted), _BATCH)
            delivery = registry.delivery(log, PullRequest(batch=wanted, max_bytes=_BATCH_BYTES), now)
            messages = delivery.run()
            if delivery.blocked:
                # A single message may be of any size.
                messages = registry.delivery(log, PullRequest(batch=1), now).run()
            plan.share(messages, admitted)
        return plan

    def _admitted(self, line: Sequence[StandingPull], log: ConsumerLog, plan: _Plan) -> list[StandingPull]:
        """Return the pulls that the consumer accepts; plan the end of the others."""
        admitted: list[StandingPull] = []
        for one in line:
            status = None if one.checked else self._refusal(one, log, admitted)
            one.checked = True
            if status is None:
                admitted.append(one)
            else:
                plan.ended.append((one, status))
        return admitted

    def _refusal(self, one: StandingPull, log: ConsumerLog, before: Sequence[StandingPull]) -> PullStatus | None:
        """Return why a consumer does not accept a new pull."""
        try:
            check_pull(one.waiting.request, log.config, log.log.name)
        except ApiError as error:
            return PullStatus(error.code, error.description)
        if log.config.priority_groups:
            return None
        request, is_full = one.waiting.request, len(before) >= log.config.max_waiting
        if request.no_wait:
            pending = log.num_pending()
            if 0 < pending < sum(each.left for each in before):
                return REQUESTS_PENDING
            if is_full and not pending and request.expires_ns is None:
                # Who would not have to wait is told that there is nothing, however many wait.
                return NO_MESSAGES
        return MAX_WAITING if is_full else None

    def _deliver_one(self, line: list[StandingPull], log: ConsumerLog, now: int, plan: _Plan) -> None:
        """Deliver one message to the pull whose turn it is; end those for which it is too large."""
        registry = self._host.session.registry
        for one in line:
            delivery = registry.delivery(log, PullRequest(batch=1, max_bytes=one.left_bytes), now)
            messages = delivery.run()
            if not delivery.blocked:
                plan.share(messages, [one])
                return
            plan.ended.append((one, TOO_LARGE))

    def _deliver_in_groups(self, line: list[StandingPull], log: ConsumerLog, plan: _Plan) -> None:
        policy = log.config.priority_policy
        if policy == "overflow" and any(is_conditional(one.waiting.request) for one in line):
            self._deliver_one_by_one(line, plan)
            return

        def number(one: StandingPull) -> int:
            return one.waiting.request.priority if policy == "prioritized" else 0

        for _, group in groupby(sorted(line, key=number), number):
            equals = list(group)
            found = [self._tried(one, one.left, one.left_bytes, plan) for one in equals]
            if policy == "pinned_client" or any(one.waiting.request.max_bytes for one in equals):
                for one, messages in zip(equals, found, strict=True):
                    plan.share(messages, [one])
            else:
                plan.share(list(chain.from_iterable(found)), equals)

    def _deliver_one_by_one(self, line: Sequence[StandingPull], plan: _Plan) -> None:
        """Deliver each message to the next pull whose conditions hold: they may not for the message after it."""
        queue, refused = deque((one, one.left, one.left_bytes) for one in line), 0
        for _ in range(_BATCH + len(line)):
            if refused == len(queue):
                return
            one, left, left_bytes = queue.popleft()
            messages = self._tried(one, 1, left_bytes, plan)
            if messages:
                refused = 0
                plan.share(messages, [one])
                left_bytes -= _size(messages[0])
                if left == 1 or left_bytes == 0:
                    continue
            elif plan.ended and plan.ended[-1][0] is one:
                continue
            else:
                refused += 1
            queue.append((one, left - len(messages), left_bytes))

    def _tried(self, one: StandingPull, batch: int, left_bytes: int, plan: _Plan) -> list[Delivered]:
        """Try one pull of a group; plan its end if it is refused, or if the next message is too large for it."""
        request = one.waiting.request
        no_wait = request.no_wait and request.expires_ns is None
        request = msgspec.structs.replace(request, batch=batch, max_bytes=max(left_bytes, 0), no_wait=no_wait)
        try:
            found = self._pulls.tried(one.waiting, request, waited=True)
        except ApiError as error:
            is_taken = isinstance(error, PinLostError) and one.waiting.is_waiting
            plan.ended.append((one, PIN_TAKEN if is_taken else PullStatus(error.code, error.description)))
            return []
        if found.blocked:
            plan.ended.append((one, TOO_LARGE))
        if found.pin:
            plan.pins[one] = found.pin
        return found.messages


class _Plan:
    """What a transaction delivers to which pull, and which pulls it ends.

    ``runs`` are in the order of the messages: a client with several pulls receives them in this order.
    """

    def __init__(self) -> None:
        self.runs: list[tuple[StandingPull, list[Delivered]]] = []
        self.ended: list[tuple[StandingPull, PullStatus]] = []
        # The pin under which a pull is served, and stands from now on.
        self.pins: dict[StandingPull, str] = {}

    def share(self, messages: Sequence[Delivered], line: Sequence[StandingPull]) -> None:
        """Give each message to the pull whose turn it is, beginning with the first."""
        if len(line) == 1:
            if messages:
                self.runs.append((line[0], list(messages)))
            return
        waiting = deque((one, one.left) for one in line)
        for message in messages:
            one, left = waiting.popleft()
            self.runs.append((one, [message]))
            if left > 1:
                waiting.append((one, left - 1))
