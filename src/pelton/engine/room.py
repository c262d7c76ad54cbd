"""The second connection of an open store, on which a transaction that its user holds open runs.

It has a catalogue of its own, as another process would: what the transaction has changed and not committed is seen
through it alone. What reaches others when it commits (messages told, waiting pulls) goes through the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pelton.api import AckOp, DirectGet, DirectReply, Incoming, Outgoing, PeltonError, PubAck
from pelton.consumers import ConsumerLog, Settlement
from pelton.engine.bus import Hearer
from pelton.engine.catalogue import Catalogue
from pelton.engine.direct import DirectGets
from pelton.engine.waiting import News
from pelton.engine.works import append_all, make_ready
from pelton.storage import Database, PlacedSums, UserSql, Writer
from pelton.storage.user_sql import Bindings
from pelton.streams import Packed, is_bare


class Mark(NamedTuple):
    """A point to which a transaction can go back, and what it had to tell by then."""

    name: str
    told: list[tuple[Hearer, Sequence[Incoming]]]
    news: News
    changed: bool


class Host(Protocol):
    """What a room needs of its engine."""

    def now(self) -> int: ...
    def new_name(self) -> str: ...
    def waiting_pulls(self, consumer: ConsumerLog) -> int: ...


class Room:
    """A connection for one transaction at a time. ``is_late`` says whether that one's time is over."""

    def __init__(self, host: Host, catalogue: Catalogue, is_late: Callable[[], bool]) -> None:
        self.db: Database = catalogue.db
        self.catalogue = catalogue
        self.account = catalogue.account
        self.now = host.now
        self.new_name = host.new_name
        self.waiting_pulls = host.waiting_pulls
        self._direct = DirectGets(catalogue, host.now)
        self.ticked = False
        self.writer = Writer(self.db)
        self._sql = UserSql(self.db, is_late)
        self._marks = 0
        # Acks that were judged, and are not written yet.
        self._settling: tuple[tuple[str, str], Settlement] | None = None

    def began(self) -> None:
        """Look what others have written: the transaction has just been opened."""
        self.ticked, self._marks = False, 0
        self.db.fold_on_commit(True)
        self.catalogue.refresh()

    def publish(self, messages: Sequence[Outgoing]) -> list[PubAck]:
        """Append all messages, or none."""
        self._settle_up()
        if len(messages) <= 1 or self._is_sure(messages):
            return append_all(self.catalogue, messages, self.now())
        mark = self.mark()
        try:
            acks = append_all(self.catalogue, messages, self.now())
        except PeltonError:
            self.go_back(mark)
            raise
        self.keep(mark)
        return acks

    def load(self, packed: Packed, sums: PlacedSums) -> None:
        """Append messages without headers, or none."""
        logs = set(map(self.catalogue.route, packed.subjects))
        log = logs.pop() if len(logs) == 1 else None
        if log is None or not log.appender.takes_bulk or self.catalogue.bus.listening:
            self.publish(packed.messages())
            self.flush()
            return
        self._settle_up()
        now = self.now()
        make_ready(self.catalogue, log, now)
        log.bulk.append_packed(packed, now, sums)

    def _is_sure(self, messages: Sequence[Outgoing]) -> bool:
        """Whether none of these messages can be refused."""
        logs = {self.catalogue.route(subject) for subject, _, _ in messages}
        plain = all(log is not None and log.appender.is_plain for log in logs)
        return plain and all(is_bare(block) for _, _, block in messages)

    def ack(self, stream: str, name: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Acknowledge deliveries; acks of one consumer that follow each other are written together."""
        key = (stream, name)
        if self._settling is None or self._settling[0] != key:
            self._settle_up()
            consumer = self.catalogue.consumer(stream, name)
            interest = self.catalogue.interests.get(consumer.log)
            self._settling = (key, Settlement(consumer, self.now(), interest))
        return self._settling[1].take(acks)

    def _settle_up(self) -> None:
        if self._settling is not None:
            self._settling[1].write()
            self._settling = None

    def flush(self) -> None:
        """Write what the transaction holds in memory."""
        self._settle_up()
        self.catalogue.flush()
        self.ticked = self.ticked or bool(self.catalogue.ticked)

    def sql(self, statement: str, bindings: Bindings) -> list[tuple[Any, ...]]:
        """Run a user's SQL."""
        return self._sql.run(statement, bindings)

    def direct_get(self, stream: str, request: DirectGet) -> DirectReply:
        """Read messages where they lie."""
        return self._direct.clean_and_look(stream, request)

    def roll_back(self) -> None:
        """Undo all."""
        self._settling = None
        self.catalogue.roll_back()
        self.writer.roll_back()

    # --- going back within a transaction

    def mark(self) -> Mark:
        """Remember this point."""
        self.flush()
        self._marks += 1
        catalogue = self.catalogue
        mark = Mark(f"mark_{self._marks}", catalogue.bus.told(), News(), catalogue.changed)
        mark.news.add(catalogue.news)
        self.db.execute(f"SAVEPOINT {mark.name}")
        return mark

    def keep(self, mark: Mark) -> None:
        """Forget a point; what was done since stays."""
        self.db.execute(f"RELEASE {mark.name}")

    def go_back(self, mark: Mark) -> None:
        """Undo what was done since a point, and forget it."""
        catalogue = self.catalogue
        self._settling = None
        self.db.execute(f"ROLLBACK TO {mark.name}")
        self.db.execute(f"RELEASE {mark.name}")
        catalogue.roll_back()
        catalogue.bus.take_back(mark.told)
        catalogue.news.add(mark.news)
        catalogue.changed = mark.changed
        catalogue.refresh()
