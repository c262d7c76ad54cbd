"""A driver that writes text files to the stream ``orders``: run as a program, so that it can be killed."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.session import start_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Parts = Iterable["pa.RecordBatch"]
HandOn = Callable[[Parts], Iterator["pa.RecordBatch"]]
_PAUSE_S = 0.05


def first_try_fails(parts: Parts) -> "Iterator[pa.RecordBatch]":
    """Pass rows on, and raise after them in the first attempt of the second task."""
    from pyspark import TaskContext

    yield from parts
    context = TaskContext.get()
    if context is not None and context.partitionId() == 1 and context.attemptNumber() == 0:
        raise OSError("the first try fails")


class Held:
    """Passes rows on; the second task only once the file ``flag`` exists."""

    def __init__(self, flag: Path) -> None:
        self._flag = str(flag)

    def __call__(self, parts: Parts) -> "Iterator[pa.RecordBatch]":
        from pyspark import TaskContext

        context = TaskContext.get()
        while context is not None and context.partitionId() == 1 and not os.path.exists(self._flag):
            time.sleep(_PAUSE_S)
        yield from parts


def write(spark: "SparkSession", home: Path, place: str, value: str, hand_on: HandOn | None = None) -> None:
    """Write everything stored, and end."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(home / "in"))
    frame = lines.repartition(2).selectExpr("concat('orders.', length(value)) AS subject", "value AS data")
    handed = frame.mapInArrow(hand_on, frame.schema) if hand_on is not None else frame
    sink = handed.writeStream.format("pelton")
    options = {place: value, "stream": "orders", "checkpointLocation": str(home / "checkpoint")}
    sink.options(**options).trigger(availableNow=True).start().awaitTermination()


def main(home: Path, place: str, value: str, trouble: str = "first-try-fails") -> None:
    """Write to the store or cluster, with a failure in between."""
    spark = start_session(home / "warehouse", **{"spark.master": "local[2, 4]"})
    write(spark, home, place, value, Held(home / "go") if trouble == "held" else first_try_fails)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
