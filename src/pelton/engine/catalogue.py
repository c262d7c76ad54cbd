"""Which streams and consumers a store has, and who takes a subject: rows, with a copy in memory.

The copy is valid while ``PRAGMA data_version`` stands still. When it has moved, another process has written:
every state row is read again on its next use, and the catalogue itself if its version number (a row that
every change of a stream or consumer moves) is another one. A rolled back transaction invalidates everything
it has touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from pelton.api import AccountLimits, ConsumerConfig, Outgoing, StreamConfig, api_error, rfc3339
from pelton.api.events import ConsumerAction, ConsumerPaused, StreamAction
from pelton.api.times import ZERO_TIME
from pelton.consumers import ConsumerLog, Interest, begin, first_wanted, follow_roll_ups
from pelton.engine.account import Account
from pelton.engine.bus import Bus
from pelton.engine.followers import Followers
from pelton.engine.routes import Routes
from pelton.engine.saying import hand_on
from pelton.engine.waiting import News
from pelton.sourcing import Network
from pelton.storage import Database, message_table
from pelton.streams import Herald, IsWanted, Staging, StreamEnv, StreamLog
from pelton.subjects import Draw

L = TypeVar("L", bound=StreamLog)
# Streams may republish into each other: in a circle, messages end after this many steps.
_HOPS: Final = 16
_encode: Final = msgspec.json.Encoder().encode
_stream_config: Final = msgspec.json.Decoder(StreamConfig).decode


class Catalogue:
    """The streams and consumers of one open store; the participant of its transactions."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], int],
        bus: Bus,
        news: News,
        draw: Draw,
        new_id: Callable[[], str],
        limits: AccountLimits,
    ) -> None:
        self.db = database
        self.now = now
        self.bus = bus
        # Messages of the store's own (advisories); those of a stream wait in its own ``outbox``.
        self.outbox: list[Outgoing] = []
        self.herald = Herald(self.is_heard, lambda message: self.outbox.append(message), now, new_id)
        self.staging = Staging(database, self.herald.say)
        self.streams: dict[str, StreamLog] = {}
        # Those that republish.
        self.sayers: list[StreamLog] = []
        self._followers = Followers(database, self.herald)
        self.consumers = self._followers.by_name
        self.pushed = self._followers.pushed
        # Of the streams that keep messages by interest.
        self.interests: dict[StreamLog, Interest] = {}
        self.network = Network(database, self, now, draw)
        self.changed = False
        self._wanted: dict[int, IsWanted] = {}
        self.account = Account(self, limits)
        check_quota = self.account.check_quota if self.account.has_quota else None
        self._env = StreamEnv(database, self.is_heard, self.is_any_heard, draw, self._wanted, check_quota, self.network)
        self._routes = Routes()
        # The stream that takes a subject, or None; a new one whenever streams have changed. As with families of them.
        self.route, self.family = self._routes.find, self._routes.family
        self._seen = -1
        self.version = -1
        self._used: set[StreamLog] = set()
        self._used_consumers: set[ConsumerLog] = set()
        self.news = news
        # Streams that the last transaction has met, and in which time makes messages.
        self.ticked: list[StreamLog] = []

    # --- transactions

    def refresh(self) -> None:
        """Notice what other processes have written; inside a transaction or snapshot."""
        seen = self.db.seen()
        if seen == self._seen:
            return
        for log in self.streams.values():
            log.state.stale = True
        self._followers.doubt()
        self.network.invalidate()
        version = int(self.db.value("SELECT value FROM meta WHERE key='catalogue'"))
        if version != self.version:
            self._load(version)
        self.bus.refresh()
        # Only now: what could not be read has not been seen.
        self._seen = seen

    def flush(self) -> None:
        """Write all that the transaction holds in memory, and hand on what its streams say to others."""
        for _ in range(_HOPS):
            self._flush_fed()
            if not self.outbox:
                break
            outbox, self.outbox = self.outbox, []
            hand_on(self, outbox)
        else:
            # A circle, and it ends: what was stored last is written, and not said again.
            self._flush_fed()
            self.outbox.clear()
        if self.bus.listening and self.bus.flush():
            self.changed = True
        self.ticked = [log for log in self._used if self.is_ticking(log)]
        self._used.clear()
        self._used_consumers.clear()

    def _flush_fed(self) -> None:
        self._flush_used()
        while self.network.has_feeds and self.network.settle():
            self._flush_used()

    def _flush_used(self) -> None:
        for log in self._used:
            if log.state.effects.rolled_up:
                follow_roll_ups(log, [self.use_consumer(each) for each in self.consumers_of(log.name)])
        for consumer in self._used_consumers:
            if consumer.dirty:
                self.changed = True
                self.news.of_consumer((consumer.log.name, consumer.name))
                consumer.flush()
        # What is stored in one may be carried into others.
        while dirty := [log for log in self._used if log.state.dirty]:
            for log in dirty:
                self.changed = True
                log.flush()
                self.news.of(log)
        for log in self._used:
            if log.state.has_changed:
                # Written before the end of the transaction, by a roll-up for one.
                self.changed = True
                self.news.of(log)
            if republished := log.state.effects.republished:
                self.outbox += republished
                republished.clear()

    def roll_back(self) -> None:
        """Forget all that was not committed."""
        for log in self.streams.values():
            log.reset()
        self._followers.reset()
        self._used.clear()
        self._used_consumers.clear()
        self.news.clear()
        self.outbox.clear()
        self.bus.reset()
        self.staging.rolled_back()
        self.network.roll_back()
        self.changed = False
        self._seen = self.version = -1

    def _load(self, version: int) -> None:
        self.db.check_schema()
        known = {log.id: log for log in self.streams.values()}
        self.streams = {}
        self._routes = Routes()
        self.route, self.family = self._routes.find, self._routes.family
        for row_id, raw, created in self.db.execute("SELECT id, config, created FROM streams ORDER BY id").fetchall():
            config = _stream_config(raw)  # type: ignore[arg-type]  # the column is a blob
            log = known.get(int(str(row_id))) or StreamLog(self._env, int(str(row_id)), config, int(str(created)))
            log.configure(config)
            self._add(log)
        self.sayers = [log for log in self.streams.values() if log.config.republish is not None]
        self._followers.load({log.id: log for log in self.streams.values()})
        self.network.rebuild(self.streams)
        self._load_interests()
        self.version = version

    def _load_interests(self) -> None:
        self.interests = {}
        self._wanted.clear()
        for log in self.streams.values():
            self._load_interest(log.name)

    def _load_interest(self, stream: str) -> None:
        log = self.streams[stream]
        self._wanted.pop(log.id, None)
        if log.config.retention == "interest":
            interest = self.interests[log] = Interest(log, self.consumers_of(log.name), self.network.takers(log))
            if (check := interest.check()) is not None:
                self._wanted[log.id] = check

    def _add(self, log: StreamLog) -> None:
        self.streams[log.name] = log
        self._routes.add(log)

    # --- look-up

    @property
    def token_floor(self) -> int:
        """What fencing tokens of deliveries are counted from."""
        return self._followers.token_floor

    def stream(self, name: str) -> StreamLog:
        """Return a stream with fresh state; raises StreamNotFoundError."""
        log = self.streams.get(name)
        if log is None:
            raise api_error("JSStreamNotFoundErr", stream=name)
        return self.use(log)

    def use(self, log: L) -> L:
        if log.state.stale:
            log.load()
        self._used.add(log)
        return log

    def consumer(self, stream: str, name: str) -> ConsumerLog:
        """Return a consumer with fresh state; raises StreamNotFoundError or ConsumerNotFoundError."""
        consumer = self.consumers.get((stream, name))
        if consumer is None:
            self.stream(stream)
            raise api_error("JSConsumerNotFoundErr", stream=stream, consumer=name)
        self.use(consumer.log)
        return self.use_consumer(consumer)

    def use_consumer(self, consumer: ConsumerLog) -> ConsumerLog:
        if consumer.stale:
            consumer.load()
        self._used_consumers.add(consumer)
        return consumer

    def is_heard(self, subject: str) -> bool:
        """Return whether anybody would get what is said under a subject: a stream, or whoever listens."""
        return self.route(subject) is not None or self.bus.hears(subject)

    def is_any_heard(self, subjects: str) -> bool:
        """Return False where nobody would get what is said under any subject of a filter; a quick look."""
        return self._routes.reaches(subjects) or self.bus.listening

    def is_ticking(self, log: StreamLog) -> bool:
        """Return whether time makes messages in a stream, or room for what it takes from others."""
        return log.state.is_ticking or self.network.is_ticking(log)

    def ticking(self) -> list[StreamLog]:
        """Return the streams in which time makes messages, with fresh state."""
        return [self.use(log) for log in self.streams.values() if self.is_ticking(log)]

    def consumers_of(self, stream: str) -> list[ConsumerLog]:
        return self._followers.of(stream)

    def listed_of(self, stream: str) -> list[ConsumerLog]:
        """Return the consumers of a stream that count and are listed: of a direct one knows who made it."""
        return [consumer for consumer in self._followers.of(stream) if not consumer.config.direct]

    # --- changes, inside a write transaction

    def bump(self) -> None:
        """Tell every process, ourselves included, that streams or consumers have changed."""
        self._load(self._moved())

    def _moved(self) -> int:
        """Tell every other process that streams or consumers have changed; return the catalogue's new version."""
        self.db.execute("UPDATE meta SET value=value+1 WHERE key='catalogue'")
        self.changed = True
        return int(self.db.value("SELECT value FROM meta WHERE key='catalogue'"))

    def create_stream(self, config: StreamConfig, now: int) -> StreamLog:
        run = self.db.execute
        run("INSERT INTO streams(name, config, created) VALUES(?, ?, ?)", (config.name, _encode(config), now))
        row_id = self.db.connection.last_insert_rowid()
        run(message_table(row_id))
        first = max(config.first_seq, 1)
        run("INSERT INTO stream_state VALUES(?, 0, 0, ?, ?, 0, 0)", (row_id, first, first - 1))
        self.bump()
        self.network.changed(config.name)
        self.herald.say(StreamAction(stream=config.name, action="create"))
        return self.stream(config.name)

    def update_stream(self, log: StreamLog, config: StreamConfig) -> StreamLog:
        counted = log in self.interests
        if not config.allow_atomic:
            self.staging.drop_stream(log.id)
        origins = self.network.origins(log)
        self.db.execute("UPDATE streams SET config=? WHERE id=?", (_encode(config), log.id))
        self.bump()
        self.network.changed(config.name)
        for each in [*origins, *(() if counted else (log,))]:
            self.tidy(each, 0)
        self.herald.say(StreamAction(stream=config.name, action="modify"))
        return self.stream(config.name)

    def delete_stream(self, log: StreamLog) -> None:
        consumers = [self.use_consumer(consumer) for consumer in self.consumers_of(log.name)]
        self._followers.drop_rows(consumers)
        self.staging.drop_stream(log.id)
        origins = self.network.drop(log)
        for sql in (
            "DELETE FROM streams WHERE id=?",
            "DELETE FROM stream_state WHERE id=?",
            "DELETE FROM subjects WHERE stream=?",
            "DELETE FROM ids WHERE stream=?",
            "DELETE FROM timers WHERE stream=?",
            "DELETE FROM schedules WHERE stream=?",
            "DELETE FROM quarantine WHERE stream=?",
        ):
            self.db.execute(sql, (log.id,))
        self.db.execute(f"DROP TABLE {log.table.name}")
        log.reset()
        self._used.discard(log)
        self._used_consumers.difference_update(consumers)
        self.news.of_all(log.name)
        self.bump()
        for origin in origins:
            self.tidy(origin, 0)
        self._say_deleted(consumers)
        self.herald.say(StreamAction(stream=log.name, action="delete"))

    def create_consumer(self, log: StreamLog, config: ConsumerConfig, cursor: int, now: int) -> ConsumerLog:
        run = self.db.execute
        columns, raw = "(stream, name, config, created, token_floor) VALUES(?, ?, ?, ?, ?)", _encode(config)
        run(f"INSERT INTO consumers{columns}", (log.id, config.name, raw, now, self.token_floor))
        row_id = self.db.connection.last_insert_rowid()
        ahead_last, removals = cursor, -1
        state = (row_id, 0, cursor, cursor, (1 << 63) - 1, 0, 0, 0, ahead_last, removals, now, 0, 0, 0, 0)
        run("INSERT INTO consumer_state VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", state)
        # There may be many: those that have not changed are not read again.
        self._followers.create(row_id, log, config, raw, now)
        self._load_interest(log.name)
        self.version = self._moved()
        consumer = self.consumer(log.name, config.name)
        begin(consumer)
        self.herald.say(ConsumerAction(stream=log.name, consumer=config.name, action="create"))
        if config.pause_until:
            self.say_paused(consumer)
        return consumer

    def update_consumer(self, consumer: ConsumerLog, config: ConsumerConfig) -> ConsumerLog:
        old, first = consumer.config, first_wanted(consumer)
        raw = _encode(config)
        self.db.execute("UPDATE consumers SET config=? WHERE id=?", (raw, consumer.id))
        consumer.configure(config)
        self._followers.add(consumer, raw)
        self._load_interest(consumer.log.name)
        self.version = self._moved()
        consumer = self.consumer(consumer.log.name, config.name)
        self.news.of_consumer((consumer.log.name, consumer.name))
        if consumer.reconfigured(old):
            self.tidy(consumer.log, first)
        return consumer

    def delete_consumers(self, consumers: list[ConsumerLog]) -> None:
        first: dict[StreamLog, int] = {}
        for consumer in consumers:
            first[consumer.log] = min(first_wanted(consumer), first.get(consumer.log, consumer.cursor + 1))
        self._followers.drop_rows(consumers)
        for consumer in consumers:
            consumer.reset()
            self._used_consumers.discard(consumer)
            self.news.of_all(consumer.log.name)
            self._followers.drop(consumer)
        for log in first:
            self._load_interest(log.name)
        self.version = self._moved()
        for log, seq in first.items():
            self.tidy(log, seq)
        self._say_deleted(consumers)

    def say_paused(self, consumer: ConsumerLog) -> None:
        until = consumer.paused_until
        paused = ConsumerPaused(
            stream=consumer.log.name,
            consumer=consumer.name,
            paused=until > self.now(),
            pause_until=rfc3339(until) if until else ZERO_TIME,
        )
        self.herald.say(paused)

    def _say_deleted(self, consumers: list[ConsumerLog]) -> None:
        for consumer in consumers:
            self.herald.say(ConsumerAction(stream=consumer.log.name, consumer=consumer.name, action="delete"))

    def tidy(self, log: StreamLog, first: int) -> None:
        """Remove what nobody wants any more, where that is what a stream keeps messages for."""
        if (interest := self.interests.get(log)) is not None:
            self.use(log)
            interest.tidy(first)

    def released(self, log: StreamLog, sequences: list[int]) -> None:
        """Remove what a source has taken, where nobody else wants it."""
        self.interests[log].released(sequences)

    def retire(self, log: StreamLog, now: int) -> None:
        """Remove consumers that nobody uses any more where messages are kept for them."""
        if self.is_retiring(log, now):
            self.sweep(now)

    def is_retiring(self, log: StreamLog, now: int) -> bool:
        """Return whether messages are kept for consumers whose time is over."""
        interest = self.interests.get(log)
        return interest is not None and any(self.use_consumer(consumer).is_idle(now) for consumer in interest.mortal)

    def sweep(self, now: int) -> None:
        """Remove consumers that nobody has used for their ``inactive_threshold``."""
        idle = self._followers.idle(now, self.use_consumer)
        if idle:
            self.delete_consumers(idle)
