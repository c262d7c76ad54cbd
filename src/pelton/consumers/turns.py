"""Priority groups as rows: which pulls wait in any process, which client is pinned, and when each last pulled.

Design: A pull of a group that has to wait leaves a row in ``pulls``, refreshed while it waits and removed by the
transaction that ends it; rows of processes that died, or that were not refreshed for too long, no longer count. So
every process decides by the same rows, whichever delivers. ``pins`` holds the pin of a group,
``nearest`` when a pull of each failover distance was last made.

An unpinned client may still be working: after ``unpin``, the next is pinned once all deliveries are settled, or have
outlasted their ack wait. After a timeout, the holder counts as dead and is not waited for.

**Which pull is served (ADR-42).** :func:`judge` decides from what is known of the other pulls:

============= ==================================================================================================
policy        a pull is served
============= ==================================================================================================
overflow      at once if it has no conditions; else while no pull without conditions waits, and
              ``min_pending`` messages are pending, or ``min_ack_pending`` await acks, or no nearer client (one
              without conditions, or with shorter ``failover``) has pulled for ``failover``: any of them is enough
prioritized   while no pull with a lower priority number waits; those with the same number share the messages
pinned_client if it carries the id of the pin; without an id, if the pin is free: it then gets the pin. A client
              with another id has lost the pin; so has its holder after ``priority_timeout`` without a pull
              (or a wait in one)
============= ==================================================================================================

nats-server 2.15 ignores ``failover``, and lets a pin expire while its holder waits in a pull. Pulls of NATS
clients (``stands``) are decided as it does: those without conditions do not come first, and a pin that was taken is
free at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from pelton.api import ConsumerConfig, Delivered, PinLostError, PullRequest, headers
from pelton.api.events import ACCOUNT, GroupPinned, GroupUnpinned
from pelton.consumers.log import NEVER, ConsumerLog
from pelton.storage import integer, text


class Waiting(msgspec.Struct, frozen=True):
    """A waiting pull, of any process."""

    id: str
    priority: int
    conditional: bool
    failover_ns: int


class Pin(msgspec.Struct, frozen=True):
    """The pin of a group: its id, and when its holder was last active.

    An empty id: no client was pinned since it was taken away; the next is pinned at ``free_at``.
    """

    id: str
    seen: int
    free_at: int


class Known(msgspec.Struct, frozen=True):
    """What a decision is based on; times are wall nanoseconds.

    ``pending`` counts messages never delivered, ``due`` those to be redelivered, ``ack_pending`` those that await an
    ack; ``nearest`` is when each failover distance (0: none) last pulled. ``stands``: a NATS client asks.
    """

    now: int
    created: int
    pending: int
    due: int
    ack_pending: int
    others: Sequence[Waiting]
    nearest: dict[int, int]
    pin: Pin | None
    stands: bool


class GroupDecision(msgspec.Struct, frozen=True):
    """Whether a pull is served, with how many messages, and if not, when to retry; ``lost`` if its pin was lost."""

    served: bool
    batch: int = 0
    again_at: int = NEVER
    lost: bool = False


def judge(config: ConsumerConfig, request: PullRequest, known: Known) -> GroupDecision:
    if config.priority_policy == "overflow":
        return _overflow(request, known)
    if config.priority_policy == "prioritized":
        return _by_priority(request, known)
    return _by_pin(config, request, known)


def is_conditional(request: PullRequest) -> bool:
    """Whether a pull of policy ``overflow`` has to meet a condition."""
    return bool(request.min_pending or request.min_ack_pending or request.failover_ns)


def _overflow(request: PullRequest, known: Known) -> GroupDecision:
    if not is_conditional(request):
        return GroupDecision(True, request.batch)
    if not known.stands and any(not other.conditional for other in known.others):
        return GroupDecision(False)
    if 0 < request.min_ack_pending <= known.ack_pending:
        return GroupDecision(True, request.batch)
    if 0 < request.min_pending <= known.pending:
        # As on nats-server, each message needs as many.
        return GroupDecision(True, min(request.batch, known.pending - request.min_pending + 1))
    if not request.failover_ns:
        return GroupDecision(False)
    if any(other.failover_ns < request.failover_ns for other in known.others if other.failover_ns):
        return GroupDecision(False)
    nearer = [seen for distance, seen in known.nearest.items() if distance < request.failover_ns]
    again_at = max(nearer, default=known.created) + request.failover_ns
    return GroupDecision(again_at <= known.now, request.batch, again_at)


def _by_priority(request: PullRequest, known: Known) -> GroupDecision:
    if any(other.priority < request.priority for other in known.others):
        return GroupDecision(False)
    equals = 1 + sum(other.priority == request.priority for other in known.others)
    return GroupDecision(True, max(1, min(request.batch, -(-(known.pending + known.due) // equals))))


def _by_pin(config: ConsumerConfig, request: PullRequest, known: Known) -> GroupDecision:
    pin = known.pin
    held = pin is not None and pin.id != "" and known.now < pin.seen + config.priority_timeout.ns
    if request.pin_id:
        mine = held and pin is not None and pin.id == request.pin_id
        return GroupDecision(mine, request.batch, lost=not mine)
    if held and pin is not None:
        return GroupDecision(False, again_at=pin.seen + config.priority_timeout.ns)
    if pin is not None and known.now < pin.free_at and not known.stands:
        return GroupDecision(False, again_at=pin.free_at)
    return GroupDecision(True, request.batch)


REFRESH_NS: Final = 5_000_000_000
_LOST_AFTER: Final = 3


class Puller(msgspec.Struct, frozen=True):
    """The origin of a pull: its id, the opener it belongs to, and a check whether an opener is alive.

    ``stands``: it is of a NATS client, and waits until all its messages were delivered.
    """

    id: str
    owner: str
    is_alive: Callable[[str], bool]
    stands: bool = False


class Turn:
    """One pull of a priority group in one transaction, or in a snapshot for :meth:`verdict` alone."""

    def __init__(self, consumer: ConsumerLog, request: PullRequest, puller: Puller, now: int) -> None:
        self._c = consumer
        self._db = consumer.db
        self._request = request
        self._puller = puller
        self._now = now
        self._group = request.group
        self._key = (consumer.id, request.group)

    def verdict(self, *, counted: bool) -> GroupDecision:
        """Decide the pull; raises PinLostError. Not ``counted``: as if there were enough messages for all."""
        c, config = self._c, self._c.config
        known = Known(
            now=self._now,
            created=c.created,
            pending=c.num_pending() if counted else NEVER,
            due=self._count_due() if counted else 0,
            ack_pending=c.unsettled if counted else NEVER,
            others=self._others(),
            nearest=self._nearest(),
            pin=self.pin(),
            stands=self._puller.stands,
        )
        found = judge(config, self._request, known)
        if found.lost:
            raise PinLostError(423, 0, "Nats-Pin-Id mismatch", stream=c.log.name, consumer=c.name)
        return found

    def _count_due(self) -> int:
        sql = "SELECT count(*) FROM pending WHERE consumer=? AND due<=?"
        return int(self._db.value(sql, (self._c.id, self._now)))

    def pin(self) -> Pin | None:
        """Return the pin of the group, None if no client was pinned since the last timeout."""
        row = self._db.execute("SELECT pin, seen FROM pins WHERE consumer=? AND grp=?", self._key).fetchone()
        if row is None:
            return None
        name, seen = row
        pin, seen = text(name), integer(seen)
        sql = "SELECT ifnull(max(due), 0) FROM pending WHERE consumer=? AND waits=0"
        return Pin(pin, seen, 0 if pin else int(self._db.value(sql, (self._c.id,))))

    def _others(self) -> list[Waiting]:
        sql = (
            "SELECT id, priority, conditional, failover, owner, seen FROM pulls "
            "WHERE consumer=?+0 AND grp=? COLLATE BINARY AND id<>? ORDER BY since"
        )
        oldest = self._now - _LOST_AFTER * REFRESH_NS
        rows = self._db.execute(sql, (*self._key, self._puller.id)).fetchall()
        return [
            Waiting(text(pull), integer(priority), bool(conditional), integer(failover))
            for pull, priority, conditional, failover, owner, seen in rows
            if integer(seen) > oldest and self._puller.is_alive(text(owner))
        ]

    def _nearest(self) -> dict[int, int]:
        rows = self._db.execute("SELECT failover, seen FROM nearest WHERE consumer=? AND grp=?", self._key)
        return {integer(failover): integer(seen) for failover, seen in rows}

    # --- inside a write transaction

    def note(self) -> None:
        """Record that this client has pulled, so it is alive."""
        policy = self._c.config.priority_policy
        if policy == "overflow":
            distance = self._request.failover_ns if is_conditional(self._request) else 0
            if distance or not is_conditional(self._request):
                values = (*self._key, distance, self._now)
                self._db.execute("INSERT OR REPLACE INTO nearest VALUES(?, ?, ?, ?)", values)
        elif policy == "pinned_client" and self._request.pin_id:
            sql = "UPDATE pins SET seen=? WHERE consumer=? AND grp=? AND pin=?"
            self._db.execute(sql, (self._now, *self._key, self._request.pin_id))

    def wait(self) -> None:
        """Record that this pull waits."""
        request = self._request
        row = (self._c.id, self._puller.id, request.group, self._puller.owner, self._now, self._now)
        values = (*row, request.priority, is_conditional(request), request.failover_ns)
        sql = (
            "INSERT INTO pulls VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(consumer, id) DO UPDATE SET "
            "seen=excluded.seen"
        )
        # One more waiting pull gets no other pull served, so none is woken.
        self._db.execute(sql, values)

    def is_crowded(self) -> bool:
        """Whether as many other pulls wait, of any group, as the consumer allows."""
        return (
            waiting_pulls(self._c, self._puller.is_alive, self._now, but=self._puller.id) >= self._c.config.max_waiting
        )

    def leave(self) -> None:
        """Record that this pull waits no longer; the ones behind it are woken."""
        self._db.execute("DELETE FROM pulls WHERE consumer=? AND id=?", (self._c.id, self._puller.id))
        if self._db.connection.changes():
            self._c.dirty = True

    def sweep(self) -> None:
        """Remove the rows of pulls that are gone."""
        rows = self._db.execute("SELECT id, owner, seen FROM pulls WHERE consumer=?", (self._c.id,)).fetchall()
        oldest = self._now - _LOST_AFTER * REFRESH_NS
        gone = [
            (self._c.id, pull)
            for pull, owner, seen in rows
            if integer(seen) <= oldest or not self._puller.is_alive(text(owner))
        ]
        if gone:
            self._db.executemany("DELETE FROM pulls WHERE consumer=? AND id=?", gone)

    def pin_to(self, messages: Sequence[Delivered], new_id: Callable[[], str]) -> str:
        """Add the pin under which this pull is served to every message, and return it: a new one if it was free."""
        pin = self._request.pin_id
        if not pin:
            pin = new_id()
            values = (*self._key, pin, self._now, self._now)
            self._db.execute("INSERT OR REPLACE INTO pins VALUES(?, ?, ?, ?, ?)", values)
            names = {"stream": self._c.log.name, "consumer": self._c.name, "group": self._group}
            self._c.advise(GroupPinned(account=ACCOUNT, **names, pinned_id=pin))
        for message in messages:
            message.headers = headers.with_value(message.headers, headers.PIN_ID, pin)
        return pin

    def expire_pin(self) -> bool:
        """Take the pin from a holder that was inactive for too long; return whether that happened."""
        pin = self.pin()
        if pin is None or not pin.id or self._now < pin.seen + self._c.config.priority_timeout.ns:
            return False
        self._db.execute("DELETE FROM pins WHERE consumer=? AND grp=?", self._key)
        self._c.dirty = True
        say_unpinned(self._c, self._group, "timeout")
        return True


def waiting_pulls(consumer: ConsumerLog, is_alive: Callable[[str], bool], now: int, but: str = "") -> int:
    """Return how many pulls wait for a consumer with groups, in all processes."""
    sql = "SELECT owner FROM pulls WHERE consumer=? AND seen>? AND id<>?"
    rows = consumer.db.execute(sql, (consumer.id, now - _LOST_AFTER * REFRESH_NS, but)).fetchall()
    return sum(is_alive(text(owner)) for (owner,) in rows)


def unpin(consumer: ConsumerLog, group: str) -> bool:
    """Take the pin from its holder; return whether there was one.

    The next client is pinned when all deliveries are settled or due again.
    """
    consumer.db.execute("UPDATE pins SET pin='' WHERE consumer=? AND grp=? AND pin<>''", (consumer.id, group))
    if not consumer.db.connection.changes():
        return False
    consumer.dirty = True
    return True


def say_unpinned(consumer: ConsumerLog, group: str, reason: Literal["admin", "timeout"]) -> None:
    names = {"stream": consumer.log.name, "consumer": consumer.name, "group": group}
    consumer.advise(GroupUnpinned(account=ACCOUNT, **names, reason=reason))


def next_refresh(now: int, timeout: int) -> int:
    """Return when a waiting pull next has to refresh its row."""
    return now + (min(REFRESH_NS, timeout // 2) if timeout else REFRESH_NS)
