"""What waits in this process for messages of consumers, and what wakes it.

Three kinds of lines wait: an embedded pull by itself, in the task of its caller; the pulls of a server's clients, those
of one consumer in a line; and a push consumer, whose subscribers have so much capacity. Each looks, with a read,
whether there is something for it, and only if that promises a message does a transaction follow.

A line looks again when any process committed something that its consumer may want, at the nearest deadline of its
consumer, and at deadlines of its own. Many consumers with different filters may wait on one stream: a message wakes
only those whose filters it matches. After commits of other processes, one read finds out whom they may concern, and
wakes those.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from pelton.api import ConsumerConfig, Delivered, PeltonError, PullRequest, StoreError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.consumers import NEVER, ConsumerLog, waiting_pulls
from pelton.engine.bus import Peers
from pelton.engine.host import Host
from pelton.engine.session import Key, Wakes
from pelton.runtime import Clock, Signal, end_tasks
from pelton.subjects import SubjectIndex

_log: Final = logging.getLogger("pelton.engine")
_EVERYTHING: Final = (">",)
_POLL_S: Final = 0.05
_RETRY_S: Final = 1.0
_SHORTEST_S: Final = 0.001


class Lines:
    """The signals of the consumers that lines of this process wait for, by stream and consumer name."""

    def __init__(self, host: Host, peers: Peers, clock: Clock) -> None:
        self.host = host
        self.peers = peers
        self.clock = clock
        self._signals: dict[Key, Signal] = {}
        # Whether nothing waits.
        self.is_empty: bool = True
        self._counts: dict[Key, int] = {}
        self._filters: dict[Key, tuple[str, ...]] = {}
        self._by_stream: dict[str, SubjectIndex[Key]] = {}
        # How consumers were when a line has looked at them.
        self._seen: dict[Key, tuple[ConsumerConfig, int]] = {}

    def join(self, key: Key) -> Signal:
        """Wait for what a consumer may want; each that joins is counted, and leaves again."""
        signal, self.is_empty = self._signals.setdefault(key, Signal()), False
        self._counts[key] = self._counts.get(key, 0) + 1
        log = self.host.session.registry.consumers.by_name.get(key)
        self._follow(key, () if log is None else log.filters)
        return signal

    def note(self, log: ConsumerLog, now: int) -> None:
        """Note how a consumer is that a line looks at: it waits for messages that match these filters from now on."""
        key = (log.log.name, log.name)
        self._seen[key] = (log.config, log.next_due(now))
        self._follow(key, log.filters)

    def _follow(self, key: Key, filters: Sequence[str]) -> None:
        wanted = tuple(filters) or _EVERYTHING
        if self._filters.get(key) == wanted:
            return
        stream, _ = key
        index = self._by_stream.setdefault(stream, SubjectIndex())
        for text in self._filters.get(key, ()):
            index.remove(text, key)
        for text in wanted:
            index.insert(text, key)
        self._filters[key] = wanted

    def leave(self, key: Key) -> None:
        self._counts[key] -= 1
        if self._counts[key] == 0:
            del self._counts[key], self._signals[key]
            self.is_empty = not self._signals
            self._seen.pop(key, None)
            stream, _ = key
            index = self._by_stream[stream]
            for text in self._filters.pop(key):
                index.remove(text, key)
            if not len(index):
                del self._by_stream[stream]

    def count(self, consumer: ConsumerLog) -> int:
        return self._counts.get((consumer.log.name, consumer.name), 0)

    def count_pulls(self, consumer: ConsumerLog) -> int:
        """Return how many pulls wait: in all processes for a consumer with groups, else in this process."""
        if consumer.config.priority_groups:
            return waiting_pulls(consumer, self.peers.is_alive, self.host.session.now())
        # What waits for a push consumer is its pump.
        return 0 if consumer.config.deliver_subject else self.count(consumer)

    def notify(self, news: Wakes) -> None:
        """Wake the consumers that a committed transaction concerns."""
        woken = {key for key in news.consumers if key in self._signals}
        if news.streams:
            woken.update((stream, name) for stream, name in self._signals if stream in news.streams)
        for stream, subjects in news.arrived.items():
            index = self._by_stream.get(stream)
            if index is not None:
                for subject in subjects:
                    woken.update(index.match(subject))
        # In an order that does not depend on the process's hashes: equal runs are equal.
        for key in sorted(woken):
            self._signals[key].notify()

    def follow_others(self) -> None:
        """Wake those whom commits of other processes may concern."""
        if not self._signals:
            return
        try:
            concerned = self.host.read(lambda: [key for key in self._signals if self._is_concerned(key)])
        except PeltonError:
            # Those who wait meet the same error, or a consumer is gone.
            concerned = list(self._signals)
        for key in concerned:
            self._signals[key].notify()

    def _is_concerned(self, key: Key) -> bool:
        log = self.host.session.registry.consumer(*key)
        config, due = self._seen.get(key, (None, 0))
        if config is not log.config or config.priority_groups:
            return True
        now = self.host.session.now()
        return log.next_due(now) < due or log.may_deliver(now)

    def notify_all(self) -> None:
        for signal in list(self._signals.values()):
            signal.notify()


class Line(ABC):
    """What waits for messages of one consumer and delivers them, until :meth:`run` returns."""

    _task: asyncio.Task[None]

    def __init__(self, key: Key, lines: Lines) -> None:
        self._key = key
        self._lines = lines
        self._host = lines.host
        self._clock = lines.clock
        self._signal = Signal()
        # Whether nobody waits here any more.
        self._has_ended = False
        # Whether it waits for whom it delivers to: they have no capacity.
        self._is_blocked = False

    def poke(self) -> None:
        """Check for capacity again, if the line waits for it."""
        if self._is_blocked:
            self._signal.notify()

    async def stop(self) -> None:
        await end_tasks(self._task)

    # --- how lines differ

    def _is_promising(self, log: ConsumerLog, now: int, delays: list[float]) -> bool:
        """Check, in a snapshot, whether something can be delivered; add to ``delays`` when to check again."""
        return log.may_deliver(now)

    @abstractmethod
    async def _deliver(self) -> bool:
        """Deliver what there is; return whether there was anything."""

    @abstractmethod
    def _own_delays(self) -> list[float | None]:
        """Return when to look again for reasons of those who wait; nothing was delivered."""

    def _pause_after(self, error: StoreError) -> float:
        """Return when to go on after an error that may pass."""
        _log.warning(
            "consumer %s/%s pauses for %g s: %s",
            *self._key,
            _RETRY_S,
            error,
            extra={"stream": self._key[0], "consumer": self._key[1]},
        )
        return _RETRY_S

    # --- the loop

    async def run(self) -> None:
        """Look and deliver until nobody waits. Raises the error that ends it: the consumer or the store is gone."""
        while True:
            seen = self._signal.generation
            try:
                delay = await self._run_once()
            except FINAL_ERRORS:
                raise
            except StoreError as error:
                delay = self._pause_after(error)
            if self._has_ended:
                return
            if delay is None or delay > 0:
                await self._signal.wait_at_most(self._clock, delay, seen)

    async def _run_once(self) -> float | None:
        """Return the seconds until the next time: 0 for at once, None if only a signal can tell."""
        await self._host.readable()
        promising, delays = self._host.read(self._look)
        if promising and await self._deliver():
            return 0.0
        delays += [delay for delay in self._own_delays() if delay is not None]
        return max(min(delays), _SHORTEST_S) if delays else None

    def _look(self) -> tuple[bool, list[float]]:
        """Check, in a snapshot, whether there is something to do, and if not, when to check again."""
        log = self._host.session.registry.consumer(*self._key)
        now = self._host.session.now()
        self._lines.note(log, now)
        due, threshold = log.next_due(now), log.config.inactive_threshold.ns
        delays = [threshold / 2e9] if threshold else []
        if self._lines.peers.polled:
            delays.append(_POLL_S)
        promising = self._is_promising(log, now, delays) or log.has_use_to_record(now)
        if due != NEVER and (promising or due > now):
            # What is due already and cannot be delivered waits for something else, which signals.
            delays.append(max(due - now, 0) / 1e9)
        return promising, delays

    # --- in a transaction

    def _next_messages(self, log: ConsumerLog, request: PullRequest, now: int) -> list[Delivered]:
        """Deliver as a pull would get it; a single message may be of any size."""
        registry = self._host.session.registry
        delivery = registry.delivery(log, request, now)
        messages = delivery.run()
        return registry.delivery(log, PullRequest(batch=1), now).run() if delivery.blocked else messages
