"""Writes: into a store file, beside one bare SQLite writer that has the rows in memory as columns.

That writer is the bound: it inserts in the fastest way that we know, into a table like that of a stream's messages,
without checksums and without counting subjects. The sink is compared with it as a whole, which includes what Spark and
the tasks do before anything is inserted, and in its last step, the load of staged files, by CPU time.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import apsw
import pyarrow as pa

import pelton
from benchmarks.spark.measure import Case, Result, best_of
from pelton import engine
from pelton.columns.joined_columns import placed_sums
from pelton.engine.bulk import StagedWriter
from pelton.jet import Savepoint
from pelton.spark.columns import pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUBJECTS = 1000
# One batch after another: what a batch leaves to be done after its answer, the next one waits for.
BATCHES = 3
SIZE = 128
PART = 32_768
TABLE = (
    "CREATE TABLE m(seq INTEGER PRIMARY KEY, ts INTEGER NOT NULL, subject TEXT NOT NULL, hdr BLOB, "
    "data BLOB NOT NULL, crc INTEGER NOT NULL)"
)
INSERT = (
    f"INSERT INTO m SELECT NULL, 1795000000000000000, 'orders.' || (value % {SUBJECTS}), NULL, "
    f"substr(?2, (rowid - 1) * {SIZE} + 1, {SIZE}), 4000000000 FROM carray(?1)"
)


def frame_of(spark: SparkSession, rows: int) -> DataFrame:
    """Return rows of 128 bytes under 1,000 subjects, held in memory by Spark."""
    data = f"cast(lpad(string(id), {SIZE}, 'x') AS binary) AS data"
    frame = spark.range(0, rows, 1, 2).selectExpr(f"concat('orders.', id % {SUBJECTS}) AS subject", data).cache()
    frame.count()
    return frame


class Part(NamedTuple):
    """Rows as columns: their numbers, and their payloads one after the other."""

    numbers: array[int]
    payloads: bytes

    def arrow(self) -> tuple[pa.StringArray, pa.BinaryArray]:
        """Return the same rows as subjects and payloads."""
        subjects = pa.array([f"orders.{number % SUBJECTS}" for number in self.numbers], pa.string())
        return subjects, pa.array([_payload(number) for number in self.numbers], pa.binary())


def _payload(number: int) -> bytes:
    return str(number).rjust(SIZE, "x").encode()


def parts_of(rows: int) -> list[Part]:
    """Return the rows of :func:`frame_of`, in the memory of this process."""
    cuts = (range(first, min(first + PART, rows)) for first in range(0, rows, PART))
    return [Part(array("q", numbers), b"".join(map(_payload, numbers))) for numbers in cuts]


def insert(parts: list[Part], folder: Path) -> None:
    """Insert all rows into a new table, ``BATCHES`` times, each in one synced transaction; then fold the log."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        connection = apsw.Connection(str(Path(home, "s.db")))
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0", "cache_size=-32768"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute(TABLE)
        for _ in range(BATCHES):
            with connection:
                for part in parts:
                    connection.execute(INSERT, (apsw.carray(part.numbers), part.payloads))
        # This folds the log.
        connection.close()


def stage(parts: list[Part], folder: Path) -> str:
    """Return a file of staged rows, as a task writes it."""
    path = str(folder / "staged")
    with StagedWriter(path) as staged:
        for part in parts:
            packed = pack(*part.arrow())
            assert packed is not None
            staged.add_packed(packed)
    return path


async def load(staged: str, folder: Path) -> None:
    """Load a staged file into a new store, ``BATCHES`` times, each in one synced transaction; then fold the log."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        async with pelton.open(Path(home, "s.pelton")) as jet:
            await jet.create_stream("orders", subjects=["orders.>"])
            for _ in range(BATCHES):
                transaction = jet.backend.transaction(3600)
                async with Savepoint(transaction):
                    await engine.load(transaction, staged, None, placed_sums)


def last_step(parts: list[Part], folder: Path, rounds: int) -> str:
    """Compare the load of staged files with the bound, by the CPU time of this process in alternating rounds."""
    staged, times = stage(parts, folder), list[tuple[float, float]]()
    for _ in range(rounds + 1):
        began = time.process_time()
        insert(parts, folder)
        between = time.process_time()
        asyncio.run(load(staged, folder))
        times.append((between - began, time.process_time() - between))
    rows = BATCHES * sum(len(part.numbers) for part in parts)
    bound, loaded = (median(column) / rows * 1e6 for column in zip(*times[1:], strict=True))
    ratio = median(inserted / load_time for inserted, load_time in times[1:])
    return f"load: {loaded:.2f} us of CPU a row, {ratio:.2f}x of one SQLite writer ({bound:.2f} us)"


def store(frame: DataFrame, folder: Path) -> None:
    """Store all rows in a new store, ``BATCHES`` times, and wait until nothing is left to be done in the background."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        path = Path(home, "s.pelton")
        with pelton.sync.open(path) as jet:
            jet.create_stream("orders", subjects=["orders.>"])
        for _ in range(BATCHES):
            frame.write.format("pelton").mode("append").options(path=str(path), stream="orders").save()
        while Path(f"{path}-wal").exists():
            time.sleep(0.002)


def sink(spark: SparkSession, folder: Path, rows: int, rounds: int) -> list[Result]:
    """Write rows into a store, and insert as many into a table."""
    frame = frame_of(spark, rows)
    parts = parts_of(rows)
    cases: dict[str, Case] = {
        "one SQLite writer": lambda: insert(parts, folder),
        "pelton sink": lambda: store(frame, folder),
    }
    found = best_of(cases, rows * BATCHES, rounds)
    frame.unpersist()
    ratio = found["pelton sink"].rate / found["one SQLite writer"].rate
    print(f"sink: {ratio:.2f}x of one SQLite writer, from Spark's memory to the file")
    print(last_step(parts, folder, rounds))
    return list(found.values())
