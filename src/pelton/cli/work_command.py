"""``pelton work``: run the jobs that a program declares in a ``pelton.Jobs()``, in one process or several.

SIGTERM and SIGINT end it in order: it takes no more jobs, running ones have their grace, and what is left is handed
back, which does not count as an attempt. A second signal ends it at once. With --processes, --max-jobs or --reload, a
supervisor starts the processes that work, and replaces those that die; at SIGHUP it replaces them one after the other.

The exit status is 0 when it ended in order, 1 when it failed or could not start, 2 for a wrong command line, and
128 + N when a second signal N ended it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from contextlib import suppress
from pathlib import Path

from pelton.api import ConfigError
from pelton.cli.arguments import add_key, count
from pelton.cli.supervisor import SourceFiles, Supervisor
from pelton.cli.work_process import WorkPlan, found_jobs, work, write_work_logs
from pelton.runtime import system_runtime


def define_work(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__
    parser.add_argument("jobs", nargs="+", metavar="MODULE:ATTRIBUTE", help="a pelton.Jobs(), such as shop.jobs:jobs")
    parser.add_argument("--store", metavar="STORE", help="a file or nats://host (default: the variable PELTON_STORE)")
    parser.add_argument(
        "--queue", action="append", required=True, dest="queues", metavar="NAME", help="created if missing; repeatable"
    )
    parser.add_argument(
        "--concurrency",
        type=count,
        default=8,
        metavar="N",
        help="jobs at a time, of each queue in each process (default 8)",
    )
    parser.add_argument("--processes", type=count, metavar="N", help="processes, under a supervisor")
    parser.add_argument("--max-jobs", type=count, metavar="N", help="replace a process after N jobs of a queue")
    parser.add_argument("--reload", action="store_true", help="start again when a Python file changes (development)")
    parser.add_argument(
        "--grace", type=_seconds, default=30.0, metavar="SECONDS", help="for running jobs, at the end (default 30)"
    )
    parser.add_argument("--json-logs", action="store_true", help="log in JSON, an object a line")
    parser.add_argument(
        "--otel", action="store_true", help="trace jobs with OpenTelemetry, as the program configures it"
    )
    add_key(parser)
    parser.set_defaults(run=run_work)


def run_work(options: argparse.Namespace) -> int:
    """Work until stopped; return the exit status."""
    store = options.store or os.environ.get("PELTON_STORE")
    if not store:
        raise ConfigError("which store? give --store FILE, or set PELTON_STORE")
    plan = WorkPlan(
        jobs=tuple(options.jobs),
        store=store,
        queues=tuple(dict.fromkeys(options.queues)),
        concurrency=options.concurrency,
        grace=options.grace,
        max_jobs=options.max_jobs,
        key_file=options.key_file,
        json_logs=options.json_logs,
        otel=options.otel,
    )
    write_work_logs(json=plan.json_logs)
    if options.processes is None and options.max_jobs is None and not options.reload:
        for name in plan.jobs:
            found_jobs(name)
        asyncio.run(work(plan))
        return 0
    files = SourceFiles(Path.cwd()) if options.reload else None
    return asyncio.run(Supervisor(plan, options.processes or 1, system_runtime(), files).run())


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
