"""Creates a new store from what a damaged one still holds.

All readable rows are copied (``storage/salvage.py``). Then everything that is recorded about them is computed again
from the copied rows: counts, bytes, bounds, subjects. If messages of a stream are missing, or rows of a consumer could
not be read, the stream's consumers go back to the oldest message they had not settled: later messages may be
redelivered, and no copied message is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

import msgspec

from pelton.api import ConsumerConfig, StreamConfig
from pelton.consumers import NEVER
from pelton.engine.maintenance.recount import recount
from pelton.engine.session.configs import decode_config, encode_config, mended_config
from pelton.storage import DamagedRowError, Database, integer, integers, text
from pelton.storage.copies import unfinished
from pelton.storage.faults import translated
from pelton.storage.rows import ORIGINAL_LENGTH
from pelton.storage.salvage import copy_readable
from pelton.streams.state import COSTS

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
        closing(Database(path, key=key)) as source,
        closing(Database(path, key=key)) as watch,
        closing(Database(file, key=key)) as copy,
    ):
        copy_readable(source, watch, copy, key, lost.append)
        with copy.writing():
            lost += _made_anew(copy, lost)
        if found := recount(file, key):
            lost += found
            with copy.writing():
                _begin_again(copy)
    return lost


def _made_anew(copy: Database, unread: Sequence[str]) -> Iterator[str]:
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
