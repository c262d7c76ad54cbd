"""Which push consumers this process delivers, the delivery of each, and the subscriptions that receive it.

**The delivery of one push consumer by this process.** A pump is a line (``line.py``) that delivers as much as its
subscribers have capacity for: in one process a slow subscriber slows its pump, and nothing is hoarded. It also looks
again when a subscriber has capacity again, and at deadlines of its own: a heartbeat, or a rate limit.

Heartbeats are status messages, sent when nothing was delivered for a while. Flow control now and then requests an
answer (status 100 with a reply subject) and delivers no more than a window ahead of it. A rate limit spreads
deliveries over time. If a consumer acknowledges by flow control (ADR-60), the answer acks all earlier messages.

A pump ends when its consumer is gone, and tries again when its store is busy.

**Which push consumers this process delivers: messages go to the subscribers of the consumer's deliver subject.** A push
consumer delivers while it has subscribers. Of their processes, one pumps: that of the oldest subscription whose process
runs. Every process decides that by the same rows (``bus.py``), and again whenever a subscription is made or ends. A
process that depends on another one's pump also checks once a second, because a process that dies does not unsubscribe:
if its socket refuses a byte, it is dead. A process that was merely stopped (SIGSTOP, a debugger, a machine that
thrashes) still has a socket. So a process that pumps for subscribers of others increments its beat, a number in its
row, once a second; if the beat has not moved for several checks, the process is set aside until it moves again. Two
processes that pump at the same time do no harm: each delivery is a transaction that checks which process is to make it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Final

from pelton.api import AckOp, Delivered, Incoming, NotFoundError, PeltonError, PullRequest, StoreClosedError, headers
from pelton.api.admission import check_listening
from pelton.api.store_errors import FINAL_ERRORS
from pelton.consumers import ConsumerLog
from pelton.engine.bus import SubscriptionRow
from pelton.engine.host import Host
from pelton.engine.line import Line, Lines
from pelton.engine.session import Key, Session, delete_consumers, incoming
from pelton.runtime import Clock, Deadline, Runtime, Signal, Timer
from pelton.storage import integer

_BATCH: Final = 512
_BATCH_BYTES: Final = 4 << 20
_AHEAD_BYTES: Final = 4 << 20
_HEARTBEAT: Final = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
_FLOW_CONTROL: Final = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


class Pump(Line):
    """Delivers for ``consumer`` until :meth:`stop`, or until the consumer is gone."""

    is_relay = False

    def __init__(self, consumer: ConsumerLog, lines: Lines, runtime: Runtime) -> None:
        super().__init__((consumer.log.name, consumer.name), lines)
        self.consumer = consumer
        # The subject prefix of answers to flow control.
        self._answers = f"$JS.FC.{consumer.log.name}.{consumer.name}"
        self._fresh = True
        self._last_said = self._clock.monotonic()
        self._not_before = 0.0
        self._ahead_bytes = self._asked_bytes = 0
        self._asked: str = ""
        self._subscription = 0
        self._signal = lines.join(self._key)
        self._task = runtime.spawn(self._push(), f"pelton pushes {consumer.log.name}/{consumer.name}")

    # --- the answers to flow control

    @property
    def capacity(self) -> int:
        """Always a whole batch: answers are processed at once."""
        return _BATCH

    @property
    def reserve(self) -> int:
        return _BATCH

    def receive(self, route: str, messages: Sequence[Incoming]) -> None:
        """Process the answer to a flow control request."""
        answer = next((message for message in messages if self._asked and message.subject == self._asked), None)
        if answer is None:
            return
        self._asked = ""
        self._ahead_bytes -= self._asked_bytes
        received = headers.first(answer.headers or b"", headers.LAST_STREAM) or ""
        if received.isdecimal() and self.consumer.config.ack_policy == "flow_control":
            self._host.stage_quietly(lambda: self._settle_upto(int(received)), durable=True)
        self._signal.notify()

    def _settle_upto(self, seq: int) -> None:
        log = self._host.session.registry.consumer(*self._key)
        sql = "SELECT seq, dseq FROM pending WHERE consumer=? AND seq<=?"
        rows = log.db.execute(sql, (log.id, seq)).fetchall()
        acks = [AckOp(seq=integer(seq), consumer_seq=integer(dseq)) for seq, dseq in rows]
        if acks:
            self._host.session.registry.settlement(log, self._host.session.now()).run(acks)

    # --- the loop

    async def _push(self) -> None:
        try:
            await self._subscribe_to_answers()
            await self.run()
        except (NotFoundError, *FINAL_ERRORS):
            # The consumer was deleted, or the store is closed: no more deliveries from here.
            return
        finally:
            self._lines.leave(self._key)
            if self._subscription:
                self._host.stage_quietly(lambda: self._host.session.bus.leave(self._subscription))

    async def _subscribe_to_answers(self) -> None:
        if self.consumer.config.flow_control:
            subject = f"{self._answers}.*"
            self._subscription = await self._host.stage(
                lambda: self._host.session.bus.join(subject, "", self), durable=False
            )

    async def _run_once(self) -> float | None:
        delay = await super()._run_once()
        if delay == 0.0 or (left := self._until_heartbeat()) is None or left > 0:
            return delay
        await self._host.stage(self._send_heartbeat, durable=False)
        return 0.0

    def _is_promising(self, log: ConsumerLog, now: int, delays: list[float]) -> bool:
        if (pause := self._not_before - self._clock.monotonic()) > 0:
            delays.append(pause)
        return self._room(log, subscriptions_of(self._host.session, log)) > 0 and log.may_deliver(now)

    async def _deliver(self) -> bool:
        delivered: bool = await self._host.stage(self._deliver_next, durable=False, at_once=True)
        return delivered

    def _own_delays(self) -> list[float | None]:
        return [self._until_heartbeat()]

    def _room(self, log: ConsumerLog, subscriptions: list[SubscriptionRow]) -> int:
        """Return how many messages may be delivered now."""
        if self._not_before > self._clock.monotonic():
            return 0
        is_ahead = self._ahead_bytes >= _AHEAD_BYTES and log.config.flow_control
        room = 0 if is_ahead else min(_BATCH, self._host.session.bus.capacity(subscriptions))
        self._is_blocked = room <= 0
        return room

    # --- in a transaction

    def _deliver_next(self) -> bool:
        """Deliver as many messages as subscribers have capacity for; return whether there were any."""
        session, now = self._host.session, self._host.session.now()
        log = session.registry.consumer(*self._key)
        subscriptions = subscriptions_of(session, log)
        if not subscriptions or subscriptions[0].owner != self._lines.peers.name:
            return False
        if self._fresh:
            self._fresh = False
            if log.is_idle(now):
                # It has expired, even if no sweep has removed it yet.
                delete_consumers(session, [log])
                return False
            if log.config.ack_policy == "flow_control":
                log.offer_again(now)
        log.record_use(now)
        room = self._room(log, subscriptions)
        if room <= 0:
            return False
        request = PullRequest(batch=1 if log.config.rate_limit_bps else room, max_bytes=_BATCH_BYTES)
        found = self._next_messages(log, request, now)
        if found:
            session.bus.deliver(log.config.deliver_subject, incoming(found))
            self._last_said = self._clock.monotonic()
            self._count(log, found)
        return bool(found)

    def _count(self, log: ConsumerLog, found: list[Delivered]) -> None:
        """Count delivered messages towards the rate limit and the flow control window."""
        config = log.config
        if not config.rate_limit_bps and not config.flow_control:
            return
        size = sum(len(one.subject) + len(one.data) + len(one.headers or b"") for one in found)
        if config.rate_limit_bps:
            self._not_before = self._clock.monotonic() + size * 8 / config.rate_limit_bps
        if not config.flow_control:
            return
        self._ahead_bytes += size
        many = config.ack_policy == "flow_control" and 2 * log.unsettled >= log.room
        if not self._asked and (many or 2 * self._ahead_bytes >= _AHEAD_BYTES):
            self._asked = f"{self._answers}.{self._host.session.new_id()}"
            self._asked_bytes = self._ahead_bytes
            self._send(log, Incoming(config.deliver_subject, b"", _FLOW_CONTROL, self._asked))

    # --- heartbeats

    def _until_heartbeat(self) -> float | None:
        every = self.consumer.config.idle_heartbeat.seconds
        return self._last_said + every - self._clock.monotonic() if every else None

    def _send_heartbeat(self) -> None:
        log = self._host.session.registry.consumer(*self._key)
        self._last_said = self._clock.monotonic()
        block = _HEARTBEAT % (log.dseq, log.delivered)
        if self._asked:
            # A subscriber that missed the request does not answer, so repeat it.
            block = block[:-2] + b"Nats-Consumer-Stalled: %b\r\n\r\n" % self._asked.encode()
        self._send(log, Incoming(log.config.deliver_subject, b"", block))

    def _send(self, log: ConsumerLog, message: Incoming) -> None:
        self._host.session.bus.deliver(log.config.deliver_subject, (message,))


def subscriptions_of(session: Session, consumer: ConsumerLog) -> list[SubscriptionRow]:
    """Return the subscriptions that a push consumer delivers to, the oldest first.

    There are none before somebody subscribes to its very subject: a wildcard is no interest, as on nats-server.
    """
    subject, group = consumer.config.deliver_subject, consumer.config.deliver_group
    if not subject:
        return []
    found = [one for one in session.bus.subscriptions(subject) if one.queue == group]
    return found if any(one.subject == subject for one in found) else []


_LOOK_S: Final = 1.0
_STANDS_STILL: Final = 5


class Pushes:
    """The push consumers that this process pumps."""

    def __init__(self, host: Host, lines: Lines, runtime: Runtime) -> None:
        self._host = host
        self._lines = lines
        self._peers = lines.peers
        self._runtime = runtime
        # The consumers that this process delivers.
        self.pumps: dict[Key, Pump] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._seen = (-1, -1)
        self._closed = False
        self._timer: Timer | None = None
        self._leads = False
        self._followed: set[str] = set()
        self._beats: dict[str, tuple[int, int]] = {}

    def look(self) -> None:
        """Start and end pumps if subscriptions or consumers have changed."""
        session = self._host.session
        seen = (session.registry.version, session.bus.version)
        if seen != self._seen and not self._closed:
            self._seen = seen
            self._reconcile()
            self._go_on()

    def poke(self) -> None:
        """Let pumps continue: a subscriber of this process has capacity again."""
        for pump in self.pumps.values():
            pump.poke()

    def stop(self) -> None:
        """Start no more pumps, and stop checking; running pumps end with the error that ended the store."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """End every pump."""
        self.stop()
        for key in list(self.pumps):
            self._end(key)
        if self._ending:
            # They stage their last work before the store is closed.
            await asyncio.wait(self._ending)

    # --- who pumps

    def _reconcile(self) -> None:
        self._leads, self._followed = False, set()
        wanted = self._consumers_to_pump()
        for key, pump in list(self.pumps.items()):
            if wanted.get(key) is not pump.consumer:
                self._end(key)
            else:
                # The subscriber that was full may have left.
                pump.poke()
        for key, consumer in wanted.items():
            if key not in self.pumps:
                self.pumps[key] = Pump(consumer, self._lines, self._runtime)

    def _end(self, key: Key) -> None:
        ending = self._runtime.spawn(self.pumps.pop(key).stop(), "pelton ends a push consumer's pump")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _consumers_to_pump(self) -> dict[Key, ConsumerLog]:
        """Return the consumers that this process is to pump; note which pumps other processes depend on."""
        me, session = self._peers.name, self._host.session
        wanted: dict[Key, ConsumerLog] = {}
        for key, consumer in session.registry.consumers.pushed.items():
            if session.registry.source_graph.is_consumed(consumer.log, consumer.name):
                # A stream takes what it delivers.
                continue
            owners = [row.owner for row in subscriptions_of(session, consumer)]
            if not owners:
                continue
            if owners[0] == me:
                wanted[key] = consumer
                self._leads = self._leads or any(owner != me for owner in owners)
            elif me in owners:
                self._followed.add(owners[0])
        return wanted

    # --- whether others run

    def _go_on(self) -> None:
        """Schedule the next check, if other processes depend on this one or it on them."""
        stopped = self._host.session.bus.is_stopped(self._peers.name)
        if self._timer is None and (self._leads or self._followed or stopped):
            self._timer = self._runtime.clock.call_later(_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._closed:
            return
        try:
            self._say_and_ask()
        except PeltonError:
            # Operations on the store raise this error; here, checking again is enough.
            self._beats.clear()
        self._reconcile()
        self._go_on()

    def _say_and_ask(self) -> None:
        bus = self._host.session.bus
        if self._leads or bus.is_stopped(self._peers.name):
            self._host.stage_quietly(bus.beat)
        for owner in self._followed:
            self._peers.wake(owner)
        bus.doubt()
        for owner in self._host.read(self._standing_still) if self._followed else ():
            self._host.stage_quietly(partial(bus.set_aside, owner))

    def _standing_still(self) -> list[str]:
        """Return the owners that pump for subscribers of ours and whose beat has not moved for several checks."""
        known, self._beats = self._beats, {}
        for owner in self._followed:
            beat = self._host.session.bus.beat_of(owner)
            before, looks = known.get(owner, (-1, 0))
            self._beats[owner] = (beat, looks + 1 if beat == before else 0)
        return [owner for owner, (_, looks) in self._beats.items() if looks >= _STANDS_STILL]


# --- the subscriptions of one engine: they join the bus, are woken by other processes, and leave again

_log: Final = logging.getLogger("pelton.engine")
_KEPT: Final = 65_536
# A push consumer of this process fills the buffer up to here, and continues when half of it is read.
_WINDOW: Final = 2048
_WINDOW_BYTES: Final = 16 << 20
_KEPT_BYTES: Final = 64 << 20


class EngineSubscription:
    """A Subscription on an embedded store, with a bounded buffer."""

    is_relay = False

    def __init__(self, subject: str, owner: Subscriptions) -> None:
        self._subject = subject
        self._owner = owner
        self._door = owner.host.door
        self._waiting: deque[Incoming] = deque()
        self._bytes = 0
        self._is_full = False
        self._signal = Signal()
        self._closed = False
        self._failure: Exception | None = None
        self._complained = False

    @property
    def capacity(self) -> int:
        """How many more messages a push consumer should deliver."""
        room = 0 if self._bytes >= _WINDOW_BYTES else _WINDOW - len(self._waiting)
        self._is_full = self._is_full or room <= 0
        return room

    @property
    def reserve(self) -> int:
        left = 0 if self._bytes >= _KEPT_BYTES else _KEPT - len(self._waiting)
        # Whoever finds no room waits until the buffer is half read.
        self._is_full = self._is_full or left <= 0
        return left

    def receive(self, route: str, messages: Sequence[Incoming]) -> None:
        """Buffer messages; drop those that do not fit."""
        if len(messages) > (left := self.reserve):
            messages = messages[:left]
            if not self._complained:
                self._complained = True
                _log.warning(
                    "store %s: the subscription to %r is read too slowly: messages are lost",
                    self._owner.path,
                    self._subject,
                    extra={"store": self._owner.path, "subject": self._subject},
                )
        self._waiting.extend(messages)
        self._bytes += sum([len(message.data) for message in messages])
        self._signal.notify()

    async def next(self, timeout: float | None = None) -> Incoming | None:
        """Return the next message; None if no message came within ``timeout`` seconds.

        Raises StoreClosedError, and once the buffer is empty, the error that ended the store's opener.
        """
        self._door.check_loop()
        if self._waiting and not self._closed:
            return self._first()
        deadline = Deadline(self._owner.clock, timeout)
        while True:
            seen = self._signal.generation
            if self._closed:
                raise StoreClosedError(self._owner.path)
            if self._waiting:
                return self._first()
            if self._failure is not None:
                raise self._failure
            if deadline.is_over:
                return None
            await self._signal.wait_at_most(self._owner.clock, deadline.left, seen)

    def take(self, limit: int) -> list[Incoming]:
        """Return up to ``limit`` messages that were received already."""
        pop = self._waiting.popleft
        found = [pop() for _ in range(min(limit, len(self._waiting)))]
        self._bytes -= sum([len(message.data) for message in found])
        self._tell_capacity()
        return found

    def _first(self) -> Incoming:
        message = self._waiting.popleft()
        self._bytes -= len(message.data)
        self._tell_capacity()
        return message

    def _tell_capacity(self) -> None:
        if self._is_full and 2 * len(self._waiting) <= _WINDOW and 2 * self._bytes <= _WINDOW_BYTES:
            self._is_full = False
            # A push consumer may go on.
            self._owner.pushes.poke()

    def take_all(self) -> list[Incoming]:
        """Return all messages that were received already."""
        return self.take(len(self._waiting))

    def fail(self, error: Exception) -> None:
        """Raise this error once all received messages are taken."""
        self._failure = error
        self._signal.notify()

    async def close(self) -> None:
        if self._closed:
            return
        self._door.check_loop()
        self._closed = True
        self._signal.notify()
        # Even if the caller is cancelled: a closed subscription must not receive messages for ever.
        await asyncio.shield(self._owner.leave(self))


POLL_S: Final = 0.05


class Subscriptions:
    """The open subscriptions of this process. ``polled``: no other process can wake this one, so it polls."""

    def __init__(self, host: Host, pushes: Pushes, clock: Clock, path: str, *, polled: bool) -> None:
        self.host = host
        self.pushes = pushes
        self.clock = clock
        self.path = path
        self._polled = polled
        # Each resolves to the id of the subscription's row once it has joined the bus.
        self._open: dict[EngineSubscription, asyncio.Future[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    async def subscribe(self, subject: str, queue: str) -> EngineSubscription:
        """Subscribe to what any process publishes from now on. Raises ConfigError."""
        check_listening(subject, queue)
        subscription = EngineSubscription(subject, self)
        bus = self.host.session.bus
        joined = self.host.stage(lambda: bus.join(subject, queue, subscription), durable=False)
        self._open[subscription] = joined
        if self._polled and len(self._open) == 1:
            self._poll()
        try:
            await asyncio.shield(joined)
        except BaseException:
            try:
                await subscription.close()
            finally:
                self._return(subscription)
            raise
        return subscription

    def _return(self, subscription: EngineSubscription) -> None:
        """Give back what push consumers delivered to a subscription that is closed."""
        delivered = [message.delivered for message in subscription.take_all() if message.delivered is not None]
        for (stream, consumer), group in groupby(delivered, lambda one: (one.stream, one.consumer)):
            self.host.hand_back(stream, consumer, list(group))

    async def leave(self, subscription: EngineSubscription) -> None:
        self.host.door.check_outside()
        joined = self._open.pop(subscription)
        # If the store is closed or has failed, there is no row to remove.
        with suppress(PeltonError):
            row = await joined
            await self.host.stage(lambda: self.host.session.bus.leave(row), durable=False)

    def fail(self, error: Exception) -> None:
        """End all of them with an error, which callers that wait get."""
        self._polled = False
        for subscription in self._open:
            subscription.fail(error)

    async def close(self) -> None:
        for subscription in list(self._open):
            await subscription.close()

    def _poll(self) -> None:
        if self._open and self._polled:
            self.host.woken()
            self.clock.call_later(POLL_S, self._poll)
