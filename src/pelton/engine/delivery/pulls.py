"""One pull, from its first attempt to its result: try, wait, try again.

A pull tries at once. If it finds nothing, it waits for a signal (any process committed something on its stream), for
the nearest deadline of its consumer, or for its own expiry. It then checks with a read, and starts a transaction only
if that read promises a message. A pull of a priority group also keeps a row while it waits, so that pulls of other
processes know of it (``consumers/turns.py``).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import msgspec

from pelton.api import ConsumerConfig, Delivered, PeltonError, PullRequest, api_error
from pelton.api.backend import Leftover
from pelton.consumers import (
    NEVER,
    ConsumerLog,
    GroupDecision,
    Puller,
    Turn,
    check_pull,
    next_refresh,
    too_many_waiting,
    waiting_pulls,
)
from pelton.engine.bus import Peers
from pelton.engine.delivery.waiting import WaitingPulls, delays_of
from pelton.engine.host import Host
from pelton.engine.session import Key
from pelton.runtime import Clock, Deadline

R = TypeVar("R")
_POLL_S: Final = 0.05


class Found(NamedTuple):
    """The result of one try; ``blocked``: no messages, because the next one is larger than the pull allows.

    ``pin``: the pin of its group under which it was served.
    """

    messages: list[Delivered]
    blocked: bool = False
    pin: str = ""


class Pulls:
    """The pulls of one engine."""

    def __init__(self, host: Host, waiting: WaitingPulls, peers: Peers, clock: Clock) -> None:
        self._host = host
        self._waiting = waiting
        self._peers = peers
        self._clock = clock
        # How consumers were when pulls that wait have looked at them.
        self._seen: dict[Key, tuple[ConsumerConfig, int]] = {}

    async def pull(
        self, stream: str, consumer: str, request: PullRequest, leftover: Leftover | None = None
    ) -> list[Delivered]:
        """Take up to ``request.batch`` messages, waiting for the first if the request says so."""
        one = self.begin(stream, consumer, request)
        one.leftover = leftover
        try:
            found = await self._try(one)
            if found.messages or found.blocked or request.no_wait:
                return found.messages
            return await self._wait_and_try(one)
        finally:
            self.end(one)

    def begin(self, stream: str, consumer: str, request: PullRequest, *, stands: bool = False) -> WaitingPull:
        """Return a pull that was not tried yet; :meth:`end` it. ``stands``: until all its messages were delivered."""
        return WaitingPull(stream, consumer, request, self._host.session.new_id() if request.group else "", stands)

    def end(self, one: WaitingPull) -> None:
        """Let other processes know that a pull waits no longer."""
        if one.is_waiting:
            self._leave(one)

    def count(self, consumer: ConsumerLog) -> int:
        """Return how many pulls wait: in all processes for a consumer with groups, else in this process."""
        if consumer.config.priority_groups:
            return waiting_pulls(consumer, self._peers.is_alive, self._host.session.now())
        if consumer.config.deliver_subject:
            # What waits is the pump of a push consumer.
            return 0
        return self._waiting.count(consumer)

    async def _try(self, one: WaitingPull, *, waited: bool = False) -> Found:
        future = self._host.stage(lambda: self.tried(one, one.request, waited=waited), durable=False, at_once=True)
        try:
            found: Found = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._leave_over(one, future.result().messages)
            raise
        return found

    def _leave_over(self, one: WaitingPull, messages: list[Delivered]) -> None:
        if one.leftover is None:
            self._host.hand_back(one.stream, one.consumer, messages)
        elif messages:
            one.leftover(messages)

    # --- in a transaction

    def tried(self, one: WaitingPull, request: PullRequest, *, waited: bool) -> Found:
        """Deliver to a pull what there is; ``request`` is what it asks for now, ``waited``: it was tried before."""
        registry = self._host.session.registry
        log = registry.consumer(one.stream, one.consumer)
        check_pull(request, log.config, one.stream)
        now = self._host.session.now()
        if log.is_idle(now) and not waited:
            # It has expired, even if no sweep has removed it yet.
            raise api_error("JSConsumerNotFoundErr", stream=one.stream, consumer=one.consumer)
        log.record_use(now)
        if log.config.priority_groups:
            return self._tried_in_turn(one, request, log, now)
        delivery = registry.delivery(log, request, now)
        return Found(delivery.run(), delivery.blocked)

    def _tried_in_turn(self, one: WaitingPull, request: PullRequest, log: ConsumerLog, now: int) -> Found:
        turn = self._turn(one, request, log, now)
        turn.sweep()
        turn.expire_pin()
        turn.note()
        verdict = turn.verdict(counted=True)
        found = self._served(request, log, turn, verdict, now) if verdict.served else Found([])
        if found.messages and not one.stands:
            turn.leave()
        elif not request.no_wait and (one.is_waiting or len(found.messages) < request.batch):
            if not one.is_waiting and not found.messages and turn.is_crowded():
                raise too_many_waiting(log.config, one.stream)
            turn.wait()
            one.is_waiting, one.seen = True, now
        return found

    def _served(self, request: PullRequest, log: ConsumerLog, turn: Turn, verdict: GroupDecision, now: int) -> Found:
        request = msgspec.structs.replace(request, batch=verdict.batch)
        delivery = self._host.session.registry.delivery(log, request, now)
        messages, pin = delivery.run(), ""
        if messages and log.config.priority_policy == "pinned_client":
            pin = turn.pin_to(messages, self._host.session.new_id)
        return Found(messages, delivery.blocked, pin)

    def _turn(self, one: WaitingPull, request: PullRequest, log: ConsumerLog, now: int) -> Turn:
        return Turn(log, request, Puller(one.id, self._peers.name, self._peers.is_alive, one.stands), now)

    # --- waiting

    async def _wait_and_try(self, one: WaitingPull) -> list[Delivered]:
        key = (one.stream, one.consumer)
        signal = self._waiting.join(key, self._check_waiting(one), self._is_concerned)
        expires = one.request.expires_ns
        deadline = Deadline(self._clock, None if expires is None else expires / 1e9)
        try:
            while True:
                seen = signal.generation
                await self._host.readable()
                promising, delay = self._host.read(lambda: self._look_and_note(one))
                if promising:
                    found = await self._try(one, waited=True)
                    if found.messages or found.blocked:
                        return found.messages
                if deadline.is_over:
                    return []
                # If the store was removed, no process will wake this pull.
                self._host.door.check_place()
                longest = min((value for value in (delay, deadline.left) if value is not None), default=None)
                await signal.wait_at_most(self._clock, longest, seen)
        finally:
            self._waiting.leave(key)
            if not self._waiting.has(key):
                self._seen.pop(key, None)

    def _check_waiting(self, one: WaitingPull) -> tuple[str, ...]:
        """Return the filters of the consumer, or refuse the pull if ``max_waiting`` of this process wait already.

        Pulls of priority groups have rows, which count them across all processes.
        """
        log = self._host.session.registry.consumers.by_name.get((one.stream, one.consumer))
        if log is None:
            return ()
        if not log.config.priority_groups and self._waiting.count(log) >= log.config.max_waiting:
            raise too_many_waiting(log.config, one.stream)
        return log.filters

    def look(self, one: WaitingPull) -> tuple[bool, float | None]:
        """Check, in a snapshot, whether a pull could get messages now, and if not, when to check again."""
        log = self._host.session.registry.consumer(one.stream, one.consumer)
        self._waiting.follow((one.stream, one.consumer), log.filters)
        now = self._host.session.now()
        delays, stale = delays_of(log, now), log.has_use_to_record(now)
        if self._peers.polled:
            delays.append(_POLL_S)
        promising = log.may_deliver(now)
        if log.config.priority_groups:
            verdict = self._turn(one, one.request, log, now).verdict(counted=False)
            promising = promising and verdict.served
            refresh = next_refresh(min(one.seen, now), log.config.priority_timeout.ns)
            stale = stale or refresh <= now
            delays += [max(time - now, 0) / 1e9 for time in (verdict.again_at, max(refresh, now)) if time != NEVER]
        return promising or stale, min(delays, default=None)

    def _look_and_note(self, one: WaitingPull) -> tuple[bool, float | None]:
        found = self.look(one)
        log = self._host.session.registry.consumers.by_name[one.stream, one.consumer]
        self._seen[one.stream, one.consumer] = (log.config, log.next_due(self._host.session.now()))
        return found

    def _is_concerned(self, key: Key) -> bool:
        """Check, in a snapshot, whether pulls of a consumer are to look again: another process has committed."""
        log = self._host.session.registry.consumer(*key)
        config, due = self._seen.get(key, (None, 0))
        if config is not log.config or config.priority_groups:
            return True
        now = self._host.session.now()
        return log.next_due(now) < due or log.may_deliver(now)

    def _leave(self, one: WaitingPull) -> None:
        """Remove the row of a pull that no longer waits, without waiting for the result."""
        log = self._host.session.registry.consumers.by_name.get((one.stream, one.consumer))
        if log is None:
            return

        def leave() -> None:
            registry = self._host.session.registry
            if (one.stream, one.consumer) in registry.consumers.by_name:
                log = registry.consumer(one.stream, one.consumer)
                self._turn(one, one.request, log, self._host.session.now()).leave()

        with suppress(PeltonError):
            # If the store is closed or has failed, there is no row to remove.
            future = self._host.stage(leave, durable=False)
            future.add_done_callback(lambda done: done.exception())


class WaitingPull:
    """One pull; ``is_waiting`` while it has a row, ``seen`` is when that row was last refreshed."""

    def __init__(self, stream: str, consumer: str, request: PullRequest, pull_id: str, stands: bool) -> None:
        self.stream = stream
        self.consumer = consumer
        self.request = request
        self.id = pull_id
        self.stands = stands
        self.is_waiting = False
        self.seen = 0
        self.leftover: Leftover | None = None
