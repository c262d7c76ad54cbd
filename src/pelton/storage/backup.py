"""Copies a store that is in use: all of it, or some of its streams.

Design: a separate connection holds one snapshot for as long as the copy takes. Streams are copied row by row into a
new store. A whole store is copied as bytes, encrypted or not, including free space and damage: first the file, then
its log while no process writes (some milliseconds). While the snapshot is held, a checkpoint copies nothing into the
file that does not stay in the log as well, so the two together are the store as of the end of the copy, as after a
crash (ADR 0015).

Either copy is written under another name until it is complete (``unfinished.py``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import apsw

from pelton.storage.database import Database
from pelton.storage.faults import Fault, translated
from pelton.storage.keys import unlock
from pelton.storage.rows import integer, text
from pelton.storage.schema import is_reserved, message_table
from pelton.storage.tokens import set_tokens_apart, token_floor
from pelton.storage.unfinished import unfinished

Told = Callable[[int, int], object]

_CHUNK: Final = 1 << 20
_ROWS: Final = 2000
_OF_ROWS: Final = ("streams", "stream_state")


def back_up(path: str, key: bytes | None, target: str, streams: Sequence[str] | None, told: Told) -> None:
    """Copy a store, or some streams of it with their consumers, to the file ``target``, encrypted with the same key.

    ``told`` is called with the amount done and the total: bytes of a store, rows of streams. Raises :class:`Fault` of
    kind ``settings`` if ``target`` exists, and the faults of opening the store; KeyError for an unknown stream.
    """
    if not os.path.exists(path):
        raise Fault("settings", path, "there is no such file")
    source = Database(os.path.realpath(path), key=key)
    try:
        with unfinished(target, path) as file, translated(path), source.reading():
            # The snapshot begins with this first read.
            source.value("SELECT 1 FROM meta")
            if streams is None:
                copy_bytes(source, file, key, told)
            else:
                _copy_streams(source, file, key, _numbers(source, streams), told)
    finally:
        source.close()


def copy_bytes(source: Database, file: str, key: bytes | None, told: Told) -> None:
    """Copy a store as bytes, with its log, to an empty file; inside a snapshot of ``source``."""
    # A connection without the key reads raw bytes. A descriptor of our own would drop SQLite's locks when closed.
    raw = apsw.Connection(source.path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        with open(file, "r+b") as copy:
            # SQLite returns zeros for bytes beyond the end.
            while left := os.path.getsize(source.path) - copy.tell():
                copy.write(raw.read("main", 0, copy.tell(), min(_CHUNK, left))[1])
                told(copy.tell(), os.path.getsize(source.path))
    finally:
        raw.close()
    locker = Database(source.path, key=key)
    try:
        with locker.writing():
            _copy_log(source.path + "-wal", file + "-wal")
    finally:
        locker.close()
    _fold(file, key)
    _set_apart(file, key)


def _set_apart(file: str, key: bytes | None) -> None:
    copy = Database(file, key=key)
    try:
        with copy.writing():
            set_tokens_apart(copy)
    except Fault as fault:
        # A damaged store is copied as it is.
        if fault.kind == "full":
            raise
    finally:
        copy.close()


def _copy_log(log: str, copy: str) -> None:
    with open(log, "rb") as source, open(copy, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as target:
        shutil.copyfileobj(source, target, _CHUNK)


def _fold(file: str, key: bytes | None) -> None:
    """Checkpoint the log of a copy into it."""
    copy = apsw.Connection(file)
    try:
        unlock(copy, key)
        copy.execute("PRAGMA synchronous=OFF")
        copy.execute("PRAGMA journal_mode=DELETE")
    finally:
        copy.close()


def _numbers(source: Database, streams: Sequence[str]) -> list[int]:
    known = {text(name): integer(number) for number, name in source.execute("SELECT id, name FROM streams")}
    return [known[name] for name in streams]


def _copy_streams(source: Database, file: str, key: bytes | None, streams: list[int], told: Told) -> None:
    parts = [(table, where) for table in tables(source) if (where := belonging(source, table, streams)) is not None]
    total = sum(int(source.value(f"SELECT count(*) FROM {table} WHERE {where}")) for table, where in parts)
    done = 0
    copy = Database(file, key=key)
    try:
        for stream in streams:
            copy.execute(message_table(stream))
        for table, where in parts:
            for rows in in_parts(source, table, where):
                marks = ", ".join("?" * len(rows[0]))
                with copy.writing():
                    copy.executemany(f"INSERT INTO {table} VALUES({marks})", rows)
                done += len(rows)
                told(done, total)
        with copy.writing():
            set_tokens_apart(copy, token_floor(source))
    finally:
        copy.close()


def in_parts(source: Database, table: str, where: str) -> Iterator[list[Any]]:
    """Yield the rows of a table in chunks."""
    cursor = source.execute(f"SELECT * FROM {table} WHERE {where}")
    while rows := list(islice(cursor, _ROWS)):
        yield rows


def tables(source: Database) -> list[str]:
    """Return the names of Pelton's tables, without the user's own tables, which belong to no stream."""
    found = (text(name) for (name,) in source.execute("SELECT name FROM sqlite_schema WHERE type='table'"))
    return [name for name in found if is_reserved(name)]


def belonging(source: Database, table: str, streams: list[int]) -> str | None:
    """Return SQL for the rows of a table that belong to the streams; None if no row of the table can."""
    numbers = ", ".join(map(str, streams))
    if table.startswith("m_"):
        return "1" if int(table[2:]) in streams else None
    columns = {text(row[1]) for row in source.execute(f"PRAGMA table_info({table})")}
    if table in _OF_ROWS:
        return f"id IN ({numbers})"
    if "stream" in columns:
        return f"stream IN ({numbers})"
    consumers = f"(SELECT id FROM consumers WHERE stream IN ({numbers}))"
    if table == "consumer_state":
        return f"id IN {consumers}"
    if table == "parked":
        return f"source IN (SELECT id FROM sourcing WHERE stream IN ({numbers}))"
    return f"consumer IN {consumers}" if "consumer" in columns else None
