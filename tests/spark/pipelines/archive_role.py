"""A driver that archives ``orders`` and pauses around the transaction of one batch, to be killed there."""

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from pelton.spark import pipelines
from pelton.spark.pipelines.delta_table import LakeTable
from tests.spark.session import start_session

ROWS = 10


def main(home: Path, place: str, value: str, point: str, number: int) -> None:
    """Pause ``before`` the transaction of batch ``number``, or ``after`` it; report it by a file of that name."""
    spark = start_session(home / "warehouse")
    LakeTable.commit = _standing_still(LakeTable.commit, home / f"{point}-{number}", point, number)  # type: ignore[method-assign]  # that is its purpose
    options = {place: value, "stream": "orders", "maxRowsPerTrigger": ROWS, "minPartitions": 2}
    frame = spark.readStream.format("pelton").options(**options).load()
    pipelines.archive(frame, str(home / "lake"), checkpoint=str(home / "checkpoint")).awaitTermination()


def _standing_still(commit: Callable[..., bool], told: Path, point: str, number: int) -> Any:
    def stand_still(lake: LakeTable, parts: Any, schema: Any, batch: Any) -> bool:
        if batch.number != number:
            return commit(lake, parts, schema, batch)
        if point == "after":
            assert commit(lake, parts, schema, batch)
        told.touch()
        Event().wait()
        raise AssertionError("it is killed before")

    return stand_still


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
