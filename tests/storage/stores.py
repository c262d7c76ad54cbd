"""Opening stores in tests, with settings that ``pelton.open`` does not offer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

import pelton
from pelton.connect import Jet
from pelton.engine import Engine, EngineSettings
from pelton.runtime import system_runtime
from pelton.storage import schema
from pelton.storage.keys import unlock


class Unstorable(bytes):
    """A payload that passes every check, and that fails in the middle of its transaction."""

    def __len__(self) -> int:
        raise TypeError("a payload without a length")


def open_engine(path: Path | str, **settings: Any) -> Jet:
    runtime = system_runtime()
    return Jet(Engine(EngineSettings(os.fspath(path), **settings), runtime), runtime)


async def a_store(path: Path, messages: int = 3) -> None:
    """Make a store with a stream ``s`` of a few messages, and close it."""
    async with pelton.open(path) as jet:
        await jet.create_stream("s", subjects=["s.>"])
        await jet.publish_batch([(f"s.{n}", b"%d" % n) for n in range(1, messages + 1)])


async def last_seq(jet: Jet) -> int:
    return (await (await jet.stream("s")).info()).state.last_seq


@contextmanager
def raw(path: Path, key: str | None = None) -> Iterator[apsw.Connection]:
    """A connection to the file outside of any store: to damage it, or to hold its lock."""
    connection = apsw.Connection(os.fspath(path))
    # A store beside it may be writing.
    connection.set_busy_timeout(60_000)
    try:
        unlock(connection, None if key is None else key.encode())
        yield connection
    finally:
        connection.close()


def undo_version_6(connection: apsw.Connection) -> None:
    """Make a store one of schema 5."""
    kept = {}
    for name in ("pending", "consumer_state", "stream_state"):
        kept[name] = connection.execute(f"SELECT * FROM {name}").fetchall()
        connection.execute(f"DROP VIEW {name}")
    connection.execute("DROP TABLE pelton_deliveries")
    for script in schema.MIGRATIONS[:5]:
        for statement in script.split(";"):
            if re.match(r"\s*(CREATE|ALTER) TABLE (pending|consumer_state|stream_state)\b", statement):
                connection.execute(statement)
    for name, rows in kept.items():
        for row in rows:
            connection.execute(f"INSERT INTO {name} VALUES({', '.join('?' * len(row))})", row)


def undo_version_5(connection: apsw.Connection) -> None:
    """Make a store one of schema 4."""
    undo_version_6(connection)
    connection.execute("DROP INDEX pelton_ready_turns")
    added = ("claims DROP rank", "ready DROP rank", "ready DROP turn", "consumer_state DROP turns")
    for column in (*added, "consumer_state DROP bypassed"):
        connection.execute(f"ALTER TABLE {column}")
