"""The streams and consumers of a store, and which stream takes a subject: rows, with a copy in memory.

The copy is valid while ``PRAGMA data_version`` does not change (``session.py``). If another process has written, every
state row is read again on its next use, and of the streams and consumers what has changed since (``catalogue.py``). A
stream is made when it is first used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from pelton.api import (
    AccountLimits,
    CorruptConfigError,
    DirectGetDisabledError,
    PullRequest,
    SourceConsumer,
    StreamConfig,
    api_error,
)
from pelton.api.events import Event
from pelton.consumers import ConsumerLog, Delivery, Interest, Settlement
from pelton.engine.bus import Bus
from pelton.engine.session.catalogue import (
    Account,
    Change,
    LazyMapping,
    StreamRow,
    catalogue_version,
    changes_between,
    note_change,
)
from pelton.engine.session.consumers import ConsumedOrigin, ConsumerRegistry, LivePushes
from pelton.sourcing import SourceGraph
from pelton.storage import DamagedRowError, Database, text
from pelton.storage.damage import note_damage
from pelton.streams import IsWanted, Jumps, StreamEnv, StreamLog
from pelton.streams.rules import decode_config, encode_config
from pelton.streams.timers import nearest_deadlines
from pelton.subjects import Draw, SubjectIndex, fits, is_subject, is_subset
from pelton.subjects.match import LONGEST_CACHED

_LIMIT: Final = 100_000
_SHORT: Final = 1_024


class Routes:
    """The subjects of a store's streams."""

    def __init__(self, streams: Mapping[str, StreamLog]) -> None:
        self._streams = streams
        self._index: SubjectIndex[str] = SubjectIndex()
        # What is not in the index yet, by the tokens that it begins with: a store may have very many streams.
        self._waiting: dict[str, list[tuple[str, str]]] = {}
        self._known: dict[str, StreamLog] = {}
        self._families: dict[str, StreamLog] = {}
        self._reached: dict[str, bool] = {}

    def add(self, stream: str, subjects: Iterable[str]) -> None:
        """Add a stream. Its subjects overlap with no other stream's, so cached results stay valid."""
        for subject in subjects:
            self._waiting.setdefault(_beginning(subject), []).append((subject, stream))
        self._reached.clear()

    def remove(self, stream: str, subjects: Iterable[str]) -> None:
        for subject in subjects:
            self._insert_beside(subject)
            self._index.remove(subject, stream)
        self._known = {subject: found for subject, found in self._known.items() if found.name != stream}
        self._families = {parent: found for parent, found in self._families.items() if found.name != stream}
        self._reached.clear()

    def overlapping(self, subject: str) -> set[str]:
        """Return the names of the streams that take some subject that matches a filter."""
        self._insert_beside(subject)
        return self._index.overlapping(subject)

    def find(self, subject: str) -> StreamLog | None:
        log = self._known.get(subject)
        if log is not None:
            return log
        parent, _, token = subject.rpartition(".")
        log = self._families.get(parent)
        if log is None or not (is_subject(token) and fits(subject)):
            log = self._search(subject, parent)
        if log is not None and len(subject) <= LONGEST_CACHED:
            if len(self._known) >= _LIMIT:
                self._known.clear()
            self._known[subject] = log
        return log

    def find_all(self, subjects: Collection[str]) -> set[StreamLog | None]:
        """Return the streams that take these subjects; None among them if no stream takes one."""
        found = set(map(self._known.get, subjects))
        return set(map(self.find_of_many, subjects)) if None in found else found

    def find_of_many(self, subject: str) -> StreamLog | None:
        """Return the same for one of many subjects that end in ids: what is seen only once is not remembered."""
        parent, _, token = subject.rpartition(".")
        log = self._families.get(parent)
        # A token of letters and digits is valid.
        if log is not None and token.isalnum() and subject.isascii() and len(subject) <= _SHORT:
            return log
        return self.find(subject)

    def _search(self, subject: str, parent: str) -> StreamLog | None:
        if not is_subject(subject):
            return None
        self._insert_beside(subject)
        names = self._index.match(subject)
        if not names:
            return None
        found = self._streams[names[0]]
        if len(self._families) >= _LIMIT:
            self._families.clear()
        # Streams' subjects never overlap, so no other filter can match a child of a parent whose children one filter
        # takes. Without this, each subject that ends in an id, and is seen only once, would need a search.
        is_short = 0 < len(parent) <= LONGEST_CACHED
        if is_short and any(is_subset(f"{parent}.*", mine) for mine in found.config.subjects):
            self._families[parent] = found
        return found

    def reaches(self, subjects: str) -> bool:
        """Return whether any stream may take a subject that matches a filter."""
        reached = self._reached.get(subjects)
        if reached is None:
            reached = self._reached[subjects] = bool(self.overlapping(subjects))
        return reached

    def _insert_beside(self, subject: str) -> None:
        """Insert into the index whatever may overlap with a subject or filter."""
        begin = _beginning(subject)
        begins: Iterable[str] = ("", begin.partition(".")[0], begin)
        if begin.count(".") == 0:
            # The rest is unknown, or there is none.
            begins = [each for each in self._waiting if not begin or each.partition(".")[0] in ("", begin)]
        for begin in begins:
            for mine, stream in self._waiting.pop(begin, ()):
                self._index.insert(mine, stream)


def _beginning(subject: str) -> str:
    """Return up to two tokens with which all subjects begin that a filter matches."""
    first, _, rest = subject.partition(".")
    second = rest.partition(".")[0]
    if "*" in first or ">" in first:
        return ""
    return f"{first}.{second}" if second and not ("*" in second or ">" in second) else first


_log: Final = logging.getLogger("pelton.engine")
_STREAMS: Final = "SELECT id, CAST(name AS BLOB), config, created FROM streams"


class Registry:
    """The streams and consumers of one connection, and which of them the open transaction has used."""

    version: int

    def __init__(
        self,
        database: Database,
        *,
        now: Callable[[], int],
        draw: Draw,
        bus: Bus,
        limits: AccountLimits,
        advise: Callable[[Event], None],
    ) -> None:
        self.db = database
        self._bus = bus
        self._now = now
        self.streams: LazyMapping[str, StreamRow, StreamLog] = LazyMapping(self._made)
        self._names: dict[int, str] = {}
        self.republishers: list[StreamLog] = []
        # The streams that take from others, and those in which time makes messages.
        self._takers: dict[str, None] = {}
        self._ticking: dict[str, None] = {}
        self.consumers: ConsumerRegistry = ConsumerRegistry(database, self.streams, advise)
        # For the streams with interest retention that are loaded.
        self.interests: dict[StreamLog, Interest] = {}
        self._wanted: dict[int, IsWanted] = {}
        self.source_graph: SourceGraph = SourceGraph(database, self, now, draw)
        self.account: Account = Account(self, limits)
        quota = self.account.check_quota if self.account.has_quota else None
        self._env = StreamEnv(
            database,
            self.has_recipient,
            self.may_have_recipient,
            draw,
            self._wanted,
            quota,
            self.source_graph,
            LivePushes(self, bus, now),
        )
        self.routes: Routes = Routes(self.streams)
        self.version = -1
        # Whether the open transaction has changed a stream or consumer.
        self.has_moved: bool = False
        # How the wall clock has jumped, of streams whose messages age.
        self.jumps: Mapping[int, Jumps] = {}
        # Streams, and consumers, with a damaged configuration: what it says is unknown, so they cannot be used.
        self.damaged: dict[tuple[str, str], CorruptConfigError] = {}
        self._loaded: set[StreamLog] = set()
        # What the open transaction has used.
        self.used: set[StreamLog] = set()
        self.used_consumers: set[ConsumerLog] = set()

    # --- loading

    def refresh(self) -> None:
        """Mark all state in memory as stale: another process has written."""
        for log in self._loaded:
            log.state.stale = True
        self._loaded.clear()
        self.consumers.reset()
        self.source_graph.invalidate()
        version = catalogue_version(self.db)
        if version != self.version and not self._load_changes(version):
            self._load(version)

    def roll_back(self) -> None:
        """Discard everything that was not committed."""
        for log in self._loaded:
            log.state.reset()
        self._loaded.clear()
        self.interests.clear()
        self._wanted.clear()
        self.consumers.reset()
        self.forget_used()
        self.source_graph.roll_back()
        if self.has_moved:
            self.version = -1

    def moved(self, change: Change) -> None:
        """Increment the version after a change of streams or consumers, whose copy in this process is current."""
        self.version, self.has_moved = note_change(self.db, change), True

    def _load(self, version: int) -> None:
        self.db.check_schema()
        told, self.damaged = self.damaged, {}
        rows, made = self.streams.rows, self.streams.made
        self.streams.rows, self.streams.made = {}, {}
        self.routes = Routes(self.streams)
        self.republishers = []
        for known in (self._names, self._takers, self._ticking):
            known.clear()
        for row_id, name, *rest in self.db.execute(f"{_STREAMS} ORDER BY id").fetchall():
            try:
                row = StreamRow.of(row_id, name, *rest)
                if (old := rows.get(row.name)) is not None and old.id == row.id and row.name in made:
                    self._configure(made[row.name], old, row)
                    self.streams.made[row.name] = made[row.name]
                self._add(row)
            except DamagedRowError:
                self._set_aside(text(name), "")
        for stream, consumer in self.consumers.load(self._names):
            self._set_aside(stream, consumer)
        for key in self.damaged.keys() - told.keys():
            _log.error("%s", self.damaged[key], extra={"store": self.db.path, "stream": key[0]})
            note_damage(self.db.path, f"{self.damaged[key].reason}: its configuration is damaged")
        # What was read since the last transaction may be gone.
        self.used.intersection_update(self.streams.made.values())
        self.used_consumers.intersection_update(self.consumers.by_name.made.values())
        self._load_source_graph()
        self.version = version

    def _load_changes(self, version: int) -> bool:
        """Load only what has changed, if that is known; return whether it is."""
        changes = None if self.damaged else changes_between(self.db, self.version, version)
        if changes is None:
            return False
        self.db.check_schema()
        concerns_sources = False
        try:
            for row_id in dict.fromkeys(row_id for change in changes for row_id in change.streams):
                concerns_sources |= self._load_stream(row_id)
            for row_id in dict.fromkeys(row_id for change in changes for row_id in change.consumers):
                if (log := self.streams.made.get(self.consumers.load_one(row_id, self._names))) is not None:
                    self._forget_interest(log)
        except DamagedRowError:
            return False
        self.consumers.load_floor()
        self.used_consumers.intersection_update(self.consumers.by_name.made.values())
        if concerns_sources:
            self._load_source_graph()
        self.version = version
        return True

    def _load_stream(self, row_id: int) -> bool:
        """Read the row of a stream that may be new, changed or deleted; return whether it concerns sources."""
        found = self.db.execute(f"{_STREAMS} WHERE id=?", (row_id,)).fetchone()
        if found is not None:
            return self._put(StreamRow.of(*found))
        return row_id in self._names and self._drop(self._names[row_id])

    def _made(self, row: StreamRow) -> StreamLog:
        try:
            config = decode_config(StreamConfig, row.raw)
        except DamagedRowError as error:
            raise CorruptConfigError(row.name, "", self.db.path) from error
        log = StreamLog(self._env, row.id, config, row.created)
        log.state.jumps = self.jumps.get(row.id, ())
        return log

    def _configure(self, log: StreamLog, old: StreamRow, row: StreamRow) -> None:
        if old.raw != row.raw:
            log.configure(decode_config(StreamConfig, row.raw))

    def _add(self, row: StreamRow) -> None:
        self.streams.rows[row.name], self._names[row.id] = row, row.name
        self.routes.add(row.name, row.digest.subjects)
        if row.digest.republish is not None:
            self.republishers.append(self.streams[row.name])
        if row.digest.takes:
            self._takers[row.name] = None
        if row.digest.is_ticking:
            self._ticking[row.name] = None

    def _remove(self, row: StreamRow) -> None:
        self.routes.remove(row.name, row.digest.subjects)
        self.republishers = [each for each in self.republishers if each.name != row.name]
        for known in (self._takers, self._ticking):
            known.pop(row.name, None)
        del self._names[row.id], self.streams.rows[row.name]

    def _put(self, row: StreamRow) -> bool:
        """Register a new or changed stream; return whether this concerns sources."""
        old, log = self.streams.rows.get(row.name), self.streams.made.get(row.name)
        if old is not None and old.id != row.id:
            self._drop(row.name)
        elif old is not None:
            if log is not None:
                self._configure(log, old, row)
                self._forget_interest(log)
            self._remove(old)
        self._add(row)
        return row.digest.takes or (old is not None and old.digest.takes) or self.source_graph.is_origin(row.name)

    def _drop(self, name: str) -> bool:
        """Forget a stream and its consumers; return whether this concerns sources."""
        row, log = self.streams.rows[name], self.streams.made.get(name)
        for each in self.consumers.rows_of(name):
            self.consumers.drop(each.key)
        self._remove(row)
        self.streams.pop(name)
        if log is not None:
            self._forget_interest(log)
            self._loaded.discard(log)
            self.used.discard(log)
        return row.digest.takes or self.source_graph.is_origin(name)

    def _set_aside(self, stream: str, consumer: str) -> None:
        self.damaged[stream, consumer] = error = CorruptConfigError(stream, consumer, self.db.path)
        log = self.streams.get(stream)
        if consumer and log is not None and log.config.retention == "interest":
            # What the consumer wants is unknown, so nothing may be removed, or published without it.
            self.damaged[stream, ""] = error
            self._drop(stream)

    def check_sound(self, stream: str, consumer: str = "") -> None:
        """Raise CorruptConfigError if this stream or consumer exists, and what its configuration was is unknown."""
        if (error := self.damaged.get((stream, consumer))) is not None:
            raise error

    def _load_source_graph(self) -> None:
        self.source_graph.rebuild(self.streams, self._takers)
        for log in list(self.interests):
            self._forget_interest(log)
        for log in self._loaded:
            self.load_interest(log)

    def add_stream(self, row_id: int, config: StreamConfig, created: int) -> None:
        """Register a stream that was just created, without reloading the others: there may be many."""
        if self._put(StreamRow.of(row_id, config.name, encode_config(config), created)):
            self._load_source_graph()
        self.moved(Change(streams=(row_id,)))

    def update_stream(self, log: StreamLog, raw: bytes) -> None:
        """Register a stream whose configuration was just changed."""
        if self._put(StreamRow.of(log.id, log.name, raw, log.created)):
            self._load_source_graph()
        self.load_interest(log)
        self.moved(Change(streams=(log.id,)))

    def drop_stream(self, log: StreamLog, consumers: list[ConsumerLog]) -> None:
        """Remove a stream that was just deleted, and its consumers, from the registry."""
        self.used_consumers.difference_update(consumers)
        if self._drop(log.name):
            self._load_source_graph()
        self.moved(Change(streams=(log.id,)))

    def _forget_interest(self, log: StreamLog) -> None:
        self.interests.pop(log, None)
        self._wanted.pop(log.id, None)

    def load_interest(self, log: StreamLog) -> None:
        """Determine again which consumers want a stream's messages, if it has interest retention."""
        self._forget_interest(log)
        if log.config.retention == "interest":
            interest = self.interests[log] = Interest(log, self.consumers_of(log), self.source_graph.takers(log))
            if (check := interest.check()) is not None:
                self._wanted[log.id] = check

    def interest_of(self, log: StreamLog) -> Interest | None:
        """Return what consumers want of a stream's messages; None if it keeps them anyway."""
        if log.config.retention != "interest":
            return None
        if log not in self.interests:
            self.load_interest(self.use(log))
        return self.interests[log]

    @property
    def takers(self) -> Iterator[StreamConfig]:
        """The configurations of the streams that take from others."""
        return (self.streams[name].config for name in self._takers)

    # --- look-up

    def stream(self, name: str) -> StreamLog:
        """Return a stream with fresh state; raises StreamNotFoundError."""
        log = self.streams.get(name)
        if log is None:
            self.check_sound(name)
            raise api_error("JSStreamNotFoundErr", stream=name)
        return self.use(log)

    def direct(self, name: str) -> StreamLog:
        """Return the stream that answers direct gets, with fresh state: itself, or a mirror if it is gone (ADR-31).

        Raises StreamNotFoundError, DirectGetDisabledError.
        """
        if name not in self.streams:
            for log in map(self.streams.__getitem__, self._takers):
                mirror = log.config.mirror
                if mirror is not None and mirror.name == name and log.config.mirror_direct:
                    return self.use(log)
        log = self.stream(name)
        if not log.config.allow_direct:
            raise DirectGetDisabledError(name)
        return log

    def use(self, log: StreamLog) -> StreamLog:
        """Return a stream with fresh state, to be flushed when the transaction ends."""
        if log.state.stale:
            try:
                log.state.load()
            except DamagedRowError as error:
                raise DamagedRowError(f"stream {log.name!r}: {error}") from None
            self._loaded.add(log)
            if log not in self.interests:
                self.load_interest(log)
        self.used.add(log)
        return log

    def consumer(self, stream: str, name: str) -> ConsumerLog:
        """Return a consumer with fresh state; raises StreamNotFoundError or ConsumerNotFoundError."""
        consumers = self.consumers.by_name
        consumer = consumers.made.get((stream, name)) or consumers.get((stream, name))
        if consumer is None:
            self.stream(stream)
            self.check_sound(stream, name)
            raise api_error("JSConsumerNotFoundErr", stream=stream, consumer=name)
        self.use(consumer.log)
        return self.use_consumer(consumer)

    def use_consumer(self, consumer: ConsumerLog) -> ConsumerLog:
        """Return a consumer with fresh state, to be flushed when the transaction ends."""
        if consumer.stale:
            try:
                consumer.load()
            except DamagedRowError as error:
                raise DamagedRowError(f"consumer {consumer.log.name}/{consumer.name}: {error}") from None
        self.used_consumers.add(consumer)
        return consumer

    def delivery(self, consumer: ConsumerLog, request: PullRequest, now: int) -> Delivery:
        return Delivery(consumer, request, now, self.consumers.token_floor, self.interest_of(consumer.log))

    def settlement(self, consumer: ConsumerLog, now: int) -> Settlement:
        """Return a settlement of deliveries of a used consumer."""
        return Settlement(consumer, now, self.interest_of(consumer.log))

    def consumers_of(self, log: StreamLog) -> list[ConsumerLog]:
        return self.consumers.of(log.name)

    @property
    def num_consumers(self) -> int:
        return len(self.consumers.by_name)

    def listed_of(self, log: StreamLog) -> list[ConsumerLog]:
        """Return the consumers of a stream that are counted and listed: a direct one is known only to its creator."""
        return [consumer for consumer in self.consumers_of(log) if not consumer.config.direct]

    def listed_names(self, log: StreamLog) -> list[str]:
        return [row.name for row in self.consumers.rows_of(log.name) if not row.digest.direct]

    def idle_names(self, log: StreamLog, now: int) -> set[str]:
        """Return the names of those of a stream that were inactive for too long."""
        rows = [row for row in self.consumers.rows_of(log.name) if row.digest.inactive_threshold > 0]
        return {row.name for row in rows if self.use_consumer(self.consumers.by_name[row.key]).is_idle(now)}

    def forget_used(self) -> None:
        """Forget what was used: the transaction is over."""
        self.used.clear()
        self.used_consumers.clear()
        if self.account.room:
            # What others store before the next one is not known.
            self.account.room.clear()

    # --- recipients

    def has_recipient(self, subject: str) -> bool:
        """Return whether a message on a subject would reach a stream or a subscriber."""
        return self.routes.find(subject) is not None or self._bus.has_subscriber(subject)

    def may_have_recipient(self, subjects: str) -> bool:
        """Return False if no message that matches a filter would have a recipient; a quick check."""
        return self.routes.reaches(subjects) or self._bus.has_subscriptions

    # --- time

    def is_ticking(self, log: StreamLog) -> bool:
        """Return whether time makes messages in a stream, or room for messages of its sources."""
        return log.state.is_ticking or (self.source_graph.has_links and self.source_graph.is_ticking(log))

    def deadlines(self) -> dict[str, int]:
        """Return when time next makes a message, or an earlier time, in each stream in which it does."""
        aged = [name for name in self._ticking if self.streams.rows[name].digest.max_age > 0]
        logs = {*map(self.streams.__getitem__, aged), *self.source_graph.ticking()}
        found = {log.name: self.use(log).state.next_deadline() for log in logs}
        for row_id, due in nearest_deadlines(self.db):
            if (name := self._names.get(row_id, "")) in self._ticking:
                found[name] = min(due, found.get(name, due))
        return found

    def is_retiring(self, log: StreamLog, now: int) -> bool:
        """Return whether messages are kept for consumers that have expired."""
        interest = self.interest_of(log)
        return interest is not None and any(self.use_consumer(consumer).is_idle(now) for consumer in interest.mortal)

    # --- interest

    def tidy(self, log: StreamLog, first: int) -> None:
        """Remove messages that no consumer wants, if a stream has interest retention."""
        if (interest := self.interest_of(log)) is not None:
            interest.tidy(first)

    def consumer_of(self, origin: StreamLog, consumer: SourceConsumer) -> ConsumedOrigin:
        return ConsumedOrigin(self, self._bus, origin, consumer, self._now)

    def release(self, log: StreamLog, sequences: list[int]) -> None:
        """Remove messages that a source has taken, unless another consumer wants them."""
        if (interest := self.interest_of(log)) is not None:
            interest.release(sequences)
