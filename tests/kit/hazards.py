"""A simulated world: one store, unreliable clients, and a clock that moves on demand.

Design: a :class:`World` keeps an embedded store in memory under a manual clock, all on one event loop. Each
:class:`SimulatedClient` reaches the store through a :class:`HazardBackend` that loses and delays traffic, as a network
would: a sent request is executed whether its sender still waits, got a timeout, or is dead. A client can be
paused (its timers, its answers and its events wait, while its clocks advance, as under SIGSTOP), crashed for good, have
its wall clock stepped, and its monotonic clock run fast or slow.

Equal seeds give equal random events. The progress of the store's own work between two steps of the clock is not part of
that: a step gives the event loop some iterations, and work that needs more is simply late.

    async with World(seed=7) as world:
        client = world.client("a", Hazards(lost_reply=0.05, slow=0.1))
        client.spawn(work(client.jet))
        await world.run(30.0)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pelton.api import (
    AckOp,
    Backend,
    BackendSubscription,
    ConsumerInfo,
    Delivered,
    DirectGet,
    DirectReply,
    Incoming,
    Outgoing,
    PeltonError,
    PubAck,
    PullRequest,
    Request,
    ServerTimeoutError,
    StoreClosedError,
)
from pelton.api.backend import Backups, EmbeddedStore, Leftover
from pelton.api.tracing import Replacement, Settled, Tracing, Transacting, Withdrawn
from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.runtime import Clock, Ids, Random, Runtime, Signal, Tasks, Timer
from pelton.testing.clock import ManualClock, ManualRuntime

R = TypeVar("R")
T = TypeVar("T")
_ROUNDS: Final = 25


@dataclass(frozen=True, kw_only=True)
class Hazards:
    """The likelihood of a client's failures: shares from 0 to 1, and seconds.

    A request may be lost on its way there, or its reply on the way back: both end in ServerTimeoutError after
    ``patience``. A ``slow`` share of requests, replies and events takes up to ``longest``. ``drift`` bounds by how much
    its monotonic clock is fast or slow.
    """

    lost_request: float = 0.0
    lost_reply: float = 0.0
    lost_event: float = 0.0
    slow: float = 0.0
    longest: float = 2.0
    patience: float = 1.0
    drift: float = 0.0


class World:
    """A store in memory, and its clients; ``async with`` opens and closes the store."""

    def __init__(self, seed: int = 0) -> None:
        """Create a world whose clock does not move yet; equal seeds give equal random events."""
        self.random = Random(seed)
        self.clock = ManualClock()
        self.clients: list[SimulatedClient] = []
        self._runtime = ManualRuntime(clock=self.clock, random=Random(seed), ids=Ids(Random(seed)))
        self._jet: Jet | None = None

    async def __aenter__(self) -> Self:
        self._jet = await open_store("memory:", sync="off", runtime=self._runtime)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.crash()
        await self.settle()
        await self.jet.close()

    @property
    def jet(self) -> Jet:
        """The store itself, without hazards."""
        assert self._jet is not None, "use the world in 'async with'"
        return self._jet

    def client(self, name: str, hazards: Hazards | None = None) -> SimulatedClient:
        """Return a new client, alive and running."""
        client = SimulatedClient(self, name, hazards or Hazards())
        self.clients.append(client)
        return client

    def happens(self, share: float) -> bool:
        """Draw whether an event of this likelihood happens."""
        return share > 0 and self.random.random() < share

    async def carry(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Finish work that has already been sent, even if its caller is cancelled."""
        return await self._runtime.finish(work(), "carried")

    async def settle(self, rounds: int = _ROUNDS) -> None:
        """Let the event loop run, without moving the clock."""
        for _ in range(rounds):
            await asyncio.sleep(0)

    async def run(self, seconds: float, *, tick: float = 0.1, watch: Callable[[], None] | None = None) -> None:
        """Advance the clock by at least ``seconds``, in steps of ``tick``; ``watch`` is called after each."""
        for _ in range(math.ceil(seconds / tick)):
            self.clock.advance(tick)
            await self.settle()
            if watch is not None:
                watch()


class ClientClock(Clock):
    """A client's clocks: the world's, stepped and at its own pace; its timers wait while it is paused."""

    def __init__(self, world: ManualClock, rate: float) -> None:
        """Create a clock that agrees with the world's now, and runs ``rate`` times as fast."""
        self._world = world
        self._rate = rate
        self._wall_offset = 0
        self._waiting: list[Callable[[], None]] = []
        self._resumed = Signal()
        self.is_paused = False

    def now(self) -> int:
        """Wall time in nanoseconds since the epoch."""
        return self._world.now() + self._wall_offset

    def monotonic(self) -> float:
        """Seconds at this client's pace; they pass while it is paused, too."""
        return self._world.monotonic() * self._rate

    def boottime(self) -> float:
        """Seconds at this client's pace; they pass while it is paused, too."""
        return self._world.boottime() * self._rate

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self._wall_offset += round(seconds * 1e9)

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        """Call ``fn`` after ``delay_s`` of this client's seconds, or once it is no longer paused."""
        timer = _ClientTimer(fn)
        timer.underlying = self._world.call_later(delay_s / self._rate, lambda: self._due(timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        """Suspend the calling task for ``delay_s`` of this client's seconds."""
        await self._world.sleep(delay_s / self._rate)
        await self.gate()

    async def gate(self) -> None:
        """Return when the client is not paused."""
        while self.is_paused:
            await self._resumed.wait()

    def pause(self) -> None:
        """Stop this client's timers and answers from now on."""
        self.is_paused = True

    def resume(self) -> None:
        """Continue; timers that came due during the pause fire now."""
        self.is_paused = False
        self._resumed.notify()
        waiting, self._waiting = self._waiting, []
        for fn in waiting:
            fn()

    def _due(self, timer: _ClientTimer) -> None:
        if self.is_paused:
            self._waiting.append(timer.fire)
        else:
            timer.fire()


class _ClientTimer:
    def __init__(self, fn: Callable[[], None]) -> None:
        self._fn: Callable[[], None] | None = fn
        self.underlying: Timer | None = None

    def cancel(self) -> None:
        self._fn = None
        if self.underlying is not None:
            self.underlying.cancel()

    def fire(self) -> None:
        fn, self._fn = self._fn, None
        if fn is not None:
            fn()


class SimulatedClient:
    """A client of a world's store: ``jet`` is its handle of the store, ``clock`` its own clock."""

    def __init__(self, world: World, name: str, hazards: Hazards) -> None:
        """Create a live client; called by :meth:`World.client`."""
        self.name = name
        self.world = world
        self.hazards = hazards
        self.is_alive = True
        self.clock = ClientClock(world.clock, 1 + world.random.uniform(-hazards.drift, hazards.drift))
        chance = Random(world.random.getrandbits(64))
        self.runtime = Runtime(clock=self.clock, random=chance, ids=Ids(chance), tasks=_MortalTasks())
        self.jet = Jet(HazardBackend(world.jet.backend, self), self.runtime)

    def spawn(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as this client, until it crashes."""
        return self.runtime.spawn(coro, self.name)

    def pause(self) -> None:
        """Stop it as SIGSTOP would."""
        self.clock.pause()

    def resume(self) -> None:
        """Let it continue."""
        self.clock.resume()

    def crash(self) -> None:
        """Kill it: it does and sends nothing more; requests already sent are still executed."""
        self.is_alive = False
        assert isinstance(self.runtime.tasks, _MortalTasks)
        self.runtime.tasks.kill()


class _MortalTasks(Tasks):
    """Tasks that can all be ended, as a process ends."""

    def kill(self) -> None:
        for task in list(self._alive):
            task.cancel()


class HazardBackend:
    """A ``Backend`` that loses and delays a client's traffic, according to its :class:`Hazards`."""

    def __init__(self, inner: Backend, client: SimulatedClient) -> None:
        """Reach ``inner`` as this client."""
        self._inner = inner
        self._client = client
        self.planning = inner.planning
        self.domain_prefix = inner.domain_prefix
        self.restarted_at = inner.restarted_at
        self.tracing: Tracing | None = None

    async def call(self, request: Request[R]) -> R:
        """Execute one administrative request."""
        return await self._ask(lambda: self._inner.call(request))

    async def publish(self, subject: str, data: bytes, headers: bytes | None = None) -> PubAck:
        """Store a message."""
        return await self._ask(lambda: self._inner.publish(subject, data, headers))

    async def publish_batch(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Store messages in order."""
        return await self._ask(lambda: self._inner.publish_batch(messages))

    async def publish_apart(self, messages: Sequence[Outgoing]) -> list[PubAck | PeltonError]:
        """Store messages, each answered by itself."""
        return await self._ask(lambda: self._inner.publish_apart(messages))

    async def publish_atomic(self, messages: Sequence[Outgoing]) -> PubAck:
        """Store messages together or not at all."""
        return await self._ask(lambda: self._inner.publish_atomic(messages))

    async def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages by direct get."""
        return await self._ask(lambda: self._inner.direct_get(stream, request))

    async def pull(
        self, stream: str, consumer: str, request: PullRequest, leftover: Leftover | None = None
    ) -> list[Delivered]:
        """Take messages."""
        return await self._ask(lambda: self._inner.pull(stream, consumer, request, leftover))

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries."""
        return await self._ask(lambda: self._inner.ack(stream, consumer, acks))

    async def settle(self, publishes: Sequence[Outgoing], stream: str, consumer: str, ack: AckOp) -> list[PubAck]:
        """Publish messages and acknowledge the delivery they result from."""
        return await self._ask(lambda: self._inner.settle(publishes, stream, consumer, ack))

    async def settle_once(self, ending: Settled, stream: str, consumer: str) -> None:
        """Settle a delivery, unless it was settled otherwise."""
        await self._ask(lambda: self._inner.settle_once(ending, stream, consumer))

    async def withdraw(self, stream: str, instead: Mapping[int, Replacement]) -> Withdrawn:
        """Remove messages that nobody holds, and store others."""
        return await self._ask(lambda: self._inner.withdraw(stream, instead))

    async def settle_many(self, endings: Sequence[Settled], stream: str, consumer: str) -> list[PeltonError | None]:
        """Settle many deliveries."""
        return await self._ask(lambda: self._inner.settle_many(endings, stream, consumer))

    def transaction(self, timeout: float) -> Transacting:
        """Return a transaction; it has no hazards."""
        return self._inner.transaction(timeout)

    def backups(self) -> Backups:
        """Return the backups; they have no hazards."""
        return self._inner.backups()

    def to_embedded(self, what: str) -> EmbeddedStore:
        """Return the store itself, if it is embedded."""
        return self._inner.to_embedded(what)

    async def subscribe(self, subject: str, queue: str = "") -> BackendSubscription:
        """Subscribe; messages may be late or lost."""
        return _HazardSubscription(await self._ask(lambda: self._inner.subscribe(subject, queue)), self)

    async def send(self, subject: str, data: bytes = b"", headers: bytes | None = None, reply: str = "") -> None:
        """Send a message, which may not arrive."""
        await self._client.clock.gate()
        if self._client.is_alive and not self._client.world.happens(self._client.hazards.lost_event):
            await self._inner.send(subject, data, headers, reply)

    async def has_message(self, stream: str, subjects: str) -> bool:
        """Whether a stream stores a message of a filter."""
        return await self._ask(lambda: self._inner.has_message(stream, subjects))

    async def has_seen_all(self, consumer: ConsumerInfo) -> bool:
        """Return True, as the store says that answers."""
        return await self._ask(lambda: self._inner.has_seen_all(consumer))

    def might_reach(self, subject: str) -> bool:
        """Whether anybody may be subscribed."""
        return self._inner.might_reach(subject)

    async def begun_deliveries(self, stream: str) -> None:
        """Return None, as a cluster does."""

    def check_loop(self) -> None:
        """Raise WrongLoopError if the world is on another event loop."""
        self._inner.check_loop()

    async def presence(self) -> str:
        """Return the client's name."""
        return self._client.name

    async def is_gone(self, presence: str) -> bool:
        """Whether a client has crashed; sometimes also True for one that has just lost its connection."""
        world = self._client.world

        async def look() -> bool:
            alive = any(client.name == presence and client.is_alive for client in world.clients)
            return not alive or world.happens(self._client.hazards.lost_event)

        return await self._ask(look)

    def on_end(self, told: Callable[[Exception], None]) -> None:
        """Call ``told`` when the world's store has ended."""
        self._inner.on_end(told)

    def clone(self) -> HazardBackend:
        """Return another connection to the same store for the same client."""
        return HazardBackend(self._inner, self._client)

    async def close(self) -> None:
        """Do nothing: the store belongs to the world."""

    async def late(self) -> None:
        """Wait for the delay of traffic, and while the client is paused."""
        client = self._client
        if client.world.happens(client.hazards.slow):
            await client.world.clock.sleep(client.world.random.uniform(0.0, client.hazards.longest))
        await client.clock.gate()

    def heard(self) -> bool:
        """Draw whether an event arrives."""
        return not self._client.world.happens(self._client.hazards.lost_event)

    async def _ask(self, operation: Callable[[], Awaitable[T]]) -> T:
        client, hazards, world = self._client, self._client.hazards, self._client.world
        await client.clock.gate()
        if not client.is_alive:
            raise StoreClosedError(client.name, "it has crashed")
        if world.happens(hazards.lost_request):
            await client.clock.sleep(hazards.patience)
            raise ServerTimeoutError(client.name, "the request was lost")
        delay = world.random.uniform(0.0, hazards.longest) if world.happens(hazards.slow) else 0.0
        reply = world.carry(lambda: self._carried(operation, delay))
        if world.happens(hazards.lost_reply):
            await asyncio.gather(reply, client.clock.sleep(hazards.patience), return_exceptions=True)
            raise ServerTimeoutError(client.name, "the reply was lost")
        result = await reply
        await self.late()
        return result

    async def _carried(self, operation: Callable[[], Awaitable[T]], delay: float) -> T:
        if delay:
            await self._client.world.clock.sleep(delay)
        return await operation()


class _HazardSubscription:
    """A subscription whose messages are late or lost."""

    def __init__(self, inner: BackendSubscription, backend: HazardBackend) -> None:
        self._inner = inner
        self._backend = backend

    async def next(self, timeout: float | None = None) -> Incoming | None:
        while True:
            message = await self._inner.next(timeout)
            await self._backend.late()
            if message is None or self._backend.heard():
                return message

    def take(self, limit: int) -> list[Incoming]:
        return [message for message in self._inner.take(limit) if self._backend.heard()]

    async def close(self) -> None:
        await self._inner.close()
