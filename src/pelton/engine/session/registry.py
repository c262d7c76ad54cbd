"""The streams and consumers of a store, and which stream takes a subject: rows, with a copy in memory.

The copy is valid while ``PRAGMA data_version`` does not change (``session.py``). If another process has written, every
state row is read again on its next use, and the registry itself if its version (a row that every change of a stream or
consumer increments) has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
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
from pelton.engine.session.account import Account
from pelton.engine.session.consumers import ConsumedOrigin, ConsumerRegistry, LivePushes
from pelton.sourcing import SourceGraph
from pelton.storage import DamagedRowError, Database, integer, text
from pelton.streams import IsWanted, StreamEnv, StreamLog
from pelton.streams.rules import decode_config
from pelton.subjects import Draw, SubjectIndex, fits, is_subject, is_subset
from pelton.subjects.index import LONGEST_CACHED

_LIMIT: Final = 100_000
_SHORT: Final = 1_024


class Routes:
    """The subjects of a store's streams."""

    def __init__(self) -> None:
        self._index: SubjectIndex[StreamLog] = SubjectIndex()
        self._known: dict[str, StreamLog] = {}
        self._families: dict[str, StreamLog] = {}
        self._reached: dict[str, bool] = {}

    def add(self, log: StreamLog) -> None:
        """Add a stream. Its subjects overlap with no other stream's, so cached results stay valid."""
        for subject in log.config.subjects:
            self._index.insert(subject, log)
        self._reached.clear()

    def remove(self, log: StreamLog) -> None:
        """Remove a stream."""
        for subject in log.config.subjects:
            self._index.remove(subject, log)
        self._known = {subject: found for subject, found in self._known.items() if found is not log}
        self._families = {parent: found for parent, found in self._families.items() if found is not log}
        self._reached.clear()

    def overlapping(self, subject: str) -> set[StreamLog]:
        """Return the streams that take some subject that matches a filter."""
        return self._index.overlapping(subject)

    def find(self, subject: str) -> StreamLog | None:
        """Return the stream that takes a subject, or None."""
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
        found = self._index.match(subject)
        if not found:
            return None
        if len(self._families) >= _LIMIT:
            self._families.clear()
        # Streams' subjects never overlap, so no other filter can match a child of a parent whose children one filter
        # takes. Without this, each subject that ends in an id, and is seen only once, would need a search.
        is_short = 0 < len(parent) <= LONGEST_CACHED
        if is_short and any(is_subset(f"{parent}.*", mine) for mine in found[0].config.subjects):
            self._families[parent] = found[0]
        return found[0]

    def reaches(self, subjects: str) -> bool:
        """Return whether any stream may take a subject that matches a filter."""
        reached = self._reached.get(subjects)
        if reached is None:
            reached = self._reached[subjects] = bool(self._index.overlapping(subjects))
        return reached


_log: Final = logging.getLogger("pelton.engine")
_STREAMS: Final = "SELECT id, CAST(name AS BLOB), config, created FROM streams ORDER BY id"


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
        self.streams: dict[str, StreamLog] = {}
        self.republishers: list[StreamLog] = []
        self.consumers: ConsumerRegistry = ConsumerRegistry(database, advise)
        # For the streams with interest retention.
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
        self.routes: Routes = Routes()
        self.version = -1
        # Streams, and consumers, with a damaged configuration: what it says is unknown, so they cannot be used.
        self.damaged: dict[tuple[str, str], CorruptConfigError] = {}
        self._used: set[StreamLog] = set()
        self._used_consumers: set[ConsumerLog] = set()

    # --- loading

    def refresh(self) -> None:
        """Mark all state in memory as stale: another process has written."""
        for log in self.streams.values():
            log.state.stale = True
        self.consumers.doubt()
        self.source_graph.invalidate()
        version = integer(self.db.value("SELECT value FROM meta WHERE key='catalogue'"))
        if version != self.version:
            self._load(version)

    def roll_back(self) -> None:
        """Discard everything that was not committed."""
        for log in self.streams.values():
            log.state.reset()
        self.consumers.reset()
        self.forget_used()
        self.source_graph.roll_back()
        self.version = -1

    def reload(self) -> None:
        """Increment the version after a change of streams or consumers, and load them again in this process too."""
        self._load(self._moved())

    def moved(self) -> None:
        """Increment the version after a change of streams or consumers, whose copy in this process is current."""
        self.version = self._moved()

    def _moved(self) -> int:
        self.db.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")
        return integer(self.db.value("SELECT value FROM meta WHERE key='catalogue'"))

    def _load(self, version: int) -> None:
        self.db.check_schema()
        known = {log.id: log for log in self.streams.values()}
        self.streams, told, self.damaged = {}, self.damaged, {}
        for row_id, name, raw, created in self.db.execute(_STREAMS).fetchall():
            try:
                config = decode_config(StreamConfig, raw)
                log = known.get(integer(row_id)) or StreamLog(self._env, integer(row_id), config, integer(created))
            except DamagedRowError:
                self._set_aside(text(name), "")
                continue
            log.configure(config)
            self.streams[log.name] = log
        for stream, consumer in self.consumers.load({log.id: log for log in self.streams.values()}):
            self._set_aside(stream, consumer)
        for key in self.damaged.keys() - told.keys():
            _log.error("%s", self.damaged[key], extra={"store": self.db.path, "stream": key[0]})
        routes = Routes()
        for log in self.streams.values():
            routes.add(log)
        self.routes = routes
        self.republishers = [log for log in self.streams.values() if log.config.republish is not None]
        # What was read since the last transaction may be gone.
        self._used.intersection_update(self.streams.values())
        self._used_consumers.intersection_update(self.consumers.by_name.values())
        self._load_source_graph()
        self.version = version

    def _set_aside(self, stream: str, consumer: str) -> None:
        self.damaged[stream, consumer] = error = CorruptConfigError(stream, consumer, self.db.path)
        log = self.streams.get(stream)
        if consumer and log is not None and log.config.retention == "interest":
            # What the consumer wants is unknown, so nothing may be removed, or published without it.
            self.damaged[stream, ""] = error
            for each in self.consumers.of(stream):
                self.consumers.drop(each)
            del self.streams[stream]

    def check_sound(self, stream: str, consumer: str = "") -> None:
        """Raise CorruptConfigError if this stream or consumer exists, and what its configuration was is unknown."""
        if (error := self.damaged.get((stream, consumer))) is not None:
            raise error

    def _load_source_graph(self) -> None:
        self.source_graph.rebuild(self.streams)
        self.interests.clear()
        self._wanted.clear()
        for log in self.streams.values():
            self.load_interest(log)

    def add_stream(self, row_id: int, config: StreamConfig, created: int) -> None:
        """Register a stream that was just created, without reloading the others: there may be many."""
        log = StreamLog(self._env, row_id, config, created)
        log.configure(config)
        self.streams[log.name] = log
        self.routes.add(log)
        if config.republish is not None:
            self.republishers.append(log)
        if self.source_graph.concerns(log):
            self._load_source_graph()
        else:
            self.load_interest(log)
        self.moved()

    def drop_stream(self, log: StreamLog, consumers: list[ConsumerLog]) -> None:
        """Remove a stream that was just deleted, and its consumers, from the registry."""
        for consumer in consumers:
            self.consumers.drop(consumer)
        self._used.discard(log)
        self._used_consumers.difference_update(consumers)
        del self.streams[log.name]
        self.routes.remove(log)
        self.republishers = [each for each in self.republishers if each is not log]
        self.interests.pop(log, None)
        self._wanted.pop(log.id, None)
        if self.source_graph.concerns(log):
            self._load_source_graph()
        self.moved()

    def load_interest(self, log: StreamLog) -> None:
        """Determine again which consumers want a stream's messages, if it has interest retention."""
        self._wanted.pop(log.id, None)
        if log.config.retention == "interest":
            interest = self.interests[log] = Interest(log, self.consumers_of(log), self.source_graph.takers(log))
            if (check := interest.check()) is not None:
                self._wanted[log.id] = check

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
            for log in self.streams.values():
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
        self._used.add(log)
        return log

    def consumer(self, stream: str, name: str) -> ConsumerLog:
        """Return a consumer with fresh state; raises StreamNotFoundError or ConsumerNotFoundError."""
        consumer = self.consumers.by_name.get((stream, name))
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
        self._used_consumers.add(consumer)
        return consumer

    def delivery(self, consumer: ConsumerLog, request: PullRequest, now: int) -> Delivery:
        """Return a delivery of a used consumer."""
        return Delivery(consumer, request, now, self.consumers.token_floor, self.interests.get(consumer.log))

    def settlement(self, consumer: ConsumerLog, now: int) -> Settlement:
        """Return a settlement of deliveries of a used consumer."""
        return Settlement(consumer, now, self.interests.get(consumer.log))

    def consumers_of(self, log: StreamLog) -> list[ConsumerLog]:
        """Return the consumers of a stream."""
        return self.consumers.of(log.name)

    @property
    def num_consumers(self) -> int:
        """The number of consumers."""
        return len(self.consumers.by_name)

    def listed_of(self, log: StreamLog) -> list[ConsumerLog]:
        """Return the consumers of a stream that are counted and listed: a direct one is known only to its creator."""
        return [consumer for consumer in self.consumers_of(log) if not consumer.config.direct]

    # --- what was used

    @property
    def used(self) -> set[StreamLog]:
        """The streams that the open transaction has used."""
        return self._used

    @property
    def used_consumers(self) -> set[ConsumerLog]:
        """The consumers that the open transaction has used."""
        return self._used_consumers

    def forget_used(self) -> None:
        """Forget what was used: the transaction is over."""
        self._used.clear()
        self._used_consumers.clear()

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

    def ticking(self) -> list[StreamLog]:
        """Return the streams in which time makes messages, with fresh state."""
        return [self.use(log) for log in self.streams.values() if self.is_ticking(log)]

    def is_retiring(self, log: StreamLog, now: int) -> bool:
        """Return whether messages are kept for consumers that have expired."""
        interest = self.interests.get(log)
        return interest is not None and any(self.use_consumer(consumer).is_idle(now) for consumer in interest.mortal)

    # --- interest

    def tidy(self, log: StreamLog, first: int) -> None:
        """Remove messages that no consumer wants, if a stream has interest retention."""
        if (interest := self.interests.get(log)) is not None:
            self.use(log)
            interest.tidy(first)

    def consumer_of(self, origin: StreamLog, consumer: SourceConsumer) -> ConsumedOrigin:
        """Return the consumer from which a source takes."""
        return ConsumedOrigin(self, self._bus, origin, consumer, self._now)

    def release(self, log: StreamLog, sequences: list[int]) -> None:
        """Remove messages that a source has taken, unless another consumer wants them."""
        self.interests[log].release(sequences)
