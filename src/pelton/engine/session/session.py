"""One connection to a store, with everything that a transaction on it needs: a transaction is a value.

Design: appending, settling, feeding and republishing change rows and return effects, which streams and consumers keep
until the transaction ends. :meth:`Session.flush` resolves them in one bounded loop (what one stream stores may be
republished or sourced into others), and :meth:`Session.committed` returns what remains to be published as one
:class:`Committed` value. Nothing is published before the commit, so a rollback has nothing to take back.

Group commit (``storage/committer.py``), transactions that users hold open, recounting and bulk loading share it. A
process has two: the first is the committer's, the second belongs to the transaction that a user holds open. Each
notices the other's writes like those of another process: ``PRAGMA data_version`` has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pelton.api import AccountLimits, Incoming, Outgoing
from pelton.api.durations import Duration
from pelton.api.events import CheckpointBlocked, Event, SlowSync, WriterBusy
from pelton.consumers import ConsumerLog, follow_roll_ups
from pelton.engine.pubsub.bus import Bus
from pelton.engine.session.committed import Committed, Deliveries
from pelton.engine.session.registry import Registry
from pelton.engine.session.republish import Dispatcher
from pelton.engine.session.store_clock import StoreClock, read_state
from pelton.engine.session.wakes import Wakes
from pelton.storage import Database, Trouble
from pelton.streams import Advisories, Staging
from pelton.subjects import Draw

# Streams may republish into each other: in a circle, messages end after this many steps.
_HOPS: Final = 16


class SessionMark(NamedTuple):
    """A savepoint of a transaction, with the effects that it had at that point."""

    name: str
    deliveries: Deliveries
    news: Wakes
    changed: bool


class Surroundings(NamedTuple):
    """What a session needs from its process: wall clock (ns), randomness, ids, whether and how many pulls wait.

    ``clock``: what ``now`` is read from, if it is to be put right after jumps.
    """

    now: Callable[[], int]
    draw: Draw
    new_id: Callable[[], str]
    has_waiters: Callable[[], bool]
    waiting_pulls: Callable[[ConsumerLog], int]
    limits: AccountLimits
    clock: StoreClock | None = None


class Session:
    """A connection, its registry, and the effects of the transaction that is open on it."""

    now: Callable[[], int]
    new_id: Callable[[], str]
    changed: bool
    news: Wakes

    def __init__(self, database: Database, bus: Bus, surroundings: Surroundings) -> None:
        self.db = database
        self.bus = bus
        self.now, self.new_id = surroundings.now, surroundings.new_id
        self.waiting_pulls: Callable[[ConsumerLog], int] = surroundings.waiting_pulls
        self._has_waiters = surroundings.has_waiters
        self._advisories = Advisories(self._has_recipient, self.send, surroundings.now, surroundings.new_id)
        self.staging: Staging = Staging(database, self.advise)
        self.registry: Registry = Registry(
            database,
            now=surroundings.now,
            draw=surroundings.draw,
            bus=bus,
            limits=surroundings.limits,
            advisories=self._advisories,
        )
        self.dispatcher: Dispatcher = Dispatcher(self.registry, bus, self.staging, surroundings.now)
        # Messages to dispatch that no stream holds: advisories, and messages that users send without an answer.
        self._unsent: list[Outgoing] = []
        self._clock = surroundings.clock
        self._seen = self._clocked = -1
        self._marks = 0
        self._forget_effects()

    def _forget_effects(self) -> None:
        self.changed = False
        self.news = Wakes()
        self._deadlines: dict[str, int] = {}

    def _has_recipient(self, subject: str) -> bool:
        return self.registry.has_recipient(subject)

    # --- the transaction

    def refresh(self) -> None:
        """Load what other connections have written; call it inside a transaction or snapshot."""
        seen = self.db.seen()
        if seen == self._seen:
            return
        self.registry.refresh()
        if self._clocked != self.registry.version:
            self._load_clock()
        self.bus.refresh()
        # Only now: if a read failed, the next refresh must repeat it.
        self._seen = seen

    def _load_clock(self) -> None:
        state = read_state(self.db)
        by = 0 if self._clock is None else self._clock.load(state)
        self.staging.shift(by)
        for log in self.registry.streams.values():
            log.state.jumps = state.jumps.get(log.id, ())
            if by:
                log.state.ids.reset()
        self._clocked = self.registry.version

    def began(self) -> None:
        """Load what other connections have written, in a transaction that writes; first of all, put its time right."""
        self.refresh()
        if self._clock is None or not self._clock.settle(self.db):
            return
        self.roll_back()
        self.refresh()
        # All that waits looks again.
        self.changed = True
        self.news.streams.update(self.registry.streams)
        for log in self.registry.ticking():
            log.advance(self.now())

    def flush(self) -> None:
        """Write what the transaction holds in memory, and dispatch what its streams republish."""
        if self.db.troubles.has_news:
            for trouble in self.db.troubles.take():
                self.advise(_event_of(trouble, self.db.path))
        for _ in range(_HOPS):
            self._write()
            if not self._unsent:
                break
            messages, self._unsent = self._unsent, []
            self.dispatcher.dispatch(messages)
        else:
            # A circle ends here: the last messages are written, and not republished.
            self._write()
            self._unsent.clear()
        if self.bus.has_subscriptions and self.bus.flush():
            self.changed = True
        registry = self.registry
        for log in registry.used:
            if registry.is_ticking(log):
                self._deadlines[log.name] = log.state.next_deadline()
        registry.forget_used()

    def committed(self) -> Committed:
        """Return the effects of the transaction, which is committed now, and start the next one with none."""
        source_graph, staging = self.registry.source_graph, self.staging
        done = Committed(
            self.changed,
            self.news,
            self.bus.committed() if self.bus.has_subscriptions else (),
            self._deadlines,
            source_graph.take_more(),
            staging.is_used,
        )
        staging.committed()
        if self.changed or self._deadlines:
            self._forget_effects()
        return done

    def roll_back(self) -> None:
        """Discard everything that was not committed."""
        self.registry.roll_back()
        self._unsent.clear()
        self.bus.reset()
        self.staging.rolled_back()
        self._forget_effects()
        self._seen = self._clocked = -1

    # --- going back within a transaction

    def mark(self) -> SessionMark:
        """Set a savepoint."""
        self.flush()
        self._marks += 1
        mark = SessionMark(f"mark_{self._marks}", self.bus.deliveries(), self.news.copy(), self.changed)
        self.db.execute(f"SAVEPOINT {mark.name}")
        return mark

    def keep(self, mark: SessionMark) -> None:
        """Release a savepoint, and keep what was done since."""
        self.db.execute(f"RELEASE {mark.name}")

    def go_back(self, mark: SessionMark) -> None:
        """Roll back to a savepoint, and release it."""
        self.db.execute(f"ROLLBACK TO {mark.name}")
        self.db.execute(f"RELEASE {mark.name}")
        deadlines = self._deadlines
        self.roll_back()
        self.bus.keep_only(mark.deliveries)
        # Deadlines of what was rolled back may be too early: then a timer fires for nothing.
        self.news, self.changed, self._deadlines = mark.news, mark.changed, deadlines
        self.refresh()

    # --- effects

    def send(self, message: Outgoing) -> None:
        """Dispatch a message to subscribers and to the stream that takes it, when the transaction ends."""
        self._unsent.append(message)

    def ask(self, message: Outgoing, reply: str) -> bool:
        """Dispatch a message to subscribers that may answer it, unless a stream takes it; return whether one does."""
        if self.registry.route(message.subject) is not None:
            return True
        self.bus.deliver(message.subject, [Incoming(message.subject, message.data, message.headers, reply)])
        return False

    def advise(self, event: Event) -> None:
        """Dispatch an advisory when the transaction ends, if it would have a recipient."""
        self._advisories.send(event)

    def would_reach(self, subject: str) -> bool:
        """Return whether a message on a subject would reach a stream or a subscriber."""
        return self.registry.has_recipient(subject)

    def _write(self) -> None:
        """Write streams and consumers, and everything that sources take from what was written."""
        self._write_used()
        source_graph = self.registry.source_graph
        while source_graph.has_links and source_graph.settle():
            self._write_used()

    def _write_used(self) -> None:
        registry, wanted = self.registry, self._has_waiters()
        for log in registry.used:
            if log.state.effects.rolled_up:
                follow_roll_ups(log, [registry.use_consumer(each) for each in registry.consumers_of(log)])
        for consumer in registry.used_consumers:
            if consumer.dirty:
                self.changed = True
                if wanted:
                    self.news.consumers.add((consumer.log.name, consumer.name))
                consumer.flush()
        # Messages stored in one stream may be sourced into others.
        while dirty := [log for log in registry.used if log.state.dirty]:
            for log in dirty:
                self.changed = True
                log.flush()
                self.news.note(log, wanted=wanted)
        for log in registry.used:
            if log.state.has_changed:
                # It was written before the end of the transaction, for example by a roll-up.
                self.changed = True
                self.news.note(log, wanted=wanted)
            if republished := log.state.effects.republished:
                self._unsent += republished
                republished.clear()


def _event_of(trouble: Trouble, path: str) -> Event:
    if trouble.kind == "checkpoint":
        return CheckpointBlocked(store=path, log_bytes=trouble.log_bytes)
    took = Duration.of_ns(int(trouble.seconds * 1e9))
    return SlowSync(store=path, took=took) if trouble.kind == "slow sync" else WriterBusy(store=path, took=took)
