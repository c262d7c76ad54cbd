"""``pelton workers``: who works, and who ran the jobs that ended last."""

from __future__ import annotations

import argparse

from pelton import observe
from pelton.cli.stores import define_verb
from pelton.cli.tables import ago_text, seconds_text, write_json, write_table
from pelton.connect import Jet
from pelton.observe import WorkerSummary


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _workers)
    parser.add_argument("queue", nargs="?", default="", metavar="QUEUE", help="default: all")


async def _workers(jet: Jet, options: argparse.Namespace) -> None:
    if options.queue:
        await observe.queue_summary(jet, options.queue)
    queues = [options.queue] if options.queue else await jet.queue_names()
    found = [worker for queue in queues for worker in await observe.worker_summaries(jet, queue)]
    if options.json:
        write_json(found)
        return
    now = jet.runtime.clock.now()
    rows = [
        (one.queue, one.worker, _state(one), one.pid or "", one.running, seconds_text(one.oldest_running), one.ended,
         one.failed, one.last_job, ago_text(one.last_ended_at, now), ago_text(one.seen_at, now))
        for one in found
    ]  # fmt: skip
    heads = ("queue", "worker", "state", "pid", "running", "oldest", "jobs", "failed", "last job", "ended", "seen")
    write_table(heads, rows, empty="no worker, and none has ended a job")


def _state(worker: WorkerSummary) -> str:
    if not worker.seen_at:
        return "gone"
    return "stopping" if worker.stopping else "working" if worker.running else "idle"
