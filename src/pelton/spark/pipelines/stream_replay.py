"""Replay: an archive, or a stream, to a stream again: all at once, at a given rate, or at the original pace.

Design: rows are sorted by time (then stream and sequence) and divided into steps: by the number of rows, or by the time
since the first row. A step is one write of the data source, with ``writeId`` and the step's number as ``writeVersion``.
So a replay that died continues where it stopped: the target's commit log knows the steps that are written, and each
message is written once.

Invariants: the steps depend only on the rows, the rate and the pace, so a replay that continues must be given the same
ones. Within a step, the order of rows is kept. A step is never early; if Spark is slower than the steps, they follow
each other without a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812  # as all Spark programs call it

from pelton.api import ConfigError
from pelton.runtime import pause, stopwatch
from pelton.spark.options import COMMIT_STREAM, store_options
from pelton.spark.store_handle import StoreHandle, activate
from pelton.spark.write.staging import BatchId, CommitLog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STEP_S: Final = 1.0
_ORDER: Final = ("time", "stream", "sequence")
_INDEX_BITS: Final = 33
_STEP: Final = "pelton_step"
_OWN: Final = ("date", "stream", "sequence", "time", "size")

Progress = Callable[[int, int], None]
Transform = Callable[["DataFrame"], "DataFrame"]


class Replayed(NamedTuple):
    """How many rows were written now, and how many by earlier calls."""

    rows: int
    before: int


def replay(
    frame: DataFrame,
    stream: str,
    *,
    write_id: str,
    rate: float | None = None,
    pace: float | None = None,
    transform: Transform | None = None,
    subject: str | None = None,
    progress: Progress | None = None,
    **store: str,
) -> Replayed:
    """Write messages to a ``stream`` again; return when all are written.

    ``frame`` comes from a read of the data source, or of an archive. Its rows are written in the order of ``time``,
    ``stream``, ``sequence``, in steps of one second: ``rate`` rows each, or the rows of ``pace`` seconds of original
    time (1.0 is the original speed, 60 a minute each second). Without both, everything is one step (on a cluster, only
    the rows of one task then keep their order). ``transform`` is applied to the frame; it must keep those three
    columns, which are not written. The others are written as by the data source: ``subject``, or a template for it
    (``"again.{stream}"``), ``data``, or all other columns as JSON, ``headers``. ``write_id`` names this replay: a call
    with the same name continues where the earlier one stopped. ``store`` are the options of ``format("pelton")``
    that locate the stream; ``progress`` is called with the rows done, and the total. Raises ConfigError.
    """
    _check(frame, rate, pace)
    options = {**store, "stream": stream, "writeId": write_id, **({"subject": subject} if subject else {})}
    rows = frame if transform is None else transform(frame)
    _need(rows, _ORDER)
    last = _last(stream, write_id, store)
    ordered = rows.sort(*_ORDER).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with _cut(ordered, rate, pace) as steps:
            return _play(steps, options, last, progress or _silent)
    finally:
        ordered.unpersist()


class Steps(NamedTuple):
    """Rows with the number of their step, and the number of rows of each step."""

    rows: DataFrame
    sizes: dict[int, int]


@contextmanager
def _cut(ordered: DataFrame, rate: float | None, pace: float | None) -> Iterator[Steps]:
    """Divide ordered rows into steps, cached so that one step is found without scanning the others."""
    number = F.lit(0).cast("bigint")
    if rate is not None:
        number = _by_rate(ordered, rate)
    elif pace is not None:
        number = _by_pace(ordered, pace)
    rows = ordered.withColumn(_STEP, number).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counts = rows.groupBy(_STEP).count().orderBy(_STEP).collect()
        yield Steps(rows, {int(row[_STEP]): int(row["count"]) for row in counts})
    finally:
        rows.unpersist()


def _play(steps: Steps, options: dict[str, str], last: int, progress: Progress) -> Replayed:
    """Write each step when it is due; steps up to ``last`` are written already."""
    total, done = sum(steps.sizes.values()), 0
    before = sum(size for step, size in steps.sizes.items() if step <= last)
    progress(before, total)
    for step in _in_time([step for step in steps.sizes if step > last]):
        rows = steps.rows.where(F.col(_STEP) == step).drop(_STEP)
        # One task keeps the order of a small step; a single step keeps its partitions, and its order in a store file.
        write(rows if len(steps.sizes) == 1 else rows.coalesce(1), options, step)
        done += steps.sizes[step]
        progress(before + done, total)
    return Replayed(done, before)


def _in_time(left: list[int]) -> Iterator[int]:
    """Yield steps when they are due, the first one at once."""
    began = stopwatch()
    for step in left:
        wait = (step - left[0]) * STEP_S - (stopwatch() - began)
        if wait > 0:
            pause(wait)
        yield step


def write(rows: DataFrame, options: dict[str, str], version: int) -> None:
    """Write rows exactly once, even if the call is repeated."""
    template = options.get("subject", "")
    dropped = (*_OWN, "subject") if template else _OWN
    columns = [name for name in rows.columns if name not in dropped or f"{{{name}}}" in template]
    activate(rows.sparkSession)
    writer = rows.select(*columns).write.format("pelton").mode("append")
    writer.options(**options, writeVersion=str(version)).save()


def _check(frame: DataFrame, rate: float | None, pace: float | None) -> None:
    if frame.isStreaming:
        raise ConfigError("replay takes a DataFrame that has an end; to copy a stream continuously use writeStream")
    if rate is not None and pace is not None:
        raise ConfigError("rate and pace both set the speed: keep one")
    for name, value in (("rate", rate), ("pace", pace)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value:g}: give more than 0")


def _need(rows: DataFrame, names: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in rows.columns]
    if missing:
        raise ConfigError(f"a replay needs the columns {', '.join(names)}; missing: {', '.join(missing)}")


def _by_pace(rows: DataFrame, pace: float) -> Column:
    first = rows.agg(F.expr("unix_micros(min(time))")).first()
    begin = int(first[0] or 0) if first is not None else 0
    passed = (F.expr("unix_micros(time)") - F.lit(begin)) / F.lit(1e6 * pace * STEP_S)
    return F.floor(passed).cast("bigint")


def _by_rate(rows: DataFrame, rate: float) -> Column:
    """Return the step of each row of an ordered frame.

    Spark numbers rows within a partition only, so the rows of earlier partitions are counted.
    """
    part = F.spark_partition_id()
    counts = sorted((int(row[0]), int(row[1])) for row in rows.groupBy(part.alias("part")).count().collect())
    before, starts = 0, {}
    for number, count in counts:
        starts[number] = before
        before += count
    start = F.lit(0)
    if starts:
        pairs = [F.lit(value) for pair in starts.items() for value in pair]
        start = F.element_at(F.create_map(*pairs), part)
    within = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _INDEX_BITS) - 1))
    return F.floor((start + within) / F.lit(rate * STEP_S)).cast("bigint")


def _last(stream: str, write_id: str, store: dict[str, str]) -> int:
    """Return the last step of a replay that is written; -1 if there is none."""
    options, _ = store_options(store, ())
    with StoreHandle(options) as opened:
        if not opened.present([COMMIT_STREAM]):
            return -1
        record = opened.run(CommitLog(opened.jet, stream).lookup, BatchId(write_id, 0)).record
    if record is None:
        return -1
    return record.number if record.done else record.number - 1


def _silent(done: int, total: int) -> None:
    pass
