"""Push consumers: messages go to whoever listens to the consumer's deliver subject.

The story. A push consumer delivers while somebody listens. Of the processes that do, one pumps: that of the longest
standing listener that lives. Every process judges that by the same rows (``bus.py``), and looks again when anybody
joins or leaves, and once a second, because the dead do not say that they leave. The pump delivers in transactions like
a pull's, as much as its listeners have room for: in one process a slow listener slows its pump, nothing is hoarded.

Heartbeats are status messages when nothing was delivered for a while; flow control asks, now and then, for an answer
(status 100 with a reply subject) and delivers no more than a window ahead of it. A rate limit spreads deliveries over
time. A consumer that acknowledges by flow control (ADR-60) takes the answer for the acks of what came before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from pelton.api import AckOp, Delivered, Incoming, PeltonError, PullRequest, reply_subject
from pelton.consumers import ConsumerLog, Delivery, Settlement
from pelton.engine.bus import Listener
from pelton.engine.catalogue import Catalogue
from pelton.engine.waiting import Alarm, Key, WaitingPulls, seconds_until_due
from pelton.runtime import Clock, Runtime, Signal

R = TypeVar("R")
_BATCH: Final = 512
_LOOK_S: Final = 1.0
_WINDOW_BYTES: Final = 4 << 20
_HEARTBEAT: Final = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
_FLOW_CONTROL: Final = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


class Peers(Protocol):
    """The openers of the store."""

    name: str


class Host(Protocol):
    """What a pump needs of its engine."""

    catalogue: Catalogue

    def now(self) -> int: ...
    def new_name(self) -> str: ...
    def stage(self, call: Callable[[], Any], *, durable: bool, at_once: bool = False) -> asyncio.Future[Any]: ...
    def read(self, call: Callable[[], R]) -> R: ...


class Pushes:
    """The push consumers that this process pumps."""

    def __init__(self, host: Host, waiting: WaitingPulls, peers: Peers, runtime: Runtime, epoch: int) -> None:
        self._host = host
        self._waiting = waiting
        self._peers = peers
        self._runtime = runtime
        self._clock: Clock = runtime.clock
        self._epoch = epoch
        self._pumps: dict[Key, _Pump] = {}
        self._seen = (-1, -1)
        self._watched = False

    @property
    def is_pumping(self) -> bool:
        """Whether this process delivers for any consumer."""
        return bool(self._pumps)

    def look(self) -> None:
        """Start and end pumps where listeners or consumers have changed."""
        catalogue = self._host.catalogue
        seen = (catalogue.version, catalogue.bus.version)
        if seen != self._seen:
            self._seen = seen
            self._reconcile()

    def poke(self) -> None:
        """A listener of this process has room again."""
        for pump in self._pumps.values():
            pump.signal.notify()

    async def close(self) -> None:
        """End every pump."""
        self._seen = (-2, -2)
        for key in list(self._pumps):
            await self._pumps.pop(key).stop()

    def _reconcile(self) -> None:
        catalogue, others = self._host.catalogue, False
        wanted: set[Key] = set()
        for key, consumer in catalogue.consumers.items():
            if not consumer.config.deliver_subject:
                continue
            listeners = listeners_of(catalogue, consumer)
            if listeners and listeners[0].owner == self._peers.name:
                wanted.add(key)
            others = others or any(listener.owner == self._peers.name for listener in listeners[1:])
        for key in wanted - self._pumps.keys():
            self._pumps[key] = _Pump(self._host, key, self._waiting, self._runtime, self._epoch, self._peers.name)
        for key in self._pumps.keys() - wanted:
            self._runtime.spawn(self._pumps.pop(key).stop(), "pelton ends a push consumer's pump")
        if others and not self._watched:
            self._watched = True
            self._clock.call_later(_LOOK_S, self._look_again)

    def _look_again(self) -> None:
        """Somebody else pumps for listeners of ours: it may have died."""
        self._watched = False
        if self._seen >= (0, 0):
            self._reconcile()


def listeners_of(catalogue: Catalogue, consumer: ConsumerLog) -> list[Listener]:
    """Return who listens to what a push consumer delivers, the longest standing first."""
    config = consumer.config
    if not config.deliver_subject:
        return []
    return [one for one in catalogue.bus.listeners(config.deliver_subject) if one.queue == config.deliver_group]


class _Pump:
    """The delivery of one push consumer by this process."""

    def __init__(self, host: Host, key: Key, waiting: WaitingPulls, runtime: Runtime, epoch: int, owner: str) -> None:
        self._host = host
        self._key = key
        self._waiting = waiting
        self._clock = runtime.clock
        self._epoch = epoch
        self._owner = owner
        self._fresh = True
        self._last_said = self._clock.monotonic()
        self._not_before = 0.0
        self._ahead_bytes = self._asked_bytes = 0
        self._asked: str = ""
        self._asked_seq = 0
        self._listener = 0
        self.signal: Signal = waiting.join(key, ())
        self._task = runtime.spawn(self._run(), f"pelton pushes {key[0]}/{key[1]}")

    async def stop(self) -> None:
        """Deliver no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- the answers to flow control

    @property
    def room(self) -> int:
        """Answers are taken at once."""
        return _BATCH

    def hear(self, message: Incoming) -> None:
        """Take the answer to a request of flow control."""
        if message.subject == self._asked:
            self._asked = ""
            self._ahead_bytes -= self._asked_bytes
            if self._by_flow:
                future = self._host.stage(self._settle_before, durable=True)
                future.add_done_callback(lambda done: done.exception())
            self.signal.notify()

    def _settle_before(self) -> None:
        log = self._consumer()
        sql = "SELECT seq, dseq FROM pending WHERE consumer=? AND seq<=?"
        rows = log.db.execute(sql, (log.id, self._asked_seq)).fetchall()
        acks = [AckOp(seq=int(str(seq)), consumer_seq=int(str(dseq))) for seq, dseq in rows]
        if acks:
            Settlement(log, self._host.now(), self._host.catalogue.interests.get(log.log)).run(acks)

    # --- the loop

    async def _run(self) -> None:
        alarm = Alarm(self._clock, self.signal)
        try:
            # A consumer or store that is gone is nobody's any more: whoever closed or deleted it ends the pump.
            with suppress(PeltonError):
                await self._listen_for_answers()
                while True:
                    seen = self.signal.generation
                    delay = await self._round()
                    if delay is None or delay > 0:
                        alarm.set(delay)
                        await self.signal.wait(seen)
        finally:
            alarm.cancel()
            self._waiting.leave(self._key)
            if self._listener:
                self._host.stage(self._unlisten, durable=False).add_done_callback(lambda done: done.exception())

    async def _listen_for_answers(self) -> None:
        if self._host.read(self._consumer).config.flow_control:
            subject = f"$JS.FC.{self._key[0]}.{self._key[1]}.*"
            self._listener = await self._host.stage(
                lambda: self._host.catalogue.bus.join(subject, "", self), durable=False
            )

    def _unlisten(self) -> None:
        self._host.catalogue.bus.leave(self._listener)

    async def _round(self) -> float | None:
        """Deliver once; return after how many seconds to go on: 0 at once, None when there is no telling."""
        promising, delay = self._host.read(self._look)
        pause = self._not_before - self._clock.monotonic()
        if promising and pause <= 0 and await self._host.stage(self._deliver, durable=False, at_once=True):
            return 0.0
        delays = [delay, pause if promising and pause > 0 else None, self._until_heartbeat()]
        known = [value for value in delays if value is not None]
        if self._is_heartbeat_due():
            await self._host.stage(self._say_heartbeat, durable=False)
            return 0.0
        return max(min(known), 0.001) if known else None

    def _look(self) -> tuple[bool, float | None]:
        log = self._consumer()
        self._waiting.follow(self._key, log.filters)
        now = self._host.now()
        return log.may_deliver(now) and self._room(log) > 0, seconds_until_due(log, now)

    def _room(self, log: ConsumerLog) -> int:
        if self._ahead_bytes >= _WINDOW_BYTES:
            return 0
        return min(_BATCH, self._host.catalogue.bus.room(log.config.deliver_subject))

    def _consumer(self) -> ConsumerLog:
        return self._host.catalogue.consumer(*self._key)

    @property
    def _by_flow(self) -> bool:
        return self._consumer().config.ack_policy == "flow_control"

    # --- in a transaction

    def _deliver(self) -> int:
        """Deliver what there is room for; return how much that was."""
        log, catalogue = self._consumer(), self._host.catalogue
        listeners = listeners_of(catalogue, log)
        batch = self._room(log)
        if not listeners or listeners[0].owner != self._owner or batch <= 0:
            return 0
        now = self._host.now()
        if self._fresh and log.config.ack_policy == "flow_control":
            log.offer_again(now)
        self._fresh = False
        batch = 1 if log.config.rate_limit_bps else batch
        delivery = Delivery(log, PullRequest(batch=batch), now, self._epoch, catalogue.interests.get(log.log))
        found = delivery.run()
        for delivered in found:
            message = Incoming(
                delivered.subject, delivered.data, delivered.headers, reply_subject(delivered), delivered
            )
            catalogue.bus.deliver(log.config.deliver_subject, message)
        if found:
            self._last_said = self._clock.monotonic()
            self._count(log, found)
        return len(found)

    def _count(self, log: ConsumerLog, found: list[Delivered]) -> None:
        """Account for what was delivered: to the rate limit, and to flow control."""
        size = sum(len(one.subject) + len(one.data) + len(one.headers or b"") for one in found)
        config = log.config
        if config.rate_limit_bps:
            self._not_before = self._clock.monotonic() + size * 8 / config.rate_limit_bps
        if not config.flow_control:
            return
        self._ahead_bytes += size
        many = config.ack_policy == "flow_control" and 2 * log.unsettled >= log.room
        if not self._asked and (many or 2 * self._ahead_bytes >= _WINDOW_BYTES):
            self._asked = f"$JS.FC.{self._key[0]}.{self._key[1]}.{self._host.new_name()}"
            self._asked_bytes, self._asked_seq = self._ahead_bytes, found[-1].seq
            self._say(log, Incoming(config.deliver_subject, b"", _FLOW_CONTROL, self._asked))

    # --- heartbeats

    def _until_heartbeat(self) -> float | None:
        every = self._host.read(self._consumer).config.idle_heartbeat / 1e9
        return self._last_said + every - self._clock.monotonic() if every else None

    def _is_heartbeat_due(self) -> bool:
        left = self._until_heartbeat()
        return left is not None and left <= 0

    def _say_heartbeat(self) -> None:
        log = self._consumer()
        self._last_said = self._clock.monotonic()
        block = _HEARTBEAT % (log.dseq, log.delivered)
        if self._asked:
            # Who missed the request, and answers nothing, is told of it again.
            block = block[:-2] + b"Nats-Consumer-Stalled: %b\r\n\r\n" % self._asked.encode()
        self._say(log, Incoming(log.config.deliver_subject, b"", block))

    def _say(self, log: ConsumerLog, message: Incoming) -> None:
        self._host.catalogue.bus.deliver(log.config.deliver_subject, message)
