"""A program that uses Spark Connect: without its own JVM, it reports the results of what a user would do."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pelton
import pelton.spark
from pelton.spark import pipelines
from pelton.spark.pipelines.session import cause, running

# Spark waits 10 s for a process that it starts for a query, which a busy machine may exceed.
_TOO_SLOW = "connect back"
_TRIES = 20


def finished(start: Callable[[], Any]) -> Any:
    """Return a finished query; one that failed to start is started again: nothing is doubled."""
    for _ in range(_TRIES):
        try:
            query = start()
            query.awaitTermination()
            return query
        except PySparkException as error:
            if _TOO_SLOW not in str(error):
                raise
    raise AssertionError("Spark never waited long enough")


class Client:
    """Steps, each requested by its name; they share a store."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.home = home
        self.place = {"path": str(home / "s.pelton")}
        with pelton.sync.open(self.place["path"]) as jet:
            for name in ("orders", "copy", "again"):
                jet.create_stream(name, subjects=[f"{name}.>"])
            jet.create_bucket("cars")
            jet.queue("garage")
            jet.publish_batch([(f"orders.{n}", b'{"id": %d}' % n) for n in range(100)])

    def read(self, stream: str = "orders", **options: object) -> DataFrame:
        return self.spark.read.format("pelton").options(**self.place, stream=stream, **options).load()

    def follow(self, **options: object) -> DataFrame:
        return self.spark.readStream.format("pelton").options(**self.place, stream="orders", **options).load()

    def publish(self, count: int) -> None:
        with pelton.sync.open(self.place["path"]) as jet:
            jet.publish_batch([("orders.more", b"{}")] * count)

    # --- what is done

    def reads(self) -> Any:
        values = self.read(decode="json", valueSchema="id BIGINT")
        return [self.read().where("sequence > 10").count(), values.selectExpr("sum(value.id) AS s").first().s]

    def registers(self) -> Any:
        pelton.spark.register(self.spark)
        return self.read().count()

    def tells_errors(self) -> Any:
        try:
            self.read(strem="orders").count()
        except PySparkException as error:
            return "did you mean 'stream'" in str(error)

    def writes(self) -> Any:
        rows = self.read().selectExpr("concat('k', sequence) AS key", "data AS value")
        options = {**self.place, "bucket": "cars", "writeId": "w"}
        for _ in range(2):
            rows.write.format("pelton").mode("append").options(**options).save()
        with pelton.sync.open(self.place["path"]) as jet:
            return [jet.bucket("cars").get("k7").value.decode(), jet.stream("KV_cars").info().state.last_seq]

    def streams(self) -> Any:
        lags = []
        for more in (50, 25):
            rows = self.follow(maxRowsPerTrigger=60).selectExpr("concat('copy.', sequence) AS subject", "data")
            sink = rows.writeStream.format("pelton").options(**self.place, stream="copy")
            sink = sink.option("checkpointLocation", str(self.home / "checkpoint"))
            query = finished(sink.trigger(availableNow=True).start)
            lags.append(pelton.spark.lag(query.lastProgress))
            self.publish(more)
        subjects = [row.subject for row in self.read("copy").orderBy("sequence").collect()]
        return [lags, subjects == [f"copy.{seq}" for seq in range(1, 151)]]

    def works(self) -> Any:
        jobs = self.spark.range(20).selectExpr("id AS n", "concat('car', id) AS key")
        pelton.spark.enqueue_from(jobs, "garage", "paint", **self.place)

        def paint(rows: pd.DataFrame) -> pd.DataFrame:
            done = rows[["id"]].assign(coats=rows["n"] * 2, permanent=True)
            return done.assign(error=rows["n"].map(lambda n: "no paint" if n == 3 else None))

        told = pelton.spark.work("garage", paint, args="n INT", **self.place)
        letters = pipelines.dead_letters(self.spark, "garage", **self.place)
        causes = [[row.cause, row.letters] for row in pipelines.by_cause(letters).collect()]
        metrics = pipelines.job_metrics(pipelines.history(self.spark, "garage", **self.place), step="1 minute")
        jobs_of = metrics.summary.first().jobs
        redriven = pipelines.redrive(letters.where("key = 'car3'"), "garage", **self.place)
        return [[told.completed, told.failed, told.lost], causes, jobs_of, list(redriven)]

    def archives(self) -> Any:
        target = str(self.home / "lake")
        before = self.read().count()
        for more in (5, 0):
            rows, checkpoint = self.follow(maxRowsPerTrigger=100), str(self.home / "lake-checkpoint")
            finished(partial(pipelines.archive, rows, target, checkpoint=checkpoint))
            self.publish(more)
        archived = pipelines.read_archive(self.spark, target)
        return [archived.count() - before, archived.select("sequence").distinct().count() - before]

    def replays(self) -> Any:
        rows = self.read().where("sequence <= 30")
        told = [
            list(pipelines.replay(rows, "again", write_id="r", rate=20, subject="again.{sequence}", **self.place))
            for _ in range(2)
        ]
        return [told, self.read("again").count()]


def tried(step: Callable[[], Any]) -> Any:
    """Return the result of a step, or how it failed."""
    try:
        return step()
    except Exception as error:  # the test tells it
        return f"{type(error).__name__}: {cause(str(error))}"


def main(address: str, home: Path, steps: Sequence[str]) -> None:
    """Run steps in their order; print a line of JSON each."""
    with running("connect", master=address) as spark:
        client = Client(spark, home)
        for name in steps:
            print(json.dumps({name: tried(getattr(client, name))}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
