"""Who listens to what, and how a message gets to them: in this process, and in others with the store open.

Design: To listen is to have a row in ``listeners``: every process knows all of them, so a message that nobody
listens to costs nothing. One that somebody in this process listens to is handed over in memory when its transaction
commits; one for another process is a row in ``told``, written in the same transaction, which the others are woken to
read. Nothing is kept for those who come later, and those who lag behind lose the oldest (told once, in the log): that
is NATS's promise for messages outside streams, at most once.

Invariants: messages reach a listener in the order in which their transactions committed; of the members of a queue
group exactly one is told; what was rolled back is told to nobody. A process that died is no listener any more: whoever
meets its rows removes them. One that was stopped (``openers.stopped``) is told what all are told, but nothing that one
of many should do, until it goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from pelton.api import Incoming, Outgoing
from pelton.engine.pubsub.peers import Peers
from pelton.storage import Database
from pelton.subjects import SubjectIndex

_log: Final = logging.getLogger("pelton")
_KEPT_ROWS: Final = 65_536
_KEPT_BYTES: Final = 64 << 20
_PAGE: Final = 4096
_EVERYBODY: Final = 0


class Subscriber(Protocol):
    """Who takes in what a listener is told; ``room`` is how many messages more it would like to hold."""

    def hear(self, messages: Sequence[Incoming]) -> None: ...

    @property
    def room(self) -> int: ...


class SubscriptionRow(NamedTuple):
    """One subscription of some process: its row; in order of joining."""

    id: int
    owner: str
    subject: str
    queue: str


class Bus:
    """The listeners of one open store. ``choose`` picks the member of a queue group that is told.

    One for another connection of the same process is ``of`` the first: it tells its listeners too, and leaves it to
    the first to read what other processes have said.
    """

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
        self._version = -1
        # Whether anybody listens to anything, or has just ceased to: asked for every transaction.
        self.listening = False
        self._mine: dict[int, Subscriber] = {} if of is None else of._mine
        self._reads = of is None
        self._joining: list[int] = []
        self._leaving: list[int] = []
        self._bumped = False
        self._stopped: set[str] = set()
        self._cursor = 0
        self._rows: list[tuple[int, str, Incoming]] = []
        self._ready: list[tuple[Subscriber, Sequence[Incoming]]] = []
        self._dead: set[str] = set()
        self._alive: set[str] = set()

    # --- who listens

    @property
    def version(self) -> int:
        """A number that moves when somebody joins or leaves."""
        return self._version

    def hears(self, subject: str) -> bool:
        """Return whether anybody listens to a subject."""
        return bool(self._index.match(subject))

    def listeners(self, subject: str) -> list[SubscriptionRow]:
        """Return who listens to a subject, and runs; the longest standing first."""
        return sorted(listener for listener in self._index.match(subject) if self._runs(listener.owner))

    def room(self, listeners: Iterable[SubscriptionRow]) -> int:
        """Return how many messages more these listeners would like to hold.

        That is what the fullest of them says, but for members of a queue group: then the emptiest.
        """
        listeners = list(listeners)
        rooms = [self._room_of(listener) for listener in listeners]
        return max(rooms, default=0) if any(listener.queue for listener in listeners) else min(rooms, default=0)

    def _room_of(self, listener: SubscriptionRow) -> int:
        hearer = self._mine.get(listener.id)
        return _PAGE if hearer is None else hearer.room

    def join(self, subject: str, queue: str, hearer: Subscriber) -> int:
        """Listen: ``hearer`` hears every message from this transaction on. Returns the listener's number."""
        if not self._mine:
            last = self._db.value("SELECT seq FROM sqlite_sequence WHERE name='told'")
            self._cursor = int(last or 0)
        self._db.execute(
            "INSERT INTO listeners(owner, subject, grp) VALUES(?, ?, ?)", (self._peers.name, subject, queue)
        )
        listener = self._db.connection.last_insert_rowid()
        self._mine[listener] = hearer
        self._joining.append(listener)
        self._index.insert(subject, SubscriptionRow(listener, self._peers.name, subject, queue))
        self.listening = True
        self._bump()
        return listener

    def leave(self, listener: int) -> None:
        """Stop listening."""
        self._leaving.append(listener)
        row = self._db.execute("SELECT id, owner, subject, grp FROM listeners WHERE id=?", (listener,)).fetchone()
        if row is None:
            return
        self._db.execute("DELETE FROM listeners WHERE id=?", (listener,))
        gone = SubscriptionRow(*row)
        self._index.remove(gone.subject, gone)
        if len(self._mine) == len(self._leaving):
            self._db.execute("DELETE FROM openers WHERE name=?", (self._peers.name,))
        self._bump()

    def _bump(self) -> None:
        """Tell the others that listeners have changed; what this process knows of them has been changed already."""
        self._db.execute("UPDATE meta SET value=value+1 WHERE key='listeners'")
        self._version = int(self._db.value("SELECT value FROM meta WHERE key='listeners'"))
        self._bumped = True

    def _load(self, version: int) -> None:
        self._index = SubjectIndex()
        stopped = self._db.execute("SELECT name FROM openers WHERE stopped=1").fetchall()
        self._stopped = {str(name) for (name,) in stopped}
        for row in self._db.execute("SELECT id, owner, subject, grp FROM listeners ORDER BY id").fetchall():
            listener = SubscriptionRow(*row)  # type: ignore[arg-type]  # the columns of a Listener
            self._index.insert(listener.subject, listener)
        self.listening = len(self._index) > 0 or bool(self._mine)
        if not self.listening:
            self._rows.clear()
            self._ready.clear()
        self._version = version

    # --- transactions

    def refresh(self) -> None:
        """Another process has written: learn who listens now, and hear what it said."""
        version = int(self._db.value("SELECT value FROM meta WHERE key='listeners'"))
        if version != self._version:
            self._load(version)
        if self._mine and self._reads:
            self._read()

    def reset(self) -> None:
        """The transaction was rolled back: it said nothing, and nobody joined."""
        for listener in self._joining:
            self._mine.pop(listener, None)
        self._joining.clear()
        self._leaving.clear()
        self._rows.clear()
        self._ready.clear()
        self._bumped = False
        self._version = -1

    def told(self) -> list[tuple[Subscriber, Sequence[Incoming]]]:
        """Return what the transaction has said to listeners of this process so far."""
        return list(self._ready)

    def take_back(self, told: Sequence[tuple[Subscriber, Sequence[Incoming]]]) -> None:
        """Have said this, and nothing else."""
        self._ready = list(told)

    def committed(self) -> Sequence[tuple[Subscriber, Sequence[Incoming]]]:
        """Return what the transaction said to listeners of this process: it is committed, and can be handed over."""
        self._joining.clear()
        ready, self._ready = self._ready, []
        while self._leaving:
            self._mine.pop(self._leaving.pop(), None)
        self.listening = len(self._index) > 0
        return ready

    # --- telling

    def tell(self, messages: Iterable[Outgoing]) -> None:
        """Say something to everybody who listens, when the transaction commits."""
        for subject, run in groupby(messages, itemgetter(0)):
            if self._index.match(subject):
                self.deliver(subject, [Incoming(subject, data, headers) for _, data, headers in run])

    def deliver(self, route: str, messages: Sequence[Incoming]) -> None:
        """Say something to everybody who listens to ``route``, whatever the messages' own subjects are."""
        found = self._index.match(route)
        groups: dict[tuple[str, str], list[SubscriptionRow]] = {}
        elsewhere = False
        for listener in found:
            if not self._lives(listener.owner):
                continue
            if listener.queue:
                groups.setdefault((listener.subject, listener.queue), []).append(listener)
            elif not self._hand_over(listener, messages):
                elsewhere = True
        for members in groups.values():
            self._share(members, route, messages)
        if elsewhere:
            self._rows += [(_EVERYBODY, route, message) for message in messages]

    def _share(self, members: list[SubscriptionRow], route: str, messages: Sequence[Incoming]) -> None:
        """Tell each message to one member of a queue group; those that are stopped or full only if all are."""
        running = [member for member in members if self._runs(member.owner)] or members
        fit = [member for member in running if self._room_of(member) > 0] or running
        for message in messages:
            chosen = fit[0] if len(fit) == 1 else self._choose(fit)
            if not self._hand_over(chosen, (message,)):
                self._rows.append((chosen.id, route, message))

    def _runs(self, owner: str) -> bool:
        return owner not in self._stopped and self._lives(owner)

    def _lives(self, owner: str) -> bool:
        if owner == self._peers.name or owner in self._alive:
            return True
        if owner not in self._dead and self._peers.is_alive(owner):
            self._alive.add(owner)
            return True
        self._dead.add(owner)
        return False

    def _hand_over(self, listener: SubscriptionRow, messages: Sequence[Incoming]) -> bool:
        """Hand messages to a listener of this process once it is committed; False when it is another's."""
        if listener.owner != self._peers.name:
            return False
        hearer = self._mine.get(listener.id)
        if hearer is not None:
            self._ready.append((hearer, messages))
        return True

    # --- who runs

    def doubt(self) -> None:
        """Ask anew, at the next occasion, which owners are alive."""
        self._alive.clear()

    def is_stopped(self, owner: str) -> bool:
        """Return whether an owner was found to stand still, and has not gone on since."""
        return owner in self._stopped

    def beat(self) -> None:
        """Say that this process runs."""
        sql = "INSERT INTO openers VALUES(?, 1, 0) ON CONFLICT(name) DO UPDATE SET beat=beat+1, stopped=0"
        self._db.execute(sql, (self._peers.name,))
        if self._peers.name in self._stopped:
            self._stopped.discard(self._peers.name)
            self._bump()

    def beat_of(self, owner: str) -> int:
        """Return a number that moves while an owner says that it runs."""
        return int(self._db.value("SELECT beat FROM openers WHERE name=?", (owner,)) or 0)

    def set_aside(self, owner: str) -> None:
        """Take an owner for stopped until it says that it runs."""
        if owner not in self._stopped:
            sql = "INSERT INTO openers VALUES(?, 0, 1) ON CONFLICT(name) DO UPDATE SET stopped=1"
            self._db.execute(sql, (owner,))
            self._stopped.add(owner)
            self._bump()

    # --- the end of a transaction

    def flush(self) -> bool:
        """Write what other processes are told; return whether they have anything to learn."""
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
        self._db.executemany("DELETE FROM listeners WHERE owner=?", dead)
        self._db.executemany("DELETE FROM openers WHERE name=?", dead)
        self._bump()
        self._load(self._version)

    def _write_rows(self) -> None:
        total = int(self._db.value("SELECT total FROM told ORDER BY seq DESC LIMIT 1") or 0)
        rows = []
        for listener, route, m in self._rows:
            total += len(m.subject) + len(m.data) + len(m.headers or b"")
            rows.append((self._peers.name, listener, route, m.subject, m.reply, m.headers, m.data, total))
        self._rows.clear()
        columns = "origin, listener, route, subject, reply, hdr, data, total"
        sql = f"INSERT INTO told({columns}) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        self._db.executemany(sql, rows)
        self._trim(self._db.connection.last_insert_rowid(), total)

    def _trim(self, last: int, total: int) -> None:
        self._db.execute("DELETE FROM told WHERE seq<=?", (last - _KEPT_ROWS,))
        oldest = self._db.value("SELECT seq FROM told WHERE total>? ORDER BY seq LIMIT 1", (total - _KEPT_BYTES,))
        self._db.execute("DELETE FROM told WHERE seq<?", (oldest,))

    # --- hearing

    def _read(self) -> None:
        """Hand over what other processes have said since the last look."""
        while True:
            rows = self._db.execute(
                "SELECT seq, origin, listener, route, subject, reply, hdr, data FROM told WHERE seq>? "
                "ORDER BY seq LIMIT ?",
                (self._cursor, _PAGE),
            ).fetchall()
            if not rows:
                return
            if (first := int(str(rows[0][0]))) > self._cursor + 1 and self._cursor:
                _log.warning("store %s: up to %d messages were missed: this process read them too late",
                             self._db.path, first - self._cursor - 1)  # fmt: skip
            for seq, origin, listener, route, subject, reply, headers, data in rows:
                self._cursor = int(str(seq))
                if origin != self._peers.name:
                    incoming = Incoming(subject, data, headers, reply)  # type: ignore[arg-type]  # the columns' types
                    self._hear(int(str(listener)), str(route), incoming)

    def _hear(self, listener: int, route: str, incoming: Incoming) -> None:
        if listener != _EVERYBODY:
            if (hearer := self._mine.get(listener)) is not None:
                hearer.hear((incoming,))
            return
        for other in self._index.match(route):
            if not other.queue and (hearer := self._mine.get(other.id)) is not None:
                hearer.hear((incoming,))
