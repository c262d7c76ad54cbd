"""Publish and subscribe: which subscriptions match a message, and how it gets to them in this process and others.

A subscription is a row in ``pubsub_subscriptions``. Every process knows all of them, so a message that no subscription
matches costs nothing. A message for a subscription of this process is handed over in memory when its transaction
commits; one for another process is a row in ``pubsub_outbox``, written in the same transaction, and the other processes
are woken to read it. Nothing is kept for later subscribers, and a subscriber that lags behind loses the oldest messages
(logged once): at most once, as NATS promises for messages outside streams.

Invariants: a subscriber receives messages in the order in which their transactions committed; exactly one member of a
queue group receives each message; nothing that was rolled back is delivered. The rows of a process that died are
removed by the next process that meets them. A process that was stopped (``openers.stopped``) receives what every
subscriber receives, but nothing that is meant for one of several until it continues.

A server passes messages on to clients, whose subscriptions are many and come and go. It keeps no row for each, but a
few rows that cover them (``RELAYED``): messages reach the server by these, and it knows whom they are for. What its own
clients publish it has passed on already, so a transaction that stores such messages skips these rows (``is_routed``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from pelton.api import ConsumerConfig, Incoming, Outgoing
from pelton.storage import Database, decoded, integer, text
from pelton.subjects import SubjectIndex


class Peers(Protocol):
    """The openers of the store, by name; ``polled``: they cannot wake each other, so they poll."""

    name: str
    polled: bool

    def is_alive(self, name: str) -> bool: ...
    def wake(self, name: str) -> None: ...


class NoPeers:
    """Peers for a bus that has no other processes."""

    name = "alone"
    polled = False

    def is_alive(self, name: str) -> bool:
        return True

    def wake(self, name: str) -> None:
        """Do nothing: no process waits."""


# --- who receives published messages: subscribers of this process, and the rows of all subscriptions

RELAYED: Final = " relayed"
"""The queue group of rows that cover the subscriptions of a server's clients. No group of a user has a space."""


class Subscriber(Protocol):
    """Receives the messages of one subscription.

    ``capacity`` is how many more it would like to hold, ``reserve`` how many more it can hold at most.
    ``route`` is the subject by which messages found the subscription: a push consumer's is its deliver subject.
    ``is_relay``: it passes messages on to clients of this process.
    """

    is_relay: bool

    def receive(self, route: str, messages: Sequence[Incoming]) -> None: ...

    @property
    def capacity(self) -> int: ...
    @property
    def reserve(self) -> int: ...


class LocalDelivery(NamedTuple):
    """Messages for a subscriber of this process."""

    subscriber: Subscriber
    route: str
    messages: Sequence[Incoming]


class SubscriptionRow(NamedTuple):
    """The row of a subscription of any process, in the order in which they were made."""

    id: int
    owner: str
    subject: str
    queue: str

    @property
    def is_shared(self) -> bool:
        """Whether one member of a group gets each message."""
        return self.queue not in ("", RELAYED)


_log: Final = logging.getLogger("pelton.engine")
_KEPT_ROWS: Final = 65_536
_KEPT_BYTES: Final = 64 << 20
_PAGE: Final = 4096
_EVERYBODY: Final = 0

_UNREAD: Final = (
    "SELECT seq, origin, subscription, route, subject, reply, hdr, data FROM pubsub_outbox WHERE seq>? "
    "ORDER BY seq LIMIT ?+0"
)


class _OutboxRow(NamedTuple):
    """A message for a subscription of another process, or for all of them."""

    seq: int
    origin: str
    subscription: int
    route: str
    subject: str
    reply: str
    hdr: bytes | None
    data: bytes


class Bus:
    """The subscriptions of one open store. ``choose`` picks the member of a queue group that receives a message.

    The bus of a second connection of the same process is ``of`` the first: it delivers to the same subscribers, and
    leaves it to the first to read what other processes have published.
    """

    version: int
    has_subscriptions: bool

    def __init__(
        self,
        database: Database,
        peers: Peers,
        choose: Callable[[Sequence[SubscriptionRow]], SubscriptionRow],
        of: Bus | None = None,
    ) -> None:
        self._db = database
        self._peers = peers
        self._choose = choose
        self._index: SubjectIndex[SubscriptionRow] = SubjectIndex()
        self.version = -1
        """A number that changes when a subscription is made or ends."""
        # Whether there is any subscription, or one has just ended: read in every transaction.
        self.has_subscriptions = False
        self._mine: dict[int, Subscriber] = {} if of is None else of._mine
        self._reads = of is None
        # Set while messages are stored that this process has already passed on to its clients.
        self.is_routed = False
        # How many of the subscriptions are not those by which this process passes messages on to clients.
        self.num_others: int = 0
        # Whether the transaction has published, or changed who subscribes: read in every one.
        self.is_touched: bool = False
        self._joining: list[int] = []
        self._leaving: list[int] = []
        self._bumped = False
        self._stopped: set[str] = set()
        self._cursor = 0
        self._rows: list[tuple[int, str, Incoming]] = []
        self._ready: list[LocalDelivery] = []
        self._dead: set[str] = set()
        self._alive: set[str] = set()

    # --- subscriptions

    def has_subscriber(self, subject: str) -> bool:
        """Return whether any subscription matches a subject."""
        return bool(self._index.match(subject))

    def subscriptions(self, subject: str) -> list[SubscriptionRow]:
        """Return the subscriptions that match a subject and whose process runs, the oldest first.

        Rows that cover a server's clients are left out: they match more than its clients subscribe to.
        """
        return sorted(row for row in self._index.match(subject) if row.queue != RELAYED and self._runs(row.owner))

    def has_others(self, subject: str) -> bool:
        """Return whether any subscription matches a subject, other than those of this process's clients."""
        mine = self._mine
        for row in self._index.match(subject):
            subscriber = mine.get(row.id)
            if subscriber is None or not subscriber.is_relay:
                return True
        return False

    def may_reach_others(self, subjects: str) -> bool:
        """Return whether any subscription, other than this process's clients', may match what a filter matches."""
        own = (self._mine.get(row.id) for row in self._index.overlapping(subjects))
        return any(subscriber is None or not subscriber.is_relay for subscriber in own)

    def others(self) -> list[SubscriptionRow]:
        """Return the subscriptions that do not stand for clients of this process's server."""
        return [row for row in self._index.overlapping(">") if not self._is_relayed(row)]

    @property
    def has_own(self) -> bool:
        """Whether this process has subscriptions."""
        return bool(self._mine)

    def capacity(self, subscriptions: Iterable[SubscriptionRow]) -> int:
        """Return how many more messages these subscriptions would like to hold.

        The fullest one decides, except among members of a queue group, where the emptiest does.
        """
        subscriptions = list(subscriptions)
        return _together(subscriptions, [self._capacity_of(subscription) for subscription in subscriptions])

    def reserve(self, config: ConsumerConfig) -> int | None:
        """Return how many more messages the living subscribers of a push consumer can hold; None if it has none."""
        found = [
            row
            for row in self._index.match(config.deliver_subject)
            if row.queue == config.deliver_group and self._lives(row.owner)
        ]
        if not any(row.subject == config.deliver_subject for row in found):
            # A wildcard alone is no interest.
            return None
        mine = [self._mine.get(row.id) for row in found]
        reserves = [_KEPT_ROWS if subscriber is None else subscriber.reserve for subscriber in mine]
        return _together(found, reserves)

    def _capacity_of(self, subscription: SubscriptionRow) -> int:
        subscriber = self._mine.get(subscription.id)
        return _PAGE if subscriber is None else subscriber.capacity

    def join(self, subject: str, queue: str, subscriber: Subscriber) -> int:
        """Subscribe: ``subscriber`` receives every message from this transaction on. Returns the row's id."""
        if not self._mine:
            last = self._db.value("SELECT seq FROM sqlite_sequence WHERE name='pubsub_outbox'")
            self._cursor = int(last or 0)
        self._db.execute(
            "INSERT INTO pubsub_subscriptions(owner, subject, grp) VALUES(?, ?, ?)", (self._peers.name, subject, queue)
        )
        subscription = self._db.connection.last_insert_rowid()
        self._mine[subscription] = subscriber
        self._joining.append(subscription)
        self._index.insert(subject, SubscriptionRow(subscription, self._peers.name, subject, queue))
        self.num_others += not subscriber.is_relay
        self.has_subscriptions = True
        self._bump()
        return subscription

    def leave(self, subscription: int) -> None:
        self._leaving.append(subscription)
        self.is_touched = True
        row = self._db.execute(
            "SELECT id, owner, subject, grp FROM pubsub_subscriptions WHERE id=?", (subscription,)
        ).fetchone()
        if row is None:
            return
        self._db.execute("DELETE FROM pubsub_subscriptions WHERE id=?", (subscription,))
        gone = SubscriptionRow(*row)
        self._index.remove(gone.subject, gone)
        self.num_others -= not self._is_relayed(gone)
        if len(self._mine) == len(self._leaving):
            self._db.execute("DELETE FROM openers WHERE name=?", (self._peers.name,))
        self._bump()

    def _bump(self) -> None:
        """Tell other processes that subscriptions have changed; this one has updated its index already."""
        self._db.execute("UPDATE meta SET value=value+1 WHERE key='subscriptions'")
        self.version = integer(self._db.value("SELECT value FROM meta WHERE key='subscriptions'"))
        self._bumped = self.is_touched = True

    def _load(self, version: int) -> None:
        self._index = SubjectIndex()
        stopped = self._db.execute("SELECT name FROM openers WHERE stopped=1").fetchall()
        self._stopped = {text(name) for (name,) in stopped}
        rows = self._db.execute("SELECT id, owner, subject, grp FROM pubsub_subscriptions ORDER BY id").fetchall()
        self.num_others = 0
        for subscription in decoded(SubscriptionRow, rows):
            self._index.insert(subscription.subject, subscription)
            self.num_others += not self._is_relayed(subscription)
        self.has_subscriptions = len(self._index) > 0 or bool(self._mine)
        if not self.has_subscriptions:
            self._rows.clear()
            self._ready.clear()
        self.version = version

    # --- transactions

    def refresh(self) -> None:
        """Another process has written: load changed subscriptions, and read what it published."""
        version = integer(self._db.value("SELECT value FROM meta WHERE key='subscriptions'"))
        if version != self.version:
            self._load(version)
        if self._mine and self._reads:
            self._read()

    def reset(self) -> None:
        """Discard what the rolled-back transaction published, and its subscriptions."""
        for subscription in self._joining:
            self._mine.pop(subscription, None)
        self._joining.clear()
        self._leaving.clear()
        self._rows.clear()
        self._ready.clear()
        self._bumped = False
        self.version = -1

    def deliveries(self) -> list[LocalDelivery]:
        """Return the transaction's deliveries to subscribers of this process so far."""
        return list(self._ready)

    def keep_only(self, deliveries: Sequence[LocalDelivery]) -> None:
        """Replace the pending deliveries."""
        self._ready = list(deliveries)

    def take_deliveries(self) -> Sequence[LocalDelivery]:
        """Return the deliveries of the committed transaction to subscribers of this process."""
        self.is_touched = False
        self._joining.clear()
        ready, self._ready = self._ready, []
        while self._leaving:
            self._mine.pop(self._leaving.pop(), None)
        self.has_subscriptions = len(self._index) > 0
        return ready

    # --- publishing

    def publish(self, messages: Iterable[Outgoing]) -> None:
        """Publish messages to every matching subscription, when the transaction commits."""
        for subject, run in groupby(messages, attrgetter("subject")):
            if self._index.match(subject):
                self.deliver(subject, [Incoming(subject, message.data, message.headers) for message in run])

    def deliver(self, route: str, messages: Sequence[Incoming]) -> None:
        """Deliver messages to the subscriptions that match ``route``, whatever the messages' own subjects are."""
        self.is_touched = True
        found = _each_relay_once(self._index.match(route))
        groups: dict[tuple[str, str], list[SubscriptionRow]] = {}
        elsewhere = False
        for subscription in found:
            if not self._lives(subscription.owner):
                continue
            if subscription.is_shared:
                groups.setdefault((subscription.subject, subscription.queue), []).append(subscription)
            elif not self._hand_over(subscription, route, messages):
                elsewhere = True
        for members in groups.values():
            if not (self.is_routed and any(map(self._is_relayed, members))):
                self._share(members, route, messages)
        if elsewhere:
            self._rows += [(_EVERYBODY, route, message) for message in messages]

    def _share(self, members: list[SubscriptionRow], route: str, messages: Sequence[Incoming]) -> None:
        """Give each message to one member of a queue group; to a stopped or full one only if all are."""
        running = [member for member in members if self._runs(member.owner)] or members
        fit = [member for member in running if self._capacity_of(member) > 0] or running
        for message in messages:
            chosen = fit[0] if len(fit) == 1 else self._choose(fit)
            if not self._hand_over(chosen, route, (message,)):
                self._rows.append((chosen.id, route, message))

    def _runs(self, owner: str) -> bool:
        return owner not in self._stopped and self._lives(owner)

    def _lives(self, owner: str) -> bool:
        if owner == self._peers.name or owner in self._alive:
            return True
        self.is_touched = True
        if owner not in self._dead and self._peers.is_alive(owner):
            self._alive.add(owner)
            return True
        self._dead.add(owner)
        return False

    def _is_relayed(self, subscription: SubscriptionRow) -> bool:
        subscriber = self._mine.get(subscription.id)
        return subscriber is not None and subscriber.is_relay

    def _hand_over(self, subscription: SubscriptionRow, route: str, messages: Sequence[Incoming]) -> bool:
        """Keep messages for a subscriber of this process until the commit; False if it belongs to another process."""
        if subscription.owner != self._peers.name:
            return False
        subscriber = self._mine.get(subscription.id)
        if subscriber is not None and not (self.is_routed and subscriber.is_relay):
            self._ready.append(LocalDelivery(subscriber, route, messages))
        return True

    # --- which processes run

    def doubt(self) -> None:
        """Check again, next time, which owners are alive."""
        self._alive.clear()

    def is_stopped(self, owner: str) -> bool:
        """Return whether an owner was found stopped and has not continued since."""
        return owner in self._stopped

    def beat(self) -> None:
        """Record that this process runs."""
        sql = "INSERT INTO openers VALUES(?, 1, 0) ON CONFLICT(name) DO UPDATE SET beat=beat+1, stopped=0"
        self._db.execute(sql, (self._peers.name,))
        if self._peers.name in self._stopped:
            self._stopped.discard(self._peers.name)
            self._bump()

    def beat_of(self, owner: str) -> int:
        """Return a number that changes while an owner runs."""
        return integer(self._db.value("SELECT beat FROM openers WHERE name=?", (owner,)) or 0)

    def set_aside(self, owner: str) -> None:
        """Treat an owner as stopped until its beat moves again."""
        if owner not in self._stopped:
            sql = "INSERT INTO openers VALUES(?, 0, 1) ON CONFLICT(name) DO UPDATE SET stopped=1"
            self._db.execute(sql, (owner,))
            self._stopped.add(owner)
            self._bump()

    # --- the end of a transaction

    def flush(self) -> bool:
        """Write the outbox for other processes; return whether they have anything to read."""
        self._alive.clear()
        if self._dead:
            self._remove_dead()
        bumped, self._bumped = self._bumped, False
        if not self._rows:
            return bumped
        self._write_rows()
        return True

    def _remove_dead(self) -> None:
        dead = [(owner,) for owner in self._dead]
        self._dead.clear()
        self._db.executemany("DELETE FROM pubsub_subscriptions WHERE owner=?", dead)
        self._db.executemany("DELETE FROM openers WHERE name=?", dead)
        self._bump()
        self._load(self.version)

    def _write_rows(self) -> None:
        total = integer(self._db.value("SELECT total FROM pubsub_outbox ORDER BY seq DESC LIMIT 1") or 0)
        rows = []
        for subscription, route, m in self._rows:
            total += len(m.subject) + len(m.data) + len(m.headers or b"")
            rows.append((self._peers.name, subscription, route, m.subject, m.reply, m.headers, m.data, total))
        self._rows.clear()
        columns = "origin, subscription, route, subject, reply, hdr, data, total"
        sql = f"INSERT INTO pubsub_outbox({columns}) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        self._db.executemany(sql, rows)
        self._trim(self._db.connection.last_insert_rowid(), total)

    def _trim(self, last: int, total: int) -> None:
        self._db.execute("DELETE FROM pubsub_outbox WHERE seq<=?", (last - _KEPT_ROWS,))
        oldest = self._db.value(
            "SELECT seq FROM pubsub_outbox WHERE total>? ORDER BY seq LIMIT 1", (total - _KEPT_BYTES,)
        )
        self._db.execute("DELETE FROM pubsub_outbox WHERE seq<?", (oldest,))

    # --- receiving from other processes

    def _read(self) -> None:
        """Deliver what other processes have published since the last read."""
        while True:
            rows = decoded(_OutboxRow, self._db.execute(_UNREAD, (self._cursor, _PAGE)).fetchall())
            if not rows:
                return
            if (first := rows[0].seq) > self._cursor + 1 and self._cursor:
                _log.warning("store %s: up to %d messages were missed: this process read them too late",
                             self._db.path, first - self._cursor - 1, extra={"store": self._db.path})  # fmt: skip
            for row in rows:
                self._cursor = row.seq
                if row.origin != self._peers.name:
                    incoming = Incoming(row.subject, row.data, row.hdr, row.reply)
                    self._receive(row.subscription, row.route, incoming)

    def _receive(self, subscription: int, route: str, incoming: Incoming) -> None:
        if subscription != _EVERYBODY:
            if (subscriber := self._mine.get(subscription)) is not None:
                subscriber.receive(route, (incoming,))
            return
        for other in _each_relay_once([row for row in self._index.match(route) if row.owner == self._peers.name]):
            if not other.is_shared and (subscriber := self._mine.get(other.id)) is not None:
                subscriber.receive(route, (incoming,))


def _together(subscriptions: Sequence[SubscriptionRow], capacities: Sequence[int]) -> int:
    if any(subscription.is_shared for subscription in subscriptions):
        return max(capacities, default=0)
    return min(capacities, default=0)


def _each_relay_once(found: Sequence[SubscriptionRow]) -> Sequence[SubscriptionRow]:
    """Leave out all but one of the rows by which a server is reached: it delivers to all its clients for each."""
    if len(found) < 2:
        return found
    relays: set[str] = set()
    kept: list[SubscriptionRow] = []
    for row in found:
        if row.queue == RELAYED:
            if row.owner in relays:
                continue
            relays.add(row.owner)
        kept.append(row)
    return kept
