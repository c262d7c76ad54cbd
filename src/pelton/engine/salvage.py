"""Recounts a store: compares every recorded number with its rows.

A store keeps small sums beside its rows (numbers of messages, of bytes, of pending acks) so that no operation has to
count. After crashes, full disks and concurrent processes those sums must still be true; :func:`recount` returns where
they are not. It reads one snapshot, changes nothing, and may run while other processes use the store.

**Creates a new store from what a damaged one still holds.** All readable rows are copied (``storage/salvage.py``). Then
everything that is recorded about them is computed again from the copied rows: counts, bytes, bounds, subjects. If
messages of a stream are missing, or rows of a consumer could not be read, the stream's consumers go back to the oldest
message they had not settled: later messages may be redelivered, and no copied message is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import msgspec

from pelton.api import AccountLimits, ConsumerConfig, StreamConfig
from pelton.consumers import NEVER, ConsumerLog, Interest, consumer_info
from pelton.engine.bus import Bus, NoPeers
from pelton.engine.session import Registry, Session, Surroundings
from pelton.runtime import Halt
from pelton.storage import TAIL, DamagedRowError, Database, Fault, ReadOnlyDatabase, intact, integer, integers, text
from pelton.storage.copies import unfinished
from pelton.storage.faults import translated
from pelton.storage.messages import DAMAGED_COLUMNS, ORIGINAL_LENGTH, unpack
from pelton.storage.older_schemas import show_as_present
from pelton.storage.salvage import copy_readable
from pelton.streams import StreamLog
from pelton.streams.rules import decode_config, encode_config, mended_config
from pelton.streams.state import COSTS

__all__ = ["recount"]

# SQLite's own steps between two checks whether to halt: about a millisecond.
_STEPS: Final = 10_000
_TRIES: Final = 5
_STATES: Final = (("stream_state", "streams"), ("consumer_state", "consumers"))
_OF_STREAMS: Final = (
    ("subjects", "stream"),
    ("ids", "stream"),
    ("quarantine", "stream"),
    ("consumers", "stream"),
    ("timers", "stream"),
    ("schedules", "stream"),
    ("sourcing", "stream"),
)
_COUNTED_OF_CONSUMERS: Final = tuple(
    (table, "consumer")
    for table in ("pending", "pending_removed", "claims", "ready", "exhausted", "pulls", "pins", "nearest")
)


def recount(database_path: str, key: bytes | None = None, halt: Halt | None = None) -> list[str]:
    """Return a description of every contradiction in the store file (encrypted with `key`); empty if there is none.

    If SQLite finds damaged pages, only those are returned: nothing on them can be counted.

    ``halt`` stops it early. Raises the ``Fault`` of a file that cannot be opened as a store.
    """
    for _ in range(_TRIES):
        with closing(ReadOnlyDatabase(database_path, key=key, torn=True)) as database:
            if halt is not None:
                database.connection.set_progress_handler(lambda: halt.is_asked_for, _STEPS)
            found = _contradictions_of(database)
            if database.is_current:
                return found
    raise Fault("busy", database_path, "it is opened and closed again and again while it is read")


def _contradictions_of(database: ReadOnlyDatabase) -> list[str]:
    found: list[str] = []
    try:
        with database.reading():
            for problem in _contradictions(database):
                found.append(problem)
    except Fault as fault:
        if fault.kind != "corrupt" and database.is_current:
            raise
        found.append(f"SQLite: {fault.detail}")
    return found


def _contradictions(database: Database) -> Iterator[str]:
    damage = [text for (text,) in database.execute("PRAGMA integrity_check").fetchall() if text != "ok"]
    if damage:
        yield from (f"SQLite: {text}" for text in damage)
        return
    yield from _orphans(database)
    # Nothing is appended, so the clock is not used.
    session = Session(
        database,
        Bus(database, NoPeers(), lambda members: members[0]),
        Surroundings(lambda: 0, lambda below: 0, str, lambda: False, lambda consumer: 0, AccountLimits()),
    )
    session.refresh()
    registry = session.registry
    for damaged in dict.fromkeys(registry.damaged.values()):
        yield f"{damaged.reason}: its configuration is damaged"
    for stream in registry.streams.values():
        for check in (_stream, _subjects, _rows, _timers):
            for problem in _found(check(database, stream)):
                yield f"stream {stream.name!r}: {problem}"
    yield from _found(_waiting(database, registry))
    for keeping in registry.streams.values():
        interest = registry.interest_of(keeping)
        for seq in () if interest is None else _kept_for_nobody(database, keeping, interest):
            yield f"stream {keeping.name!r}: message {seq} is kept although no consumer wants it"
    for consumer in registry.consumers.by_name.values():
        for check_consumer in (_consumer, _claims, _ahead, _met, _turns):
            for problem in _found(check_consumer(database, consumer)):
                yield f"consumer {consumer.log.name}/{consumer.name}: {problem}"
    yield from _found(_said(database))


def _found(problems: Iterator[str]) -> Iterator[str]:
    """Yield problems; rows whose values are not even of the right type end a check."""
    try:
        yield from problems
    except (TypeError, ValueError, AssertionError) as error:
        yield f"its rows are damaged ({error})"


def _orphans(database: Database) -> Iterator[str]:
    """Yield rows whose stream or consumer does not exist, and streams and consumers without their rows."""
    for table, owner in _STATES:
        for left, right in ((table, owner), (owner, table)):
            for (row_id,) in database.execute(f"SELECT id FROM {left} WHERE id NOT IN (SELECT id FROM {right})"):
                yield f"{left} has id {row_id}, {right} has not"
    for tables, owner in ((_OF_STREAMS, "streams"), (_COUNTED_OF_CONSUMERS, "consumers")):
        for table, column in tables:
            sql = f"SELECT DISTINCT {column} FROM {table} WHERE {column} NOT IN (SELECT id FROM {owner})"
            for (row_id,) in database.execute(sql):
                yield f"{table} has rows of {column} {row_id}, which does not exist"
    for consumer, seq in database.execute("SELECT consumer, seq FROM pelton_deliveries WHERE consumer<0"):
        yield f"pelton_deliveries has a row {seq} of consumer {consumer}, which cannot exist"
    sql = (
        "SELECT name FROM sqlite_schema WHERE name GLOB 'm_[0-9]*' AND substr(name, 3) NOT IN (SELECT id FROM streams)"
    )
    for (name,) in database.execute(sql):
        yield f"the message table {name} belongs to no stream"


def _compare(kept: dict[str, Any], counted: dict[str, Any]) -> Iterator[str]:
    for what, value in kept.items():
        if value != counted[what]:
            yield f"{what} is recorded as {value}, but the rows give {counted[what]}"


def _stream(database: Database, stream: StreamLog) -> Iterator[str]:
    stream.state.load()
    sql = f"SELECT length(CAST(subject AS BLOB)), {ORIGINAL_LENGTH}, ifnull(length(hdr), -1) FROM {stream.table.name}"
    sizes = [stream.state.cost.size(*integers(row)) for row in database.execute(sql)]
    [(least, greatest)] = database.execute(f"SELECT min(seq), max(seq) FROM {stream.table.name}").fetchall()
    first = stream.state.last + 1 if least is None else integer(least)
    yield from _compare(
        {"msgs": stream.state.msgs, "bytes": stream.state.bytes, "first": stream.state.first},
        {"msgs": len(sizes), "bytes": sum(sizes), "first": first},
    )
    if greatest is not None and integer(greatest) > stream.state.last:
        yield f"last is recorded as {stream.state.last}, but the rows reach {greatest}"
    counted = integer(database.value("SELECT last FROM stream_state WHERE id=?", (stream.id,)))
    sql = f"SELECT count(*) FROM {stream.table.name} WHERE seq>?"
    if (after := int(database.value(sql, (counted,)))) != stream.state.last - counted:
        yield f"last is recorded as {counted} and is {stream.state.last}, but the rows after it are {after}"
    newest = database.value("SELECT max(seq) FROM ids WHERE stream=?", (stream.id,))
    if newest is not None and newest > stream.state.last:
        yield f"a message id is recorded for sequence {newest}, after the last, {stream.state.last}"


def _subjects(database: Database, stream: StreamLog) -> Iterator[str]:
    kept = {
        subject: numbers
        for subject, *numbers in database.execute(
            "SELECT CAST(subject AS BLOB), first, last, msgs FROM subjects WHERE stream=?", (stream.id,)
        )
    }
    # Later messages are not counted yet.
    upto = stream.state.subjects.upto
    if upto > stream.state.last:
        yield f"subjects are recorded as counted up to {upto}, but the last message is {stream.state.last}"
    sql = (
        f"SELECT CAST(subject AS BLOB), min(seq), max(seq), count(*) FROM {stream.table.name} WHERE seq<=? "
        "GROUP BY subject"
    )
    found = {subject: numbers for subject, *numbers in database.execute(sql, (upto,))}
    for subject in kept.keys() | found.keys():
        first, last, msgs = integers(kept.get(subject, (0, 0, 0)))
        low, high, count = integers(found.get(subject, (first, last, 0)))
        if msgs != count or (subject in kept and count == 0):
            yield f"subject {subject!r} is recorded with {msgs} messages, but the rows give {count}"
        if low < first or high > last:
            yield f"subject {subject!r} is recorded within {first}..{last}, but its rows are in {low}..{high}"


def _rows(database: Database, stream: StreamLog) -> Iterator[str]:
    sql = f"SELECT {DAMAGED_COLUMNS} FROM {stream.table.name} ORDER BY seq"
    for seq, ts, subject, hdr, data, crc in database.execute(sql):
        text = subject.decode(errors="replace") if isinstance(subject, bytes) else subject
        if not intact(unpack((seq, ts, text, hdr, data, crc))):
            yield f"message {seq} does not match its checksum"


def _timers(database: Database, stream: StreamLog) -> Iterator[str]:
    """Yield deadlines and schedules without their message."""
    there = f"EXISTS(SELECT 1 FROM {stream.table.name} m WHERE m.seq=t.seq"
    for (seq,) in database.execute(f"SELECT seq FROM timers t WHERE stream=? AND NOT {there})", (stream.id,)):
        yield f"message {seq} has a deadline but does not exist"
    sql = f"SELECT subject, seq FROM schedules t WHERE stream=? AND NOT {there} AND m.subject=t.subject)"
    for subject, seq in database.execute(sql, (stream.id,)):
        yield f"subject {subject!r} has message {seq} as its schedule, which does not exist"


def _waiting(database: Database, registry: Registry) -> Iterator[str]:
    """Yield contradictions in the positions of sources, and in the messages that they have parked."""
    sql = "SELECT DISTINCT source FROM parked WHERE source NOT IN (SELECT id FROM sourcing)"
    for (source,) in database.execute(sql):
        yield f"parked has rows of source {source}, which does not exist"
    for stream in registry.streams.values():
        for link in registry.source_graph.links(stream):
            position = link.position
            if not position.load():
                continue
            parked = position.all_parked()
            where = f"stream {stream.name!r}, source {position.key!r}"
            if position.parked != len(parked):
                yield f"{where}: {position.parked} messages are recorded as waiting, but the rows give {len(parked)}"
            if any(seq > position.seq for seq in parked):
                yield f"{where}: a message waits beyond the position, {position.seq}"
            there = set(link.origin.table.sequences(min(parked), max(parked), len(parked) << 20)) if parked else set()
            if lost := sorted(set(parked) - there):
                yield f"{where}: messages {lost} wait but do not exist"


def _consumer(database: Database, consumer: ConsumerLog) -> Iterator[str]:
    consumer.load()
    sql = "SELECT count(*), count(DISTINCT dseq), max(dseq), min(n), min(due), max(seq) FROM pending WHERE consumer=?"
    count, names, dseq, least_n, due, seq = database.execute(sql, (consumer.id,)).fetchall()[0]
    yield from _compare({"unsettled": consumer.unsettled}, {"unsettled": count})
    over = database.value("SELECT min(due) FROM pending_removed WHERE consumer=?", (consumer.id,))
    if over is not None and int(over) < consumer.due:
        yield f"the wait for a removed message ends at {over}, but the earliest is recorded as {consumer.due}"
    if not count:
        return
    if names != count:
        yield f"{count} pending deliveries share {names} numbers"
    if integer(dseq) > consumer.dseq:
        yield f"a pending delivery has number {dseq}, but the last is recorded as {consumer.dseq}"
    if integer(least_n) < 1:
        yield f"a pending message counts {least_n} deliveries"
    if integer(due) < consumer.due:
        yield f"a message is due at {due}, but the earliest is recorded as {consumer.due}"
    if integer(seq) > max(consumer.cursor, consumer.delivered):
        yield f"message {seq} is pending, but the cursor is at {consumer.cursor}"


def _claims(database: Database, consumer: ConsumerLog) -> Iterator[str]:
    """Yield violations of the invariants of exclusive subjects, as ``consumers/log.py`` states them."""
    run, key = database.execute, (consumer.id,)
    pending = dict(run("SELECT seq, subject FROM pending WHERE consumer=?", key))
    ready = dict(run("SELECT seq, subject FROM ready WHERE consumer=?", key))
    held: dict[Any, Any] = {}
    parked: dict[Any, Any] = {}
    by_subject: dict[Any, list[int]] = {}
    for seq, subject, holds in run("SELECT seq, subject, held FROM claims WHERE consumer=? ORDER BY seq", key):
        (held if holds else parked)[seq] = subject
        by_subject.setdefault(subject, []).append(integer(holds))
    for subject, holds in by_subject.items():
        if sum(holds) > consumer.per_subject:
            yield f"subject {subject!r} has {sum(holds)} claims held, but the limit is {consumer.per_subject}"
        if sorted(holds, reverse=True) != holds:
            yield f"subject {subject!r} has a claim held that is not among its oldest"
        if 0 in holds and sum(holds) < consumer.per_subject:
            yield f"subject {subject!r} has a message waiting although only {sum(holds)} claims are held"
    claimed = {seq: subject for seq, subject in pending.items() if subject is not None}
    # Without a limit per subject, only messages that were last of their subject at the start are ready, none claimed.
    expected = {**claimed, **ready} if consumer.per_subject else claimed
    if held != expected:
        odd = set(held.items()) ^ set(expected.items())
        yield f"claims held, and deliveries pending or ready, differ in {sorted(odd)}"
    if set(claimed) & set(ready):
        yield f"both pending and ready: {sorted(set(claimed) & set(ready))}"
    yield from _compare({"waiting": consumer.waiting}, {"waiting": len(ready) + len(parked)})
    last = int(database.value("SELECT ifnull(max(turn), 0) FROM ready WHERE consumer=?", key))
    if last > consumer.claims.turns:
        yield f"turn {last} was given, but the last one is recorded as {consumer.claims.turns}"


def _kept_for_nobody(database: Database, stream: StreamLog, interest: Interest) -> set[int]:
    # A damaged message is never delivered, and kept for inspection.
    damaged = {seq for (seq,) in database.execute("SELECT seq FROM quarantine WHERE stream=?", (stream.id,))}
    stored = stream.table.sequences(0, stream.state.last, max(stream.state.msgs, 1))
    return interest.unwanted(seq for seq in stored if seq not in damaged)


def _ahead(database: Database, consumer: ConsumerLog) -> Iterator[str]:
    log = consumer.log
    if consumer.ahead_removals == log.state.removals:
        counted = log.table.count(consumer.cursor + 1, consumer.ahead_last, consumer.condition)
        yield from _compare({"ahead": consumer.ahead}, {"ahead": counted})


def _met(database: Database, consumer: ConsumerLog) -> Iterator[str]:
    """Yield messages in several states, beyond the cursor, or unsettled below the ack floor."""
    sql = (
        "SELECT seq, group_concat(state) FROM (SELECT seq, 'pending' AS state FROM pending WHERE consumer=?1 UNION ALL "
        "SELECT seq, 'ready' FROM ready WHERE consumer=?1 UNION ALL "
        "SELECT seq, 'parked' FROM claims WHERE consumer=?1 AND held=0 UNION ALL "
        "SELECT seq, 'exhausted' FROM exhausted WHERE consumer=?1) GROUP BY seq"
    )
    met = {integer(seq): text(states) for seq, states in database.execute(sql, (consumer.id,)).fetchall()}
    for seq, states in met.items():
        if "," in states:
            yield f"message {seq} is at once {states}"
        if seq > consumer.cursor:
            yield f"message {seq} is {states}, but the cursor is at {consumer.cursor}"
    counted = consumer.ahead_removals == consumer.log.state.removals
    stored = set(consumer.log.table.sequences(0, consumer.log.state.last, max(consumer.log.state.msgs, 1)))
    for seq in [seq for seq, states in met.items() if states in ("ready", "parked") and seq not in stored]:
        if counted:
            yield f"message {seq} waits but does not exist"
    floor = consumer_info(consumer, 0, 0, push_bound=False).ack_floor.stream_seq if counted else 0
    for seq in [seq for seq, states in met.items() if states != "exhausted" and seq <= floor]:
        yield f"message {seq} is {met[seq]}, below the ack floor, {floor}"


def _turns(database: Database, consumer: ConsumerLog) -> Iterator[str]:
    """Yield waiting pulls and pins of consumers without priority groups."""
    if consumer.config.priority_groups:
        return
    for table in ("pulls", "pins", "nearest"):
        if database.value(f"SELECT 1 FROM {table} WHERE consumer=?", (consumer.id,)) is not None:
            yield f"{table} has rows for it, but it has no priority groups"


def _said(database: Database) -> Iterator[str]:
    """Yield wrong totals in the pubsub outbox, and messages for subscriptions that never existed."""
    size_of = "length(CAST(subject AS BLOB)) + length(data) + ifnull(length(hdr), 0)"
    sql = f"SELECT seq, total, {size_of} FROM pubsub_outbox ORDER BY seq"
    before = None
    for seq, total, size in database.execute(sql):
        if before is not None and integer(total) != before + integer(size):
            yield f"pubsub_outbox: the total of {seq} is {total}, but the rows give {before + integer(size)}"
        before = integer(total)
    known = int(database.value("SELECT seq FROM sqlite_sequence WHERE name='pubsub_subscriptions'") or 0)
    for (subscription,) in database.execute(
        "SELECT DISTINCT subscription FROM pubsub_outbox WHERE subscription>?", (known,)
    ):
        yield f"pubsub_outbox: a message is for subscription {subscription}, which never existed"


_MENDED: Final = "is repaired"
_LOST: Final = "is lost: its messages are saved in a stream without subjects; give it its own again with update_stream"
_OF_CONSUMERS: Final = ("pending", "pending_removed", "claims", "ready", "exhausted")
_BACK: Final = (
    "UPDATE consumer_state SET unsettled=0, waiting=0, ahead=0, ahead_last=0, ahead_removals=-1, due=?, "
    "cursor=min(cursor, ifnull((SELECT min(seq) - 1 FROM (SELECT seq FROM pending WHERE consumer=id "
    "UNION ALL SELECT seq FROM claims WHERE consumer=id UNION ALL SELECT seq FROM ready WHERE consumer=id)), cursor)) "
    "WHERE id=?"
)


def salvage(path: str, key: bytes | None, target: str) -> list[str]:
    """Write what can be read of a store to a new one; return descriptions of what was lost. Raises ``Fault``."""
    lost: list[str] = []
    with (
        unfinished(target, path) as file,
        translated(path),
        closing(Database(path, key=key, goal=0, torn=True)) as source,
        closing(Database(path, key=key, goal=0, torn=True)) as watch,
        closing(Database(file, key=key)) as copy,
    ):
        show_as_present(source.connection, source.schema)
        ending = copy_readable(source, watch, copy, key, lost.append)
        with copy.writing():
            lost += _made_anew(copy, lost, ending)
        if found := recount(file, key):
            lost += found
            with copy.writing():
                _begin_again(copy)
    return lost


def _made_anew(copy: Database, unread: Sequence[str], ending: Collection[int]) -> Iterator[str]:
    whole = not unread
    configs: dict[int, StreamConfig] = {}
    yield from _mended_streams(copy, configs)
    yield from _mended_consumers(copy, configs)
    if any(each.startswith("table consumers") for each in unread):
        yield from _kept_without_consumers(copy, configs, list(configs))
    _drop_orphans(copy)
    for stream, config in configs.items():
        name = config.name
        kept = copy.value("SELECT msgs FROM stream_state WHERE id=?", (stream,))
        found = _count(copy, stream, config)
        if found != kept:
            missing = "an unknown number" if kept is None else kept - found
            yield f"stream {name!r}: {found} messages saved, {missing} lost"
        elif stream in ending:
            yield f"stream {name!r}: {found} messages saved; up to {TAIL - 1} newer ones may be lost"
        if found != kept or not whole:
            _send_back(copy, stream)


def _mended_streams(copy: Database, configs: dict[int, StreamConfig]) -> Iterator[str]:
    """Collect the configurations of all streams; repair or replace those that are damaged."""
    for number, name, raw in copy.execute("SELECT id, name, config FROM streams").fetchall():
        try:
            config = decode_config(StreamConfig, raw)
        except DamagedRowError:
            mended = mended_config(StreamConfig, raw)
            config = mended or StreamConfig(name=text(name))
            yield f"stream {config.name!r}: its configuration was damaged, and {_LOST if mended is None else _MENDED}"
        configs[integer(number)] = config
        sql = "UPDATE streams SET name=?, config=? WHERE id=?"
        copy.execute(sql, (config.name, encode_config(config), number))


def _mended_consumers(copy: Database, configs: dict[int, StreamConfig]) -> Iterator[str]:
    for number, stream, name, raw in copy.execute("SELECT id, stream, name, config FROM consumers").fetchall():
        if integer(stream) not in configs:
            continue
        try:
            config = decode_config(ConsumerConfig, raw)
        except DamagedRowError:
            mended = mended_config(ConsumerConfig, raw)
            shown = f"consumer {configs[integer(stream)].name}/{name}: its configuration was damaged"
            if mended is None:
                copy.execute("DELETE FROM consumers WHERE id=?", (number,))
                yield f"{shown}, and it is left out: create it again"
                yield from _kept_without_consumers(copy, configs, [integer(stream)])
                continue
            yield f"{shown}, and {_MENDED}"
            config = mended
        copy.execute("UPDATE consumers SET name=?, config=? WHERE id=?", (config.name, encode_config(config), number))


def _kept_without_consumers(copy: Database, configs: dict[int, StreamConfig], streams: Sequence[int]) -> Iterator[str]:
    """Keep the messages that a lost consumer may want, in streams that keep them only for consumers."""
    for stream in streams:
        if configs[stream].retention == "interest":
            config = configs[stream] = msgspec.structs.replace(configs[stream], retention="limits")
            copy.execute("UPDATE streams SET config=? WHERE id=?", (encode_config(config), stream))
            yield (
                f"stream {config.name!r}: its retention is limits now, for a consumer that is lost: create that, then "
                "set retention='interest' with update_stream"
            )


def _drop_orphans(copy: Database) -> None:
    for table in ("stream_state", "subjects", "ids", "timers", "schedules", "consumers", "sourcing", "quarantine"):
        column = "id" if table == "stream_state" else "stream"
        copy.execute(f"DELETE FROM {table} WHERE {column} NOT IN (SELECT id FROM streams)")
    for table in ("consumer_state", *_OF_CONSUMERS, "pins"):
        column = "id" if table == "consumer_state" else "consumer"
        copy.execute(f"DELETE FROM {table} WHERE {column} NOT IN (SELECT id FROM consumers)")
    copy.execute("DELETE FROM pelton_deliveries WHERE consumer<0")
    copy.execute("DELETE FROM parked WHERE source NOT IN (SELECT id FROM sourcing)")
    copy.execute(
        "INSERT OR IGNORE INTO consumer_state "
        "SELECT id, 0, 0, 0, ?, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0 FROM consumers",
        (NEVER,),
    )


def _count(copy: Database, stream: int, config: StreamConfig) -> int:
    """Compute the sums of a stream again; return its number of messages."""
    table, cost = f"m_{stream}", COSTS[config.storage]
    sizes = [
        cost.size(*integers(row))
        for row in copy.execute(
            f"SELECT octet_length(subject), {ORIGINAL_LENGTH}, ifnull(length(hdr), -1) FROM {table}"
        )
    ]
    first, last = copy.execute(f"SELECT min(seq), max(seq) FROM {table}").fetchall()[0]
    copy.execute(
        f"INSERT OR IGNORE INTO stream_state VALUES(?, 0, 0, 0, ?, ifnull((SELECT max(ts) FROM {table}), 0), 0, 0)",
        (stream, last or 0),
    )
    copy.execute(
        "UPDATE stream_state SET msgs=?, bytes=?, last=max(last, ?), removals=removals+1 WHERE id=?",
        (len(sizes), sum(sizes), last or 0, stream),
    )
    copy.execute("UPDATE stream_state SET first=ifnull(?, last + 1), subjects_upto=last WHERE id=?", (first, stream))
    copy.execute("DELETE FROM subjects WHERE stream=?", (stream,))
    sql = f"INSERT INTO subjects SELECT ?, subject, min(seq), max(seq), count(*) FROM {table} GROUP BY subject"
    copy.execute(sql, (stream,))
    for what in ("timers", "schedules"):
        copy.execute(f"DELETE FROM {what} WHERE stream=? AND seq NOT IN (SELECT seq FROM {table})", (stream,))
    copy.execute("DELETE FROM ids WHERE stream=? AND seq > (SELECT last FROM stream_state WHERE id=stream)", (stream,))
    copy.execute("DELETE FROM quarantine WHERE stream=?", (stream,))
    return len(sizes)


def _send_back(copy: Database, stream: int) -> None:
    for (number,) in copy.execute("SELECT id FROM consumers WHERE stream=?", (stream,)).fetchall():
        copy.execute(_BACK, (NEVER, number))
        for table in _OF_CONSUMERS:
            copy.execute(f"DELETE FROM {table} WHERE consumer=?", (number,))


def _begin_again(copy: Database) -> None:
    """Drop all that can contradict the messages: consumers go on from where they were, with nothing in flight."""
    for (stream,) in copy.execute("SELECT id FROM streams").fetchall():
        _send_back(copy, integer(stream))
        there = f"SELECT 1 FROM m_{stream} m WHERE m.seq=t.seq AND m.subject=t.subject"
        copy.execute(f"DELETE FROM schedules AS t WHERE stream=? AND NOT EXISTS({there})", (stream,))
    position = "min(max(o.cursor, 0), s.last)"
    copy.execute(
        f"INSERT OR REPLACE INTO consumer_state SELECT c.id, 0, {position}, {position}, ?, 0, 0, 0, {position}, -1, "
        "0, 0, 0, 0, 0, 0, 0 FROM consumers c JOIN consumer_state o USING(id) JOIN stream_state s ON s.id=c.stream",
        (NEVER,),
    )
    copy.execute("DELETE FROM pins")
    copy.execute("DELETE FROM parked")
    copy.execute("UPDATE sourcing SET parked=0")
