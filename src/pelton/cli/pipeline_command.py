"""``pelton pipeline``: streams to a lake and back, dead letters, and reports on queues, by Spark."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Final

from pelton.api import ConfigError, KeyFile
from pelton.cli.arguments import add_json, add_key, key_of
from pelton.cli.output import Bar, write_done, write_json, write_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LETTERS: Final = ("id", "job", "key", "attempts", "failed_at", "error")
_ALL: Final = 1_000_000

Verb = Callable[["SparkSession", argparse.Namespace, dict[str, str]], None]


def define_pipeline(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    archive = _verb(verbs, "archive", _archive, "write streams to a Delta table, each message once")
    archive.add_argument("stream", metavar="STREAM", help="several by comma, or a pattern such as orders-*")
    archive.add_argument("--to", required=True, metavar="TARGET", help="the table's folder, or an address of a lake")
    archive.add_argument("--form", choices=("delta", "parquet"), default="delta", help="default: delta")
    archive.add_argument("--checkpoint", metavar="FOLDER", help="keeps its position (default: TARGET-checkpoint)")
    archive.add_argument("--every", type=_positive, metavar="S", help="run until stopped (default: existing messages)")
    _add_replay(verbs)
    letters = _verb(verbs, "dead-letters", _dead_letters, "show failed jobs, and redrive chosen ones")
    letters.add_argument("queue", metavar="QUEUE")
    letters.add_argument("--where", metavar="SQL", help="only these, such as \"cause LIKE 'OSError%%'\"")
    letters.add_argument("--by-cause", action="store_true", help="count them by job and cause")
    letters.add_argument("--redrive", action="store_true", help="put those of --where (true: all) into the queue again")
    letters.add_argument("--limit", type=int, default=50, metavar="N", help="rows to show (default 50)")
    report = _verb(verbs, "report", _report, "write a report on a queue as an HTML page with plots")
    report.add_argument("queue", metavar="QUEUE")
    report.add_argument("--to", default="report.html", metavar="FILE", help="default: report.html")
    report.add_argument("--step", metavar="TEXT", help="the resolution of time, such as '1 minute'")


def _add_replay(verbs: Any) -> None:
    replay = _verb(verbs, "replay", _replay, "write an archive, or a stream, to a stream again")
    replay.add_argument("target", metavar="STREAM", help="the stream that takes the messages")
    source = replay.add_mutually_exclusive_group(required=True)
    source.add_argument("--archive", metavar="FOLDER", help="a Delta table made by pelton pipeline archive")
    source.add_argument("--source", metavar="STREAM", help="a stream of the same store or cluster")
    replay.add_argument("--name", required=True, metavar="NAME", help="this replay's name, by which it resumes")
    speed = replay.add_mutually_exclusive_group()
    speed.add_argument("--rate", type=_positive, metavar="N", help="messages per second")
    speed.add_argument("--pace", type=_positive, metavar="X", help="1: as fast as published; 60: a minute per second")
    replay.add_argument("--where", metavar="SQL", help="only these, such as \"stream = 'orders'\"")
    replay.add_argument("--transform", metavar="MODULE:FUNCTION", help="a function from DataFrame to DataFrame")
    replay.add_argument("--subject", metavar="TEMPLATE", help="subjects made of columns, such as again.{stream}")


def _verb(verbs: Any, name: str, verb: Verb, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text)
    parser.add_argument("store", metavar="STORE", help="a store file, or an address such as nats://host:4222")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of format('pelton')"
    )
    parser.add_argument("--master", default="local[*]", help="where Spark runs; default: local[*]; Connect: sc://host")
    parser.add_argument("--memory", default="2g", help="Spark's own, on this machine (default 2g)")
    add_json(parser)
    add_key(parser)
    parser.set_defaults(run=run_pipeline, verb=verb)
    return parser


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


def _archive(spark: SparkSession, options: argparse.Namespace, place: dict[str, str]) -> None:
    from pelton.spark import pipelines

    frame = spark.readStream.format("pelton").options(**{**place, "stream": options.stream}).load()
    checkpoint = options.checkpoint or f"{options.to.rstrip('/')}-checkpoint"
    query = pipelines.archive(frame, options.to, checkpoint=checkpoint, form=options.form, every=options.every)
    with Bar("messages archived") as bar:
        count = pipelines.watch(query, lambda rows: bar.show(rows, 0))
    write_done(options, {"to": options.to, "archived": count}, f"{options.to}: {count:,} messages archived")


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


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return number
