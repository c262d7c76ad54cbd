"""The demo's last part: its streams go through Spark, to a Delta table, to tables of delay, to a report on the jobs.

The delay that aircraft handed on is already in a stream: each flight left its aircraft's state there. Joined with the
flights themselves, it shows which carriers and airports spread most.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from examples.flights.flights import Flight
from examples.flights.work import PLANES, QUEUE, decode_landed
from pelton.api import PeltonError
from pelton.runtime import stopwatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST: Final = 8
_NO_SPARK: Final = "Not shown: the Spark pipeline over these flights. It needs {what}; then run this again."


def show_lake(console: Console, store: Path, flights: Sequence[Flight], carriers: dict[str, str]) -> None:
    """Run the pipeline and print its results; one line if Spark cannot run here."""
    try:
        from pelton.spark.pipelines import session
    except ImportError:
        console.print(_NO_SPARK.format(what=r"pip install 'pelton\[pipelines]'"))
        return
    try:
        session.check_java()
    except PeltonError as error:
        console.print(_NO_SPARK.format(what=str(error).removeprefix("Spark needs ")), markup=False)
        return
    began = stopwatch()
    with console.status("Spark starts"), session.readable_errors(), session.running("pelton flights") as spark:
        _run(spark, console, store.resolve(), flights, carriers)
    session.clean_up({"path": str(store.resolve())})
    console.print(f"All of it by Spark, from its start to its end, in {stopwatch() - began:,.0f} s")


def _run(
    spark: SparkSession, console: Console, store: Path, flights: Sequence[Flight], carriers: dict[str, str]
) -> None:
    from pelton.spark import pipelines

    target = str(store.parent / "flights.lake")
    source = spark.readStream.format("pelton").options(path=str(store), stream=PLANES).load()
    query = pipelines.archive(source, target, checkpoint=f"{target}-checkpoint")
    count = pipelines.watch(query, lambda rows: None)
    console.print(f"Archived: {count:,} messages of stream {PLANES}, each once, to the Delta table {target}")
    handed_on = spread(pipelines.read_archive(spark, target), read(spark, store.parent, flights)).cache()
    names = {code: f"{name} ({code})" for code, name in carriers.items()}
    for what, title in (("tailnum", "aircraft"), ("carrier", "carriers"), ("origin", "airports of origin")):
        console.print(_table(most(handed_on, what).collect(), what, f"Delay handed on, by Spark: {title}", names))
    page = store.parent / "jobs.html"
    history = pipelines.history(spark, QUEUE, path=str(store)).cache()
    pipelines.report(pipelines.job_metrics(history), page, title="What the queue of flights has done")
    console.print(f"Report on the jobs: {page}")


def spread(archived: DataFrame, flights: DataFrame) -> DataFrame:
    """Return each flight that was done, with the minutes of delay that it inherited from the one before."""
    landed = archived.select("data").mapInArrow(_minutes, "flight BIGINT, minutes BIGINT")
    return landed.join(flights, "flight")


def read(spark: SparkSession, folder: Path, flights: Sequence[Flight]) -> DataFrame:
    """Return the flights as a Spark table, through a file in ``folder``."""
    path = folder / "flights.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows((f.index, f.carrier, f.origin, f.tailnum) for f in flights)
    return spark.read.csv(str(path), schema="flight BIGINT, carrier STRING, origin STRING, tailnum STRING")


def most(handed_on: DataFrame, what: str) -> DataFrame:
    """Return the flights and the minutes of those that inherited most."""
    from pyspark.sql import functions as F  # noqa: N812  # as all Spark programs call it

    sums = handed_on.groupBy(what).agg(F.count("*").alias("flights"), F.sum("minutes").alias("minutes"))
    late = sums.withColumn("each", F.col("minutes") / F.col("flights"))
    return late.orderBy(F.desc("minutes"), what).limit(_MOST)


def _minutes(batches: Iterator[Any]) -> Iterator[Any]:
    """Read the payloads of the stream of planes; runs in Spark's workers, on Arrow's batches."""
    for batch in batches:
        landed = [decode_landed(data) for data in batch.column("data").to_pylist()]
        yield type(batch).from_pydict(
            {"flight": [one.flight for one in landed], "minutes": [one.state.last_spread for one in landed]}
        )


def _table(rows: Sequence[Any], what: str, title: str, names: dict[str, str]) -> Table:
    table = Table(what.replace("tailnum", "aircraft"), title=title, title_justify="left")
    for heading in ("flights", "minutes taken over", "minutes a flight"):
        table.add_column(heading, justify="right")
    for row in rows:
        name, flights, minutes, each = row
        table.add_row(names.get(name, name), f"{flights:,}", f"{minutes:,}", f"{each:.2f}")
    return table
