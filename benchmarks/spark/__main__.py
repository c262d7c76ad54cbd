"""Runs the Spark benchmarks and prints their results."""

import argparse
import tempfile
from pathlib import Path

from benchmarks.spark import reading, working, writing
from pelton.spark.pipelines.session import no_java
from tests.spark.session import start_session


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, default=5_000_000, help="rows of the store that memory is measured on")
    parser.add_argument("--only", choices=["batch", "backfill", "micro", "memory", "sink", "work"])
    asked = parser.parse_args()
    reason = no_java()
    if reason is not None:
        print(f"Spark's benches need Java: {reason}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = start_session(folder / "warehouse")
        reading.fill(folder / "s.pelton", asked.rows)
        found = []
        if asked.only in (None, "batch"):
            found += reading.batch(spark, folder, asked.rows, asked.rounds)
        if asked.only in (None, "backfill"):
            found += reading.backfill(spark, folder, asked.rows, asked.rows // 2)
        if asked.only in (None, "micro"):
            found += reading.micro_batches(spark, folder, 30)
        if asked.only in (None, "sink"):
            found += writing.sink(spark, folder, asked.rows, asked.rounds)
        if asked.only in (None, "work"):
            found += working.jobs(spark, folder, asked.rows // 10, asked.rounds)
        if asked.only in (None, "memory"):
            reading.memory(spark, folder, asked.large)
        print("\n".join(map(str, found)))
        spark.stop()


if __name__ == "__main__":
    main()
