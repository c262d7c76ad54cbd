"""Create, update and delete streams and consumers, inside a write transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pelton.api import ConsumerConfig, StreamConfig, rfc3339
from pelton.api.events import ConsumerAction, ConsumerPaused, StreamAction
from pelton.api.times import NEVER, ZERO_TIME
from pelton.consumers import ConsumerLog, begin, first_wanted
from pelton.engine.session.catalogue import Change, ConsumerRow
from pelton.engine.session.session import Session
from pelton.storage import message_table
from pelton.streams import StreamLog
from pelton.streams.rules import encode_config

_ROWS_OF_A_STREAM: Final = (
    "DELETE FROM streams WHERE id=?",
    "DELETE FROM pelton_deliveries WHERE consumer=0 AND seq=?",
    "DELETE FROM subjects WHERE stream=?",
    "DELETE FROM ids WHERE stream=?",
    "DELETE FROM timers WHERE stream=?",
    "DELETE FROM schedules WHERE stream=?",
    "DELETE FROM quarantine WHERE stream=?",
)

# --- streams


def create_stream(session: Session, config: StreamConfig) -> StreamLog:
    """Create a stream; its configuration must be checked already."""
    run, now = session.db.execute, session.now()
    run("INSERT INTO streams(name, config, created) VALUES(?, ?, ?)", (config.name, encode_config(config), now))
    row_id = session.db.connection.last_insert_rowid()
    run(message_table(row_id))
    first = max(config.first_seq, 1)
    run("INSERT INTO stream_state VALUES(?, 0, 0, ?, ?, 0, 0, ?)", (row_id, first, first - 1, first - 1))
    session.registry.add_stream(row_id, config, now)
    session.changed = True
    session.registry.source_graph.note_change(config.name)
    session.advise(StreamAction(stream=config.name, action="create"))
    return session.registry.stream(config.name)


def update_stream(session: Session, log: StreamLog, config: StreamConfig) -> StreamLog:
    """Replace a stream's configuration with one that is checked already."""
    registry = session.registry
    was_counted = log.config.retention == "interest"
    if not config.allow_atomic:
        session.staging.drop_stream(log.id)
    origins = registry.source_graph.origins(log)
    raw = encode_config(config)
    session.db.execute("UPDATE streams SET config=? WHERE id=?", (raw, log.id))
    registry.update_stream(log, raw)
    session.changed = True
    registry.source_graph.note_change(config.name)
    for each in [*origins, *(() if was_counted else (log,))]:
        registry.tidy(each, 0)
    session.advise(StreamAction(stream=config.name, action="modify"))
    return registry.stream(config.name)


def delete_stream(session: Session, log: StreamLog) -> None:
    """Delete a stream with its messages and consumers."""
    registry = session.registry
    consumers = [registry.use_consumer(consumer) for consumer in registry.consumers_of(log)]
    registry.consumers.drop_rows(consumers)
    session.staging.drop_stream(log.id)
    origins = registry.source_graph.drop(log)
    for sql in _ROWS_OF_A_STREAM:
        session.db.execute(sql, (log.id,))
    session.db.execute(f"DROP TABLE {log.table.name}")
    log.state.reset()
    session.news.streams.add(log.name)
    registry.drop_stream(log, consumers)
    session.changed = True
    for origin in origins:
        registry.tidy(origin, 0)
    _advise_deleted(session, consumers)
    session.advise(StreamAction(stream=log.name, action="delete"))


# --- consumers


def create_consumer(session: Session, log: StreamLog, config: ConsumerConfig, cursor: int) -> ConsumerLog:
    """Create a consumer that starts after ``cursor``; its configuration must be checked already."""
    registry, now = session.registry, session.now()
    run, raw = session.db.execute, encode_config(config)
    columns = "(stream, name, config, created, token_floor) VALUES(?, ?, ?, ?, ?)"
    run(f"INSERT INTO consumers{columns}", (log.id, config.name, raw, now, registry.consumers.token_floor))
    row_id = session.db.connection.last_insert_rowid()
    ahead_last, removals = cursor, -1
    state = (row_id, 0, cursor, cursor, NEVER, 0, 0, 0, ahead_last, removals, now, 0, 0, 0, 0, 0, 0)
    run("INSERT INTO consumer_state VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", state)
    # There may be many consumers, so do not reload the others.
    floor = registry.consumers.token_floor
    registry.consumers.create(ConsumerRow.of(row_id, log.name, config.name, raw, now, floor))
    registry.load_interest(log)
    consumers_moved(session, [log], [row_id])
    consumer = registry.consumer(log.name, config.name)
    begin(consumer)
    session.advise(ConsumerAction(stream=log.name, consumer=config.name, action="create"))
    if consumer.paused_until > now:
        advise_paused(session, consumer)
    return consumer


def update_consumer(session: Session, consumer: ConsumerLog, config: ConsumerConfig) -> ConsumerLog:
    """Replace a consumer's configuration with one that is checked already."""
    registry, log = session.registry, consumer.log
    old, first = consumer.config, first_wanted(consumer)
    raw = encode_config(config)
    session.db.execute("UPDATE consumers SET config=? WHERE id=?", (raw, consumer.id))
    registry.consumers.put(
        ConsumerRow.of(consumer.id, log.name, config.name, raw, consumer.created, consumer.token_floor)
    )
    registry.load_interest(log)
    consumers_moved(session, [log], [consumer.id])
    consumer = registry.consumer(log.name, config.name)
    session.news.consumers.add((log.name, consumer.name))
    if consumer.reconfigured(old):
        registry.tidy(log, first)
    return consumer


def delete_consumers(session: Session, consumers: list[ConsumerLog]) -> None:
    """Delete consumers, and the messages that no other consumer wants."""
    registry = session.registry
    first: dict[StreamLog, int] = {}
    for consumer in consumers:
        first[consumer.log] = min(first_wanted(consumer), first.get(consumer.log, consumer.cursor + 1))
    registry.consumers.drop_rows(consumers)
    for consumer in consumers:
        consumer.reset()
        registry.used_consumers.discard(consumer)
        session.news.streams.add(consumer.log.name)
        registry.consumers.drop((consumer.log.name, consumer.name))
    for log in first:
        registry.load_interest(log)
    consumers_moved(session, first, [consumer.id for consumer in consumers])
    for log, seq in first.items():
        registry.tidy(log, seq)
    _advise_deleted(session, consumers)


def consumers_moved(session: Session, logs: Iterable[StreamLog], consumers: Iterable[int]) -> None:
    """Note that consumers of streams were created, changed or deleted, by row id."""
    for log in logs:
        session.registry.source_graph.consumers_changed(log)
    session.registry.moved(Change(consumers=tuple(consumers)))
    session.changed = True


def advise_paused(session: Session, consumer: ConsumerLog) -> None:
    """Send the advisory that a consumer is paused or resumed."""
    until = consumer.paused_until
    paused = ConsumerPaused(
        stream=consumer.log.name,
        consumer=consumer.name,
        paused=until > session.now(),
        pause_until=rfc3339(until) if until else ZERO_TIME,
    )
    session.advise(paused)


def _advise_deleted(session: Session, consumers: list[ConsumerLog]) -> None:
    for consumer in consumers:
        session.advise(ConsumerAction(stream=consumer.log.name, consumer=consumer.name, action="delete"))


# --- inactive consumers


def retire(session: Session, log: StreamLog, now: int) -> None:
    """Delete inactive consumers, if messages of a stream are kept for one of them."""
    if session.registry.is_retiring(log, now):
        sweep(session, now)


def sweep(session: Session, now: int) -> None:
    """Delete the consumers that were not used for their ``inactive_threshold``, unless the store is only read.

    Raises SnapshotOnlyError if there are any, in a snapshot.
    """
    if session.db.is_read_only:
        return
    is_consumed = session.registry.source_graph.is_consumed
    found = session.registry.consumers.idle(now, session.registry.use_consumer)
    idle = [consumer for consumer in found if not is_consumed(consumer.log, consumer.name)]
    if idle:
        session.db.check_changing()
        delete_consumers(session, idle)
