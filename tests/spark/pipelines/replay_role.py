"""A driver that replays an archive at a rate, and waits for permission after a number of rows; to be killed."""

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as all Spark programs call it

from pelton.spark import pipelines
from pelton.spark.pipelines import stream_replay
from tests.spark.session import start_session

RATE = 10
_PAUSE_S = 0.02


def main(home: Path, place: str, value: str, stop_at: int) -> None:
    """Write the file ``at`` when ``stop_at`` rows are written, and continue when the file ``go`` exists."""

    def progress(done: int, total: int) -> None:
        if done == stop_at:
            (home / "at").touch()
            while not (home / "go").exists():
                time.sleep(_PAUSE_S)

    # The steps matter here, not that they take a second.
    stream_replay.pause = lambda seconds: None
    spark = start_session(home / "warehouse")
    rows = pipelines.read_archive(spark, str(home / "lake"))
    pipelines.replay(rows, "again", write_id="r", rate=RATE, transform=renamed, progress=progress, **{place: value})


def renamed(frame: DataFrame) -> DataFrame:
    """Give each message a subject of the other stream."""
    return frame.withColumn("subject", F.concat(F.lit("again."), F.substring_index("subject", ".", -1)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
