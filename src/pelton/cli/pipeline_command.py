"""``pelton pipeline``: streams to a lake and back, dead letters, and reports on queues, by Spark."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final, TypeVar

from pelton.api import ConfigError, KeyFile
from pelton.cli.arguments import JSON, KEY, declare, key_of, one_of, option, together
from pelton.cli.output import Bar, write_done, write_json, write_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LETTERS: Final = ("id", "job", "key", "attempts", "failed_at", "error")
_ALL: Final = 1_000_000

V = TypeVar("V", bound=Callable[["SparkSession", argparse.Namespace, dict[str, str]], None])


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return number


_SPARK: Final = together(
    option("STORE", "a store file, or an address such as nats://host:4222"),
    option("--option NAME=VALUE", "an option of format('pelton')", action="append", default=[]),
    option("--master MASTER", "where Spark runs; default: local[*]; Connect: sc://host", default="local[*]"),
    option("--memory MEMORY", "Spark's own, on this machine (default 2g)", default="2g"),
    JSON,
    KEY,
)


def _verb(words: str, text: str) -> Callable[[V], V]:
    def decorate(function: V) -> V:
        return declare(f"pipeline {words}", text, before=[_SPARK], run=run_pipeline, verb=function)(function)

    return decorate


def run_pipeline(options: argparse.Namespace) -> int:
    """Do one verb; 0 when it is done."""
    try:
        from pelton.spark.pipelines import session
    except ImportError as error:
        write_line(f"pelton pipeline needs its extra: pip install 'pelton[pipelines]' ({error})", error=True)
        return 1
    place = _place(options)
    _check(options)
    with (
        session.readable_errors(),
        session.running("pelton pipeline", master=options.master, memory=options.memory) as spark,
    ):
        options.verb(spark, options, place)
    session.clean_up(place)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Check the options before Spark is started, which takes long. Raises ConfigError."""
    if options.verb is _dead_letters and options.redrive and not options.where:
        raise ConfigError("choose the dead letters to redrive: --where \"cause LIKE '...'\", or --where true")


@_verb("archive", "write streams to a Delta table, each message once")
@option("STREAM", "several by comma, or a pattern such as orders-*")
@option("--to TARGET", "the table's folder, or an address of a lake", required=True)
@option("--form", "default: delta", choices=("delta", "parquet"), default="delta")
@option("--checkpoint FOLDER", "keeps its position (default: TARGET-checkpoint)")
@option("--every S", "run until stopped (default: existing messages)", type=_positive)
def _archive(spark: SparkSession, options: argparse.Namespace, place: dict[str, str]) -> None:
    from pelton.spark import pipelines

    frame = spark.readStream.format("pelton").options(**{**place, "stream": options.stream}).load()
    checkpoint = options.checkpoint or f"{options.to.rstrip('/')}-checkpoint"
    query = pipelines.archive(frame, options.to, checkpoint=checkpoint, form=options.form, every=options.every)
    with Bar("messages archived") as bar:
        count = pipelines.watch(query, lambda rows: bar.show(rows, 0))
    write_done(options, {"to": options.to, "archived": count}, f"{options.to}: {count:,} messages archived")


@_verb("replay", "write an archive, or a stream, to a stream again")
@option("STREAM", "the stream that takes the messages", dest="target")
@one_of(
    option("--archive FOLDER", "a Delta table made by pelton pipeline archive"),
    option("--source STREAM", "a stream of the same store or cluster"),
    required=True,
)
@option("--name NAME", "this replay's name, by which it resumes", required=True)
@one_of(
    option("--rate N", "messages per second", type=_positive),
    option("--pace X", "1: as fast as published; 60: a minute per second", type=_positive),
)
@option("--where SQL", "only these, such as \"stream = 'orders'\"")
@option("--transform MODULE:FUNCTION", "a function from DataFrame to DataFrame")
@option("--subject TEMPLATE", "subjects made of columns, such as again.{stream}")
def _replay(spark: SparkSession, options: argparse.Namespace, place: dict[str, str]) -> None:
    from pelton.spark import pipelines

    if options.archive:
        frame = pipelines.read_archive(spark, options.archive)
    else:
        frame = spark.read.format("pelton").options(**{**place, "stream": options.source}).load()
    if options.where:
        frame = frame.where(options.where)
    with Bar("replaying") as bar:
        done = pipelines.replay(
            frame,
            options.target,
            write_id=options.name,
            rate=options.rate,
            pace=options.pace,
            transform=_function(options.transform) if options.transform else None,
            subject=options.subject,
            progress=bar.show,
            **place,
        )
    before = f", {done.before:,} were written before" if done.before else ""
    written = {"target": options.target, "written": done.rows, "before": done.before}
    write_done(options, written, f"{options.target}: {done.rows:,} messages written{before}")


@_verb("dead-letters QUEUE", "show failed jobs, and redrive chosen ones")
@option("--where SQL", "only these, such as \"cause LIKE 'OSError%%'\"")
@option("--by-cause", "count them by job and cause")
@option("--redrive", "put those of --where (true: all) into the queue again")
@option("--limit N", "rows to show (default 50)", type=int, default=50)
def _dead_letters(spark: SparkSession, options: argparse.Namespace, place: dict[str, str]) -> None:
    from pelton.spark import pipelines

    letters = pipelines.dead_letters(spark, options.queue, **place)
    chosen = letters.where(options.where) if options.where else letters
    if options.redrive:
        with Bar("redriving") as bar:
            done = pipelines.redrive(chosen, options.queue, progress=bar.show, **place)
        gone = f", {done.gone:,} were already gone" if done.gone else ""
        redriven = {"queue": options.queue, "redriven": done.redriven, "gone": done.gone}
        write_done(options, redriven, f"{options.queue}: {done.redriven:,} jobs in the queue again{gone}")
        return
    shown = pipelines.by_cause(chosen) if options.by_cause else chosen.select(*_LETTERS).orderBy("failed_at")
    if options.json:
        write_json([row.asDict() for row in shown.limit(options.limit).collect()])
        return
    _print(shown.limit(options.limit))


@_verb("report QUEUE", "write a report on a queue as an HTML page with plots")
@option("--to FILE", "default: report.html", default="report.html")
@option("--step TEXT", "the resolution of time, such as '1 minute'")
def _report(spark: SparkSession, options: argparse.Namespace, place: dict[str, str]) -> None:
    from pelton.spark import pipelines

    history = pipelines.history(spark, options.queue, **place).cache()
    metrics = pipelines.job_metrics(history, step=options.step)
    pipelines.report(metrics, options.to, title=f"What queue {options.queue} has done")
    write_done(options, {"written": options.to}, f"{options.to}: written")


def _place(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source that address the store. Raises ConfigError."""
    from pelton.spark.options import address_options

    exists = os.path.exists(options.store)
    if not exists and ":" not in options.store:
        raise ConfigError(f"{options.store}: no such file")
    place = {"path": os.path.abspath(options.store)} if exists else address_options(options.store)
    key = key_of(options) if exists else None
    if isinstance(key, KeyFile):
        place["keyFile"] = os.path.abspath(options.key_file)
    elif key is not None:
        place["secretKey"] = str(key)
    for given in options.option:
        name, equals, value = given.partition("=")
        if not equals:
            raise ConfigError(f"--option {given}: write it as NAME=VALUE")
        place[name] = value
    return place


def _function(name: str) -> Callable[[DataFrame], DataFrame]:
    """Return a function by its name; modules in the current folder are found. Raises ConfigError."""
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found: Callable[[DataFrame], DataFrame] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--transform {name}: write it as MODULE:FUNCTION ({error})") from None
    return found


def _print(frame: DataFrame) -> None:
    with redirect_stdout(io.StringIO()) as shown:
        frame.show(_ALL, truncate=80)
    for line in shown.getvalue().rstrip("\n").split("\n"):
        write_line(line)
