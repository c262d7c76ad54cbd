"""Which push consumers this process delivers: messages go to the subscribers of the consumer's deliver subject.

Design: a push consumer delivers while it has subscribers. Of their processes, one pumps (``pump.py``): that of the
oldest subscription whose process runs. Every process decides that by the same rows (``bus.py``), and again whenever a
subscription is made or ends. A process that depends on another one's pump also checks once a second, because a process
that dies does not unsubscribe: if its socket refuses a byte, it is dead. A process that was merely stopped (SIGSTOP, a
debugger, a machine that thrashes) still has a socket. So a process that pumps for subscribers of others increments its
beat, a number in its row, once a second; if the beat has not moved for several checks, the process is set aside until
it moves again. Two processes that pump at the same time do no harm: each delivery is a transaction that checks which
process is to make it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pelton.api import PeltonError
from pelton.consumers import ConsumerLog
from pelton.engine.delivery.pump import Pump, subscriptions_of
from pelton.engine.delivery.waiting import WaitingPulls
from pelton.engine.host import Host
from pelton.engine.pubsub.peers import Peers
from pelton.engine.session import Key
from pelton.runtime import Runtime, Timer

_LOOK_S: Final = 1.0
_STANDS_STILL: Final = 5


class Pushes:
    """The push consumers that this process pumps."""

    def __init__(self, host: Host, waiting: WaitingPulls, peers: Peers, runtime: Runtime) -> None:
        self._host = host
        self._waiting = waiting
        self._peers = peers
        self._runtime = runtime
        self._pumps: dict[Key, Pump] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._seen = (-1, -1)
        self._closed = False
        self._timer: Timer | None = None
        self._leads = False
        self._followed: set[str] = set()
        self._beats: dict[str, tuple[int, int]] = {}

    @property
    def is_pumping(self) -> bool:
        """Whether this process delivers for any consumer."""
        return bool(self._pumps)

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
        for pump in self._pumps.values():
            pump.poke()

    def stop(self) -> None:
        """Start no more pumps, and stop checking; running pumps end with the error that ended the store."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """End every pump."""
        self.stop()
        for key in list(self._pumps):
            self._end(key)
        if self._ending:
            # They stage their last work before the store is closed.
            await asyncio.wait(self._ending)

    # --- who pumps

    def _reconcile(self) -> None:
        self._leads, self._followed = False, set()
        wanted = self._wanted()
        for key, pump in list(self._pumps.items()):
            if wanted.get(key) is not pump.consumer:
                self._end(key)
            else:
                # The subscriber that was full may have left.
                pump.poke()
        for key, consumer in wanted.items():
            if key not in self._pumps:
                pump = Pump(self._host, consumer, self._waiting, self._runtime, self._peers.name)
                self._pumps[key] = pump

    def _end(self, key: Key) -> None:
        ending = self._runtime.spawn(self._pumps.pop(key).stop(), "pelton ends a push consumer's pump")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _wanted(self) -> dict[Key, ConsumerLog]:
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
        bus, stage = self._host.session.bus, self._host.stage
        if self._leads or bus.is_stopped(self._peers.name):
            stage(bus.beat, durable=False).add_done_callback(lambda done: done.exception())
        for owner in self._followed:
            self._peers.wake(owner)
        bus.doubt()
        for owner in self._host.read(self._standing_still) if self._followed else ():
            stage(lambda owner=owner: bus.set_aside(owner), durable=False).add_done_callback(  # type: ignore[misc]  # a default argument
                lambda done: done.exception()
            )

    def _standing_still(self) -> list[str]:
        """Return the owners that pump for subscribers of ours and whose beat has not moved for several checks."""
        known, self._beats = self._beats, {}
        for owner in self._followed:
            beat = self._host.session.bus.beat_of(owner)
            before, looks = known.get(owner, (-1, 0))
            self._beats[owner] = (beat, looks + 1 if beat == before else 0)
        return [owner for owner, (_, looks) in self._beats.items() if looks >= _STANDS_STILL]
