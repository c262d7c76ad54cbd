"""A driver that writes text files to the stream ``orders``: run as a program, so that it can be killed."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.session import start_session

if TYPE_CHECKING:
    import pyarrow as pa


def first_try_fails(parts: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Hand rows on, and raise after them in the first try of the second task."""
    from pyspark import TaskContext

    yield from parts
    context = TaskContext.get()
    if context is not None and context.partitionId() == 1 and context.attemptNumber() == 0:
        raise OSError("the first try fails")


def main(home: Path, place: str, value: str) -> None:
    """Write what there is to the store or cluster, and end."""
    spark = start_session(home / "warehouse", **{"spark.master": "local[2, 4]"})
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(home / "in"))
    frame = lines.repartition(2).selectExpr("concat('orders.', length(value)) AS subject", "value AS data")
    sink = frame.mapInArrow(first_try_fails, frame.schema).writeStream.format("pelton")
    options = {place: value, "stream": "orders", "checkpointLocation": str(home / "checkpoint")}
    sink.options(**options).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
