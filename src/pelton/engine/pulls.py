"""Pulls: an embedded one from its first attempt to its result, and those of a server's clients until they are filled.

An embedded pull tries at once. If it finds nothing, it waits as a line of its own (``line.py``). One of a consumer that
had nothing the last time looks first, with a read: to ask again is no write. A pull of a priority group also keeps a
row while it waits, so that pulls of other processes know of it (``turns.py``).

**A client of a server asks once, gets messages one by one as they come, and is told how its pull ended.** So the pulls
of a consumer stand in a line, whose task delivers each message to the pull whose turn it is (ADR-13). In a priority
group, whose turn it is follows from the rows of all pulls: each pull of the line tries for itself, those with the
lowest number first, and equals share what they got.

A pull ends when its messages or bytes are used up, when it expires, when its client is gone, with its consumer, or
with the server; a pull that does not wait ends when nothing is left to deliver. ``sink.end`` is called for all of these
except when the messages are used up, which the client has counted itself, or when it is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import chain, groupby
from typing import Final, Protocol

import msgspec

from pelton.api import ApiError, Delivered, NotFoundError, PinLostError, PullRequest, StoreError, api_error
from pelton.api.backend import Leftover
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
from pelton.consumers import (
    NEVER,
    ConsumerLog,
    GroupDecision,
    Puller,
    Turn,
    check_pull,
    is_conditional,
    next_refresh,
    too_many_waiting,
)
from pelton.engine.host import Host
from pelton.engine.line import Line, Lines
from pelton.engine.session import Key
from pelton.runtime import Deadline, Runtime

_BATCH: Final = 512
_BATCH_BYTES: Final = 8 << 20


class Found(msgspec.Struct, frozen=True):
    """The result of one try, under the ``pin`` of its group; ``blocked``: the next message is larger than it allows."""

    messages: list[Delivered]
    blocked: bool = False
    pin: str = ""


class Pulls:
    """The pulls of one engine."""

    def __init__(self, host: Host, lines: Lines, runtime: Runtime) -> None:
        self._host = host
        self._lines = lines
        self._peers = lines.peers
        self._runtime = runtime
        self.standing: dict[Key, StandingLine] = {}

    async def pull(
        self, stream: str, consumer: str, request: PullRequest, leftover: Leftover | None = None
    ) -> list[Delivered]:
        """Take up to ``request.batch`` messages, waiting for the first if the request says so."""
        one = WaitingPull((stream, consumer), request, self._new_id(request))
        one.leftover = leftover
        try:
            found = Found([]) if await self._is_in_vain(one) else await self.try_now(one)
            if found.messages or found.blocked or request.no_wait:
                return found.messages
            return await PullLine(self, one, self._lines).wait()
        finally:
            self.end(one)

    async def _is_in_vain(self, one: WaitingPull) -> bool:
        """Whether a try would find nothing, and change nothing: a read tells it of a consumer that had nothing."""
        log = self._host.session.registry.consumers.by_name.get(one.key)
        if log is None or not log.is_dry or not self._host.is_at_rest:
            return False
        # A caller that asks without end lets other tasks run.
        await asyncio.sleep(0)
        await self._host.readable()
        return self._host.is_at_rest and not self._host.read(lambda: self._may_find(one))

    def _may_find(self, one: WaitingPull) -> bool:
        log, now = self._host.session.registry.consumer(*one.key), self._host.session.now()
        if log.config.priority_groups or log.log.state.is_overdue(now) or log.is_idle(now):
            return True
        check_pull(one.request, log.config, log.log.name)
        return log.may_deliver(now) or log.has_use_to_record(now)

    def stand(self, stream: str, consumer: str, request: PullRequest, beat_s: float, sink: PullSink) -> None:
        """Let a pull stand until it is filled or over; ``beat_s`` of silence are followed by a heartbeat (0: never)."""
        key = (stream, consumer)
        line = self.standing.get(key)
        if line is None:
            line = self.standing[key] = StandingLine(key, self, self._lines, self._runtime)
        now = self._runtime.clock.monotonic()
        line.add(StandingPull(key, request, self._new_id(request), sink, now, beat_s))

    def poke(self) -> None:
        """Continue with standing pulls whose clients had no room."""
        for line in self.standing.values():
            line.poke()

    async def close(self) -> None:
        for line in list(self.standing.values()):
            await line.stop()

    def _new_id(self, request: PullRequest) -> str:
        """Return the id of the row that a pull of a group has while it waits."""
        return self._host.session.new_id() if request.group else ""

    def end(self, one: WaitingPull) -> None:
        """Let other processes know, without waiting for the result, that a pull waits no longer."""

        def leave() -> None:
            registry = self._host.session.registry
            if one.key in registry.consumers.by_name:
                self._turn(one, one.request, registry.consumer(*one.key), self._host.session.now()).leave()

        if one.is_waiting:
            self._host.stage_quietly(leave)

    async def try_now(self, one: WaitingPull, *, waited: bool = False) -> Found:
        def attempt() -> Found | None:
            session = self._host.session
            log, now = session.registry.consumer(*one.key), session.now()
            if log.log.advance_some(now):
                return None
            return self.deliver(one, one.request, log, now, waited=waited)

        while True:
            future: asyncio.Future[Found | None] = self._host.stage(attempt, durable=False, at_once=True)
            try:
                found = await future
            except asyncio.CancelledError:
                is_done = future.done() and not future.cancelled() and future.exception() is None
                if is_done and (found := future.result()) is not None:
                    self._leave_over(one, found.messages)
                raise
            # Else very much expires: others can write between its portions.
            if found is not None:
                return found

    def _leave_over(self, one: WaitingPull, messages: list[Delivered]) -> None:
        if one.leftover is None:
            self._host.hand_back(*one.key, messages)
        elif messages:
            one.leftover(messages)

    # --- in a transaction

    def deliver(self, one: WaitingPull, request: PullRequest, log: ConsumerLog, now: int, *, waited: bool) -> Found:
        """Deliver to a pull what there is; ``request`` is what it asks for now, ``waited``: it was tried before."""
        if log.accepted is not request:
            check_pull(request, log.config, log.log.name)
            log.accepted = request
        if log.is_idle(now) and not waited:
            # It has expired, even if no sweep has removed it yet.
            raise api_error("JSConsumerNotFoundErr", stream=log.log.name, consumer=log.name)
        log.record_use(now)
        if log.config.priority_groups:
            return self._deliver_in_turn(one, request, log, now)
        delivery = self._host.session.registry.delivery(log, request, now)
        found = Found(delivery.run(), delivery.blocked)
        log.is_dry = not found.messages
        return found

    def _deliver_in_turn(self, one: WaitingPull, request: PullRequest, log: ConsumerLog, now: int) -> Found:
        turn = self._turn(one, request, log, now)
        turn.sweep()
        turn.expire_pin()
        turn.note()
        verdict = turn.verdict(counted=True)
        found = self._serve(request, log, turn, verdict, now) if verdict.served else Found([])
        if found.messages and not one.stands:
            turn.leave()
        elif not request.no_wait and (one.is_waiting or len(found.messages) < request.batch):
            if not one.is_waiting and not found.messages and turn.is_crowded():
                raise too_many_waiting(log.config, log.log.name)
            turn.wait()
            one.is_waiting, one.seen = True, now
        return found

    def _serve(self, request: PullRequest, log: ConsumerLog, turn: Turn, verdict: GroupDecision, now: int) -> Found:
        request = msgspec.structs.replace(request, batch=verdict.batch)
        delivery = self._host.session.registry.delivery(log, request, now)
        messages, pin = delivery.run(), ""
        if messages and log.config.priority_policy == "pinned_client":
            pin = turn.pin_to(messages, self._host.session.new_id)
        return Found(messages, delivery.blocked, pin)

    def _turn(self, one: WaitingPull, request: PullRequest, log: ConsumerLog, now: int) -> Turn:
        return Turn(log, request, Puller(one.id, self._peers.name, self._peers.is_alive, one.stands), now)

    def is_promising(self, one: WaitingPull, log: ConsumerLog, now: int, delays: list[float]) -> bool:
        """Check, in a snapshot, whether a pull could get messages now; add to ``delays`` when to check again."""
        promising = log.may_deliver(now)
        if not log.config.priority_groups:
            return promising
        verdict = self._turn(one, one.request, log, now).verdict(counted=False)
        refresh = next_refresh(min(one.seen, now), log.config.priority_timeout.ns)
        delays += [max(time - now, 0) / 1e9 for time in (verdict.again_at, max(refresh, now)) if time != NEVER]
        return (promising and verdict.served) or refresh <= now


class WaitingPull:
    """One pull; ``is_waiting`` while it has a row, ``seen`` is when that row was last refreshed.

    It ``stands`` if it waits until all its messages were delivered.
    """

    stands = False

    def __init__(self, key: Key, request: PullRequest, pull_id: str) -> None:
        self.key = key
        self.request = request
        self.id = pull_id
        self.is_waiting = False
        self.seen = 0
        self.leftover: Leftover | None = None


class PullLine(Line):
    """One embedded pull, in the task of its caller."""

    def __init__(self, pulls: Pulls, one: WaitingPull, lines: Lines) -> None:
        super().__init__(one.key, lines)
        self._pulls = pulls
        self._one = one
        self._messages: list[Delivered] = []
        expires = one.request.expires_ns
        self._deadline = Deadline(self._clock, None if expires is None else expires / 1e9)

    async def wait(self) -> list[Delivered]:
        """Return the first messages, or none if the pull expires. Raises ApiError if too many wait already."""
        log = self._host.session.registry.consumers.by_name.get(self._key)
        # Pulls of priority groups have rows, which count them across all processes.
        if log is not None and not log.config.priority_groups and self._lines.count(log) >= log.config.max_waiting:
            raise too_many_waiting(log.config, log.log.name)
        self._signal = self._lines.join(self._key)
        try:
            await self.run()
        finally:
            self._lines.leave(self._key)
        return self._messages

    def _is_promising(self, log: ConsumerLog, now: int, delays: list[float]) -> bool:
        return self._pulls.is_promising(self._one, log, now, delays)

    async def _deliver(self) -> bool:
        found = await self._pulls.try_now(self._one, waited=True)
        self._messages = found.messages
        self._has_ended = bool(found.messages) or found.blocked
        return self._has_ended

    def _own_delays(self) -> list[float | None]:
        self._has_ended = self._deadline.is_over
        if not self._has_ended:
            # If the store was removed, no process will wake this pull.
            self._host.door.check_place()
        return [self._deadline.left]

    def _pause_after(self, error: StoreError) -> float:
        raise error


# --- the pulls of a server's clients


class PullSink(Protocol):
    """The client's side of a standing pull; ``is_gone``: nobody receives any more, ``has_room``: it keeps up."""

    @property
    def is_gone(self) -> bool: ...
    @property
    def has_room(self) -> bool: ...
    def deliver(self, messages: Sequence[Delivered]) -> None: ...
    def beat(self, last_consumer: int, last_stream: int) -> None: ...
    def end(self, status: PullStatus, left: int, left_bytes: int) -> None: ...


class StandingPull(WaitingPull):
    """One pull of a client: what is left of it, and until when it stands."""

    stands = True

    def __init__(self, key: Key, request: PullRequest, pull_id: str, sink: PullSink, now: float, beat_s: float) -> None:
        super().__init__(key, request, pull_id)
        self.sink = sink
        self.left: int = request.batch
        self.left_bytes: int = request.max_bytes
        self.delivered: int = 0
        self.until: float | None = None if request.expires_ns is None else now + request.expires_ns / 1e9
        self.beat_s = beat_s
        self.next_beat: float = now + beat_s
        self.checked = False

    @property
    def is_filled(self) -> bool:
        """Whether all its messages, or bytes, were delivered."""
        return self.left <= 0 or (self.request.max_bytes > 0 and self.left_bytes <= 0)

    def take(self, messages: Sequence[Delivered], now: float) -> None:
        """Pass messages on, and subtract them from what is left."""
        self.sink.deliver(messages)
        self.left -= len(messages)
        self.delivered += len(messages)
        self.next_beat = now + self.beat_s
        if self.request.max_bytes:
            self.left_bytes -= sum(map(_size, messages))
            if self.is_filled and self.left_bytes > 0:
                self.end(BATCH_COMPLETED)

    def end(self, status: PullStatus) -> None:
        """Tell the client how its pull ended."""
        self.sink.end(status, max(self.left, 0), max(self.left_bytes, 0))


def _size(message: Delivered) -> int:
    return len(message.subject.encode()) + len(message.reply) + len(message.headers or b"") + len(message.data)


class StandingLine(Line):
    """The standing pulls of one consumer, and the task that delivers to them."""

    def __init__(self, key: Key, pulls: Pulls, lines: Lines, runtime: Runtime) -> None:
        super().__init__(key, lines)
        self._pulls = pulls
        self._line: list[StandingPull] = []
        # Those whose clients have room, as of this round.
        self._able: list[StandingPull] = []
        self._task = runtime.spawn(self._serve(), "pelton serves the pulls of {}/{}".format(*key))

    def add(self, one: StandingPull) -> None:
        """Put a pull at the end of the line."""
        self._line.append(one)
        self._has_ended = False
        # Each is counted; all have the same signal.
        self._signal = self._lines.join(self._key)
        self._signal.notify()

    async def _serve(self) -> None:
        status = SHUTDOWN
        try:
            await self.run()
        except NotFoundError:
            status = CONSUMER_DELETED
        except StoreError:
            # The store is closed, or has failed for good: so is what stands on it.
            pass
        finally:
            del self._pulls.standing[self._key]
            for one in list(self._line):
                self._end(one, status)

    def _end(self, one: StandingPull, status: PullStatus | None) -> None:
        """Take a pull out of the line; without a status its client knows."""
        self._line.remove(one)
        self._has_ended = not self._line
        self._lines.leave(self._key)
        self._pulls.end(one)
        if status is not None and not one.sink.is_gone:
            one.end(status)

    async def _run_once(self) -> float | None:
        self._drop_ended()
        self._able = [one for one in self._line if one.sink.has_room]
        self._is_blocked = len(self._able) < len(self._line)
        if all(one.checked for one in self._able):
            return await super()._run_once() if self._line else 0.0
        await self._host.readable()
        if not await self._deliver():
            self._end_the_impatient()
        return 0.0

    async def _deliver(self) -> bool:
        if not self._able:
            return False
        plan: _Plan = await self._host.stage(self._plan, durable=False, at_once=True)
        self._carry_out(plan)
        return bool(plan.runs)

    def _carry_out(self, plan: _Plan) -> None:
        """Hand out what a transaction delivered, and end what it refused."""
        now = self._clock.monotonic()
        for one, pin in plan.pins.items():
            one.request = msgspec.structs.replace(one.request, pin_id=pin)
        for one, messages in plan.runs:
            one.take(messages, now)
        # Those that were served have their next turn after the others, and each after those served before it.
        served = dict.fromkeys(one for one, _ in reversed(plan.runs))
        for one in reversed(served):
            self._line.remove(one)
            self._line.append(one)
        for one, status in plan.ended:
            self._end(one, status)

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

    def _end_the_impatient(self) -> None:
        """End the pulls that wait for nothing more, or only for their first message."""
        for one in self._able:
            request = one.request
            if request.no_wait and (one.delivered or not request.expires_ns) and one in self._line:
                self._end(one, NO_MESSAGES)

    def _own_delays(self) -> list[float | None]:
        self._end_the_impatient()
        now = self._clock.monotonic()
        delays = [None if one.until is None else one.until - now for one in self._line]
        return [*delays, *(one.next_beat - now for one in self._line if one.beat_s)]

    def _is_promising(self, log: ConsumerLog, now: int, delays: list[float]) -> bool:
        if not log.config.priority_groups:
            return bool(self._able) and log.may_deliver(now)
        try:
            # Each says when to look again.
            promising = [self._pulls.is_promising(one, log, now, delays) for one in self._able]
        except PinLostError:
            # It is told so when it is tried.
            return True
        return any(promising)

    # --- in a transaction

    def _plan(self) -> _Plan:
        """Deliver what there is to the pulls in turn."""
        registry = self._host.session.registry
        log = registry.consumer(*self._key)
        now = self._host.session.now()
        if log.is_idle(now) and not any(one.checked for one in self._able):
            # An idle one has expired, even if no sweep has removed it yet.
            raise api_error("JSConsumerNotFoundErr", stream=log.log.name, consumer=log.name)
        log.record_use(now)
        plan = _Plan()
        admitted = self._admit(log, plan)
        if log.config.priority_groups:
            self._deliver_in_groups(admitted, log, plan)
        elif any(one.request.max_bytes for one in admitted):
            self._deliver_one(admitted, log, now, plan)
        elif admitted:
            wanted = min(sum(one.left for one in admitted), _BATCH)
            request = PullRequest(batch=wanted, max_bytes=_BATCH_BYTES)
            plan.share(self._next_messages(log, request, now), admitted)
        return plan

    def _admit(self, log: ConsumerLog, plan: _Plan) -> list[StandingPull]:
        """Return the pulls that the consumer accepts; plan the end of the others."""
        admitted: list[StandingPull] = []
        for one in self._able:
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
            check_pull(one.request, log.config, log.log.name)
        except ApiError as error:
            return PullStatus(error.code, error.description)
        if log.config.priority_groups:
            return None
        request, is_full = one.request, len(before) >= log.config.max_waiting
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
        if policy == "overflow" and any(is_conditional(one.request) for one in line):
            self._deliver_one_by_one(line, plan)
            return

        def number(one: StandingPull) -> int:
            return one.request.priority if policy == "prioritized" else 0

        for _, group in groupby(sorted(line, key=number), number):
            equals = list(group)
            found = [self._try(one, one.left, one.left_bytes, plan) for one in equals]
            if policy == "pinned_client" or any(one.request.max_bytes for one in equals):
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
            messages = self._try(one, 1, left_bytes, plan)
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

    def _try(self, one: StandingPull, batch: int, left_bytes: int, plan: _Plan) -> list[Delivered]:
        """Try one pull of a group; plan its end if it is refused, or if the next message is too large for it."""
        request = one.request
        no_wait = request.no_wait and request.expires_ns is None
        request = msgspec.structs.replace(request, batch=batch, max_bytes=max(left_bytes, 0), no_wait=no_wait)
        session = self._host.session
        try:
            log = session.registry.consumer(*one.key)
            found = self._pulls.deliver(one, request, log, session.now(), waited=True)
        except ApiError as error:
            is_taken = isinstance(error, PinLostError) and one.is_waiting
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
