"""One connection to a store, with everything that a transaction on it needs.

**One connection to a store, with everything that a transaction on it needs: a transaction is a value.** Appending,
settling, feeding and republishing change rows and return effects, which streams and consumers keep until the
transaction ends. :meth:`Session.flush` resolves them in one bounded loop (what one stream stores may be republished or
sourced into others), and :meth:`Session.take_effects` returns what remains to be published as one :class:`Committed`
value. Nothing is published before the commit, so a rollback has nothing to take back.

Group commit (``storage/committer.py``), transactions that users hold open, recounting and bulk loading share it. A
process has two: the first is the committer's, the second belongs to the transaction that a user holds open. Each
notices the other's writes like those of another process: ``PRAGMA data_version`` has changed.

**Dispatches messages that no publisher waits for: what streams republish, and the store's own messages.** Republished
messages wait in their stream's effects while messages are appended to it. They are stored before anything else is
appended to another stream (:meth:`Dispatcher.catch_up`). So a stream that takes both published and republished messages
has them in the same order as if each had been published by itself. The rest is dispatched when the transaction ends
(``Session.flush``).

**The time of a store: the wall clock's, except that it does not jump.** Deadlines in rows are wall-clock times, but
most of them mean "so long from now": ack waits, delays, times to live. The store records by how much the wall clock is
ahead of the time since boot, which never jumps, and which all processes of a machine share. If the two no longer agree,
the wall clock has jumped. Until a transaction has put the rows right (``deadlines.py``), the time goes on as if it had
not. The first process that writes does it, for all.

If the machine was started since, nothing tells how much time has passed. If its clock is behind the last use of the
store, deadlines are moved back by that, so that nothing waits longer than it was asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from pelton.api import AccountLimits, Incoming, Outgoing, rfc3339
from pelton.api.events import CheckpointBlocked, Event, SlowSync, WriterBusy, encode_event
from pelton.api.times import SECOND, Duration
from pelton.consumers import ConsumerLog, follow_roll_ups
from pelton.engine.bus import Bus, LocalDelivery
from pelton.engine.session.catalogue import Key
from pelton.engine.session.deadlines import clamp_deadlines, jumps_after, last_used, shift_deadlines, stored_ahead
from pelton.engine.session.registry import Registry
from pelton.runtime import Clock, wall_ahead
from pelton.storage import Database, Trouble, text
from pelton.streams import Jumps, Staging, StreamLog
from pelton.streams.subject_rows import MANY
from pelton.subjects import Draw


class Wakes:
    """The streams that lost messages or consumers, the consumers that were written, and the subjects that arrived."""

    def __init__(self) -> None:
        self.streams: set[str] = set()
        self.consumers: set[Key] = set()
        self.arrived: dict[str, set[str]] = {}

    def note(self, log: StreamLog, *, wanted: bool) -> None:
        """Record the changes of a stream that was written, if any pull waits, and mark them as known."""
        effects, removals = log.state.effects, log.state.removals
        if not wanted:
            effects.known_removals = removals
        elif removals != effects.known_removals or len(effects.arrived) > MANY:
            effects.known_removals = removals
            self.streams.add(log.name)
        elif effects.arrived:
            self.arrived.setdefault(log.name, set()).update(effects.arrived)
        effects.arrived.clear()

    def copy(self) -> Wakes:
        news = Wakes()
        news.streams, news.consumers = set(self.streams), set(self.consumers)
        news.arrived = {stream: set(subjects) for stream, subjects in self.arrived.items()}
        return news

    def __bool__(self) -> bool:
        return bool(self.streams or self.consumers or self.arrived)


Deliveries = Sequence[LocalDelivery]


class Committed(msgspec.Struct, frozen=True):
    """``changed``: other processes must read the store again. ``news`` wake waiting pulls of this process.

    ``deliveries`` are messages for subscribers of this process. ``deadlines``: the next deadline (wall nanoseconds) of
    each stream that it used and in which time makes messages. ``has_backlog``: sources left messages for another
    transaction; ``has_waiting``: one of them waits for a time. ``has_batches``: there are open batches, or were.
    """

    changed: bool
    news: Wakes
    deliveries: Deliveries
    deadlines: Mapping[str, int]
    has_backlog: bool
    has_waiting: bool
    has_batches: bool


class Dispatcher:
    """Dispatches the messages of one session to the subscribers of ``bus`` and the streams of ``registry``."""

    def __init__(self, registry: Registry, bus: Bus, staging: Staging, now: Callable[[], int]) -> None:
        self._registry = registry
        self._bus = bus
        self._staging = staging
        self._now = now

    def catch_up(self, log: StreamLog) -> None:
        """Store what other streams have republished so far, before ``log`` is written to."""
        waiting: list[Outgoing] = []
        for republisher in self._registry.republishers:
            if republisher is not log and (republished := republisher.state.effects.republished):
                waiting += republished
                republished.clear()
        if waiting:
            self.dispatch(waiting)

    def dispatch(self, messages: Sequence[Outgoing]) -> None:
        """Deliver messages to subscribers, and store each in the stream that takes its subject, if there is one."""
        registry = self._registry
        if self._bus.has_subscriptions:
            # Messages that a server has passed on may be stored around these, which it has not.
            is_routed, self._bus.is_routed = self._bus.is_routed, False
            self._bus.publish(messages)
            self._bus.is_routed = is_routed
        logs = {subject: registry.routes.find(subject) for subject in {message.subject for message in messages}}
        if not any(logs.values()):
            return
        now = self._now()
        for log, group in groupby(messages, lambda message: logs[message.subject]):
            if log is not None:
                # No publisher waits for an answer: what the stream refuses is lost to it, as on a NATS server.
                self._staging.append_all(registry.use(log), list(group), now)


# A clock that is off by less has not jumped: every lease has more to spare.
_CLOSE: Final = SECOND // 10


class ClockState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store knows of its clock, written at ``seen``.

    In the run ``boot`` of the machine, the wall clock is ``offset`` ahead of the time since boot. ``jumps``: of streams
    whose messages age, by row id. ``ahead``: the last sequences of streams whose last message was stored by a clock
    that was ahead, and was put right since.
    """

    boot: str = ""
    offset: int = 0
    seen: int = 0
    jumps: dict[int, Jumps] = {}
    ahead: dict[int, int] = {}


_decode: Final = msgspec.json.Decoder(ClockState).decode


def read_state(database: Database) -> ClockState:
    """Return what the store knows of its clock."""
    found = database.value("SELECT value FROM meta WHERE key='clock'")
    try:
        return ClockState() if found is None else _decode(text(found))
    except msgspec.DecodeError:
        # As if it was opened for the first time: nothing else depends on it.
        return ClockState()


class StoreClock:
    """The time of one connection. ``on_jump`` is called when this machine's wall clock is seen to have jumped."""

    def __init__(self, clock: Clock, on_jump: Callable[[], None]) -> None:
        self._clock, self._wall, self._boottime = clock, clock.now, clock.boottime
        self._on_jump = on_jump
        self._boot = clock.boot_id()
        # By how much the wall clock was ahead when it was last compared, and by how much the store's time is.
        self._mine = self._offset = wall_ahead(self._clock)

    def now(self) -> int:
        """Wall time in nanoseconds since the epoch; after a jump, until rows are put right, what it was before."""
        wall = self._wall()
        since_boot = self._boottime() * SECOND
        if -_CLOSE < wall - since_boot - self._offset < _CLOSE:
            return wall
        since_boot = round(since_boot)
        if abs(wall - since_boot - self._mine) > _CLOSE:
            self._mine = wall - since_boot
            self._on_jump()
        return since_boot + self._offset

    def load(self, state: ClockState) -> int:
        """Take over the store's time; return by how much it is ahead of what it was here."""
        before = self._offset
        if state.boot == self._boot and state.offset:
            self._offset = state.offset
        return self._offset - before

    def begin(self, database: Database) -> None:
        """Compare the clock with the store's when the store is opened, and put rows right."""
        with database.reading():
            if self._is_known(read_state(database)):
                return
        with database.writing():
            state = read_state(database)
            if self._is_known(state):
                return
            now, is_same = self._wall(), bool(self._boot) and state.boot == self._boot
            by = self._mine - state.offset if is_same else 0
            # Nothing was written later than now.
            by += min(now - max(state.seen, last_used(database, state.ahead)) - by, 0)
            self._move(database, state, by if abs(by) > _CLOSE else 0)
            clamp_deadlines(database, now)

    def _is_known(self, state: ClockState) -> bool:
        if not self._boot or state.boot != self._boot:
            return False
        return abs(self._mine - state.offset) <= _CLOSE and state.seen <= self._wall() + _CLOSE

    def settle(self, database: Database) -> bool:
        """If the clock has jumped, put rows right, in a write transaction; return whether it did."""
        if -_CLOSE < self._wall() - self._boottime() * SECOND - self._offset < _CLOSE:
            return False
        self._mine = wall_ahead(self._clock)
        by = self._mine - self._offset
        if abs(by) <= _CLOSE:
            # The process stood still between the readings.
            return False
        self._move(database, read_state(database), by)
        return True

    def _move(self, database: Database, state: ClockState, by: int) -> None:
        now = self._wall()
        if by:
            shift_deadlines(database, by, now)
        jumps = jumps_after(database, state.jumps, by) if by else state.jumps
        ahead = stored_ahead(database, now)
        written = msgspec.json.encode(ClockState(self._boot, self._mine, now, jumps, ahead)).decode()
        database.execute("INSERT OR REPLACE INTO meta VALUES('clock', ?)", (written,))
        # All processes load it, and everything else.
        database.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")
        self._offset = self._mine


# Streams may republish into each other: in a circle, messages end after this many steps.
_HOPS: Final = 16


class SessionMark(msgspec.Struct, frozen=True):
    """A savepoint of a transaction, with the effects that it had at that point."""

    name: str
    deliveries: Deliveries
    news: Wakes
    changed: bool


class Surroundings(msgspec.Struct, frozen=True):
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
        self.staging: Staging = Staging(database, self.advise)
        self.registry: Registry = Registry(
            database,
            now=surroundings.now,
            draw=surroundings.draw,
            bus=bus,
            limits=surroundings.limits,
            advise=self.advise,
        )
        self.dispatcher: Dispatcher = Dispatcher(self.registry, bus, self.staging, surroundings.now)
        # Messages to dispatch that no stream holds: advisories, and messages that users send without an answer.
        self._unsent: list[Outgoing] = []
        self._clock = surroundings.clock
        self._seen = self._clocked = -1
        # The version of the store at the end of the last transaction, all of which is known then; -1: it is not known.
        self._version = -1
        self._marks = 0
        self.changed, self.news = False, Wakes()
        self._deadlines: dict[str, int] = {}

    def _forget_effects(self) -> None:
        self.changed = False
        news = self.news
        # They are given away only if there are any.
        if news.streams or news.consumers or news.arrived:
            self.news = Wakes()
        if self._deadlines:
            self._deadlines = {}

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
        for log in self.registry.streams.made.values() if by or state.jumps != self.registry.jumps else ():
            log.state.jumps = state.jumps.get(log.id, ())
            if by:
                log.state.ids.reset()
        self.registry.jumps = state.jumps
        self._clocked = self.registry.version

    def began(self) -> None:
        """Load what other connections have written, in a transaction that writes; first of all, put its time right."""
        if self.db.connection.data_version() != self._version:
            self.refresh()
        if self._clock is None or not self._clock.settle(self.db):
            return
        self.roll_back()
        self.refresh()
        # All that waits looks again.
        self.changed = True
        self.news.streams.update(self.registry.streams)
        self._deadlines.update(self.registry.deadlines())
        for stream, due in self._deadlines.items():
            if due <= self.now():
                self.registry.stream(stream).advance(self.now())

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
        if self.bus.is_touched and self.bus.flush():
            self.changed = True
        registry = self.registry
        for log in registry.used:
            if log.state.rolling or registry.is_ticking(log):
                self._deadlines[log.name] = log.state.next_deadline()
        registry.forget_used()

    def take_effects(self) -> Committed:
        """Return the effects of the transaction, which is committed now, and start the next one with none."""
        source_graph, has_batches = self.registry.source_graph, self.staging.is_used
        self.registry.has_moved = False
        has_backlog, has_waiting = source_graph.take_left() if source_graph.has_links else (False, False)
        deliveries = self.bus.take_deliveries() if self.bus.is_touched else ()
        done = Committed(self.changed, self.news, deliveries, self._deadlines, has_backlog, has_waiting, has_batches)
        if has_batches:
            self.staging.committed()
        if self.changed or self._deadlines:
            self._forget_effects()
        self._version = self.db.connection.data_version()
        return done

    def roll_back(self) -> None:
        """Discard everything that was not committed."""
        self.registry.roll_back()
        self._unsent.clear()
        self.bus.reset()
        self.staging.rolled_back()
        self._forget_effects()
        self._seen = self._clocked = self._version = -1

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
        if self.registry.routes.find(message.subject) is not None:
            return True
        self.bus.deliver(message.subject, [Incoming(message.subject, message.data, message.headers, reply)])
        return False

    def advise(self, event: Event) -> None:
        """Dispatch an advisory when the transaction ends, if it would have a recipient."""
        if self.registry.has_recipient(event.subject):
            stamped = msgspec.structs.replace(event, id=self.new_id(), timestamp=rfc3339(self.now()))
            self.send(Outgoing(event.subject, encode_event(stamped)))

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
        is_done = False
        while not is_done:
            is_done = True
            for log in list(registry.used):
                if log.state.dirty:
                    self.changed = True
                    log.appender.flush()
                    self.news.note(log, wanted=wanted)
                    is_done = len(registry.used) == 1
        for log in registry.used:
            effects = log.state.effects
            if effects.arrived or effects.known_removals != log.state.removals:
                # It was written before the end of the transaction, for example by a roll-up.
                self.changed = True
                self.news.note(log, wanted=wanted)
            if republished := effects.republished:
                self._unsent += republished
                republished.clear()


def _event_of(trouble: Trouble, path: str) -> Event:
    if trouble.kind == "checkpoint":
        return CheckpointBlocked(store=path, log_bytes=trouble.log_bytes)
    took = Duration.of_ns(int(trouble.seconds * 1e9))
    return SlowSync(store=path, took=took) if trouble.kind == "slow sync" else WriterBusy(store=path, took=took)
