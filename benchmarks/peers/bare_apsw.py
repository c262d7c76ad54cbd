"""Yardsticks: what asyncio and APSW alone do on this disk, fsynced, with no semantics at all.

A table of (sequence, data), WAL, synchronous=FULL. Group commit here is the plainest there is: every
caller waits on a future, one callback commits for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter

import apsw

from benchmarks.case import Run, Sample
from benchmarks.load import BATCH, FETCH, PAYLOAD, drained, in_flight, sync_one_by_one

_INSERT = "INSERT INTO message(data) VALUES (?)"
_DELETE = "DELETE FROM message WHERE seq = ?"


def _open(run: Run) -> apsw.Connection:
    database = apsw.Connection(str(run.workdir / "bare.db"))
    database.pragma("page_size", 16384)
    database.pragma("journal_mode", "wal")
    database.pragma("synchronous", "full")
    database.execute("CREATE TABLE message(seq INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    return database


def publish_each(run: Run) -> Sample:
    """One row a commit: the disk's own limit for a lone publisher."""
    database = _open(run)
    return {"rate": sync_one_by_one(run.seconds, lambda: database.execute(_INSERT, (PAYLOAD,)))}


def publish_batch(run: Run) -> Sample:
    """1,000 rows a commit."""
    database = _open(run)
    rows = [(PAYLOAD,)] * BATCH

    def batch() -> None:
        with database:
            database.executemany(_INSERT, rows)

    return {"rate": sync_one_by_one(run.seconds, batch, each=BATCH)}


class _Group:
    """Collects rows for one statement and commits them together at the end of the loop's turn."""

    def __init__(self, database: apsw.Connection, statement: str) -> None:
        self._database = database
        self._statement = statement
        self._rows: list[Sequence[object]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()

    def add(self, row: Sequence[object]) -> asyncio.Future[None]:
        """A future that is done when the row's statement is durable."""
        if not self._rows:
            self._loop.call_soon(self._commit)
        future: asyncio.Future[None] = self._loop.create_future()
        self._rows.append(row)
        self._waiting.append(future)
        return future

    def _commit(self) -> None:
        rows, waiting = self._rows, self._waiting
        self._rows, self._waiting = [], []
        with self._database:
            self._database.executemany(self._statement, rows)
        for future in waiting:
            future.set_result(None)


async def publish_in_flight(run: Run) -> Sample:
    """1,000 inserts in flight at all times; all that wait share a commit."""
    group = _Group(_open(run), _INSERT)
    return {"rate": await in_flight(run.seconds, lambda: group.add((PAYLOAD,)))}


async def fetch_many(run: Run) -> Sample:
    """Select 256, await a durable delete for each."""
    database = _filled(run, run.drain)
    group = _Group(database, _DELETE)

    async def step() -> int:
        rows = _next(database, FETCH)
        await asyncio.gather(*(group.add((seq,)) for seq, _ in rows))
        return len(rows)

    return {"rate": await drained(run.drain, step)}


async def fetch_batch(run: Run) -> Sample:
    """Select 256, delete them in one durable call."""
    return {"rate": _drain(run, run.drain, FETCH)}


async def fetch_one(run: Run) -> Sample:
    """Select one, delete it durably."""
    return {"rate": _drain(run, run.drain // 4, 1)}


def _drain(run: Run, total: int, batch: int) -> float:
    database = _filled(run, total)
    start = perf_counter()
    for _ in range(total // batch):
        rows = _next(database, batch)
        with database:
            database.executemany(_DELETE, [(seq,) for seq, _ in rows])
    return total / (perf_counter() - start)


def _filled(run: Run, total: int) -> apsw.Connection:
    database = _open(run)
    with database:
        database.executemany(_INSERT, [(PAYLOAD,)] * total)
    return database


def _next(database: apsw.Connection, batch: int) -> list[tuple[int, bytes]]:
    return list(database.execute("SELECT seq, data FROM message ORDER BY seq LIMIT ?", (batch,)))


def transact(run: Run) -> Sample:
    """10 inserts, 10 deletes and a row of another table in each transaction."""
    database = _filled(run, run.drain)
    database.execute("CREATE TABLE out(seq INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    database.execute("CREATE TABLE orders(id INTEGER PRIMARY KEY, what TEXT NOT NULL)")
    total = run.drain // 10
    start = perf_counter()
    for number in range(total):
        with database:
            for _ in range(10):
                database.execute("INSERT INTO out(data) VALUES (?)", (PAYLOAD,))
            for seq in range(number * 10 + 1, number * 10 + 11):
                database.execute(_DELETE, (seq,))
            database.execute("INSERT INTO orders(what) VALUES (?)", ("paint",))
    return {"rate": total / (perf_counter() - start)}
