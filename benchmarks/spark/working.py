"""Executors as workers: jobs that do nothing, claimed 200 at a time."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pelton
import pelton.spark
from benchmarks.spark.measure import Result, best_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AT_ONCE = 5000


def jobs(spark: "SparkSession", folder: Path, count: int, rounds: int) -> list[Result]:
    """Work off ``count`` jobs by one task and by two; filling the queue is not measured."""
    found: list[Result] = []
    for tasks in (1, 2):
        path = str(folder / f"work{tasks}.pelton")
        _fill(path, count * (rounds + 1))

        def work(path: str = path, tasks: int = tasks) -> None:
            share = -(-count // tasks)
            told = pelton.spark.work("g", _same, kind="arrow", tasks=tasks, max_jobs=share, path=path)
            assert told.completed >= count, told

        found += best_of({f"jobs that do nothing, {tasks} task(s)": work}, count, rounds).values()
    return found


def _same(rows: Any) -> Any:
    return rows.select(["id"])


def _fill(path: str, count: int) -> None:
    with pelton.sync.open(path) as jet:
        queue = jet.queue("g")

        def nothing(n: int) -> None: ...

        job = queue.job(nothing)
        for start in range(0, count, _AT_ONCE):
            job.enqueue_many([(n,) for n in range(start, min(start + _AT_ONCE, count))])
