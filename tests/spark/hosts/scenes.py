"""The scenes on the two hosts: an attempt of a task hangs after passing on its rows, processes are killed.

All runs in executors, so every wait is for a file, or for a count in a store that all can read. An attempt that hangs
is the first of the second task; processes that are killed belong to that attempt: the one that reads before it and the
one that writes behind it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark import TaskContext

import pelton
from pelton.spark import pipelines, work

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Place = dict[str, str]
Parts = Iterable["pa.RecordBatch"]
Condition = Callable[[], bool]
_PAUSE_S = 0.02
# So many batches of rows that buffers between processes cannot hold them all.
_KILLS_AFTER = 5


def copy_beside_a_hanging_try(spark: "SparkSession", home: Path, place: Place) -> None:
    """Copy the stream ``orders`` to ``copies``."""
    has_written = _stages(place) if "path" in place else _publishes(place)
    _copy(_followed(spark, place), home, place, _Hang(home, has_written))
    (home / "over").touch()


def archive_beside_a_hanging_try(spark: "SparkSession", home: Path, place: Place) -> None:
    """Archive the stream ``orders``."""
    lake = home / "lake"
    frame = _followed(spark, place)
    hanging = frame.mapInArrow(_Hang(home, lambda: len(list(lake.rglob("*.parquet"))) >= 2), frame.schema)
    pipelines.archive(hanging, str(lake), checkpoint=str(home / "checkpoint")).awaitTermination()
    (home / "over").touch()


def copy_beside_a_killer(spark: "SparkSession", home: Path, place: Place) -> None:
    """Copy the stream ``orders`` to ``copies``; the reader and writer of a task's first attempt are killed."""
    has_written = _stages(place) if "path" in place else _publishes(place)
    _copy(_followed(spark, place), home, place, _Killer(home, has_written))


def read_beside_a_killer(spark: "SparkSession", home: Path, place: Place) -> list[list[Any]]:
    """Read the stream ``orders``; the reader of a task's first attempt is killed."""
    frame = spark.read.format("pelton").options(**place, stream="orders", minPartitions=2).load()
    killer = _Killer(home, lambda: True, after=0)
    rows = frame.select("sequence", "subject", "data").mapInArrow(
        killer, "sequence BIGINT, subject STRING, data BINARY"
    )
    return [[row.sequence, row.subject, row.sum] for row in rows.selectExpr("*", "crc32(data) AS sum").collect()]


def work_until_killed(spark: "SparkSession", home: Path, place: Place) -> list[int]:
    """Work for the queue ``g``; the process that has finished one half of the jobs is killed."""
    killed = str(home / "killed")

    def paint(rows: pd.DataFrame) -> pd.DataFrame:
        if rows["n"].max() >= 60 and not os.path.exists(killed):
            _touch(killed)
            os.kill(os.getpid(), signal.SIGKILL)
        return rows[["id", "n"]]

    return list(_figures(work("g", paint, args="n INT", claim=20, spark=spark, **place)))


def _figures(told: Any) -> Iterator[int]:
    yield from (told.completed, told.failed, told.lost)


def _followed(spark: "SparkSession", place: Place) -> "DataFrame":
    return spark.readStream.format("pelton").options(**place, stream="orders", minPartitions=2).load()


def _copy(frame: "DataFrame", home: Path, place: Place, disturbed: "_Disturbed") -> None:
    renamed = frame.selectExpr("replace(subject, 'orders', 'copies') AS subject", "data")
    sink = renamed.mapInArrow(disturbed, "subject STRING, data BINARY").writeStream.format("pelton")
    options = {**place, "stream": "copies", "checkpointLocation": str(home / "checkpoint")}
    sink.options(**options).trigger(availableNow=True).start().awaitTermination()


def _stages(place: Place) -> Condition:
    """Return whether the second task stages."""
    folder = Path(f"{place['path']}-spark")
    return lambda: bool(list(folder.glob("*/*/1-*")))


def _publishes(place: Place) -> Condition:
    """Return whether the stream holds more than the first half: the first task ends before a second attempt starts."""

    def has_more() -> bool:
        with pelton.sync.open(place["servers"]) as jet:
            whole = jet.stream("orders").info().state.messages
            return bool(jet.stream("copies").info().state.messages > whole // 2)

    return has_more


class _Disturbed:
    """Passes rows on, and records the attempts of each task as files ``task-try`` below ``home``."""

    def __init__(self, home: Path, has_written: Condition) -> None:
        self._home = str(home)
        self._has_written = has_written

    def __call__(self, parts: Parts) -> "Iterator[pa.RecordBatch]":
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        _touch(f"{self._home}/{partition}-{attempt}")
        if partition == 1:
            yield from self._first(parts) if attempt == 0 else self._later(parts)
        else:
            yield from parts

    def _first(self, parts: Parts) -> "Iterator[pa.RecordBatch]":
        raise NotImplementedError

    def _later(self, parts: Parts) -> "Iterator[pa.RecordBatch]":
        yield from parts


class _Hang(_Disturbed):
    """The first attempt passes on everything and hangs; the other one starts when some of it is written."""

    def _first(self, parts: Parts) -> "Iterator[pa.RecordBatch]":
        yield from parts
        _until(lambda: os.path.exists(f"{self._home}/over"))

    def _later(self, parts: Parts) -> "Iterator[pa.RecordBatch]":
        _until(self._has_written)
        yield from parts


class _Killer(_Disturbed):
    """The first attempt, once some of it is written, kills its neighbours: the workers of the same executor."""

    def __init__(self, home: Path, has_written: Condition, after: int = _KILLS_AFTER) -> None:
        super().__init__(home, has_written)
        self._after = after

    def _first(self, parts: Parts) -> "Iterator[pa.RecordBatch]":
        for number, part in enumerate(parts):
            yield part
            if number == self._after:
                _until(self._has_written)
                neighbours = _neighbours()
                Path(self._home, "killed").write_text(" ".join(map(str, neighbours)))
                for pid in neighbours:
                    os.kill(pid, signal.SIGKILL)

    def _later(self, parts: Parts) -> "Iterator[pa.RecordBatch]":
        # A speculative attempt would be earlier.
        _until(lambda: os.path.exists(f"{self._home}/killed"))
        yield from parts


def _neighbours() -> list[int]:
    """Return the other Python workers of this executor, which has one or more daemons that fork them."""
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in told.splitlines())
    executor = parents[os.getppid()]
    return [pid for pid, parent in parents.items() if parents.get(parent) == executor and pid != os.getpid()]


def _touch(path: str) -> None:
    Path(path).touch()


def _until(condition: Condition) -> None:
    while not condition():
        time.sleep(_PAUSE_S)
