"""Creates a new store from what a damaged one still holds.

All readable rows are copied (``storage/salvage.py``). Then everything that is recorded about them is computed again
from the copied rows: counts, bytes, bounds, subjects. If messages of a stream are missing, or rows of a consumer could
not be read, the stream's consumers go back to the oldest message they had not settled: later messages may be
redelivered, and no copied message is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

import msgspec

from pelton.api import StreamConfig
from pelton.api.durations import dec_hook
from pelton.consumers import NEVER
from pelton.engine.maintenance.recount import recount
from pelton.storage import Database, blob, integer, integers
from pelton.storage.faults import translated
from pelton.storage.packing import ORIGINAL_LENGTH
from pelton.storage.salvage import copy_readable
from pelton.storage.unfinished import unfinished
from pelton.streams.state import COSTS

_config: Final = msgspec.json.Decoder(StreamConfig, dec_hook=dec_hook).decode
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
    with unfinished(target, path) as file, translated(path):
        with (
            closing(Database(path, key=key)) as source,
            closing(Database(path, key=key)) as watch,
            closing(Database(file, key=key)) as copy,
        ):
            copy_readable(source, watch, copy, lost.append)
            with copy.writing():
                lost += _made_anew(copy, whole=not lost)
        lost += recount(file, key)
    return lost


def _made_anew(copy: Database, *, whole: bool) -> Iterator[str]:
    _drop_orphans(copy)
    for number, name, config in copy.execute("SELECT id, name, config FROM streams").fetchall():
        stream = integer(number)
        kept = copy.value("SELECT msgs FROM stream_state WHERE id=?", (stream,))
        found = _count(copy, stream, _config(blob(config)))
        if found != kept:
            missing = "an unknown number" if kept is None else kept - found
            yield f"stream {name!r}: {found} messages saved, {missing} lost"
        if found != kept or not whole:
            _send_back(copy, stream)


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
    copy.execute("DELETE FROM quarantine WHERE stream=?", (stream,))
    return len(sizes)


def _send_back(copy: Database, stream: int) -> None:
    for (number,) in copy.execute("SELECT id FROM consumers WHERE stream=?", (stream,)).fetchall():
        copy.execute(_BACK, (NEVER, number))
        for table in _OF_CONSUMERS:
            copy.execute(f"DELETE FROM {table} WHERE consumer=?", (number,))
