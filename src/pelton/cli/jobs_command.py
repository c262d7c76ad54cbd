"""``pelton jobs``: the jobs of a queue."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pelton import observe
from pelton.api import rfc3339
from pelton.cli.output import write_line
from pelton.cli.stores import add_verb
from pelton.cli.tables import ago_text, moment_text, write_facts, write_json, write_table
from pelton.cli.values import count
from pelton.connect import Jet
from pelton.queue import JobInfo

_UNFINISHED = ("pending", "scheduled", "running", "retrying")
_ENDED = ("completed", "failed", "cancelled", "expired")


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(
        verbs, "ls", _list, "list the jobs of a queue that have not ended, or with --state those that have"
    )
    listing.add_argument("queue", metavar="QUEUE")
    listing.add_argument("--state", choices=(*_UNFINISHED, *_ENDED), help="only jobs in this state")
    listing.add_argument("--key", metavar="KEY", help="only jobs of this key")
    listing.add_argument("--job", metavar="NAME", help="only jobs of this name")
    listing.add_argument("--limit", type=count, default=50, metavar="N", help="how many at most (default 50)")
    showing = add_verb(verbs, "show", _show, "show one job")
    showing.add_argument("queue", metavar="QUEUE")
    showing.add_argument("id", metavar="ID")


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    found: list[JobInfo] = []
    async with aclosing(_jobs(jet, options)) as jobs:
        async for job in jobs:
            if options.key not in (None, job.key) or options.job not in (None, job.job):
                continue
            found.append(job)
            if len(found) >= options.limit:
                break
    if options.json:
        write_json(found)
        return
    now = jet.runtime.clock.now()
    rows = [
        (job.id, job.job, job.key, job.state, job.attempt, ago_text(rfc3339(job.enqueued_at), now), job.last_error[:60])
        for job in found
    ]
    write_table(("id", "job", "key", "state", "attempt", "enqueued", "last error"), rows, empty="no jobs")


async def _jobs(jet: Jet, options: argparse.Namespace) -> AsyncGenerator[JobInfo, None]:
    if options.state in _ENDED:
        for outcome in reversed(await observe.ended_jobs(jet, options.queue, max(options.limit * 20, 1000))):
            if outcome.state == options.state:
                yield await observe.job_details(jet, options.queue, outcome.id)
        return
    async with aclosing(observe.unfinished_jobs(jet, options.queue)) as jobs:
        async for job in jobs:
            if options.state in (None, job.state):
                yield job


async def _show(jet: Jet, options: argparse.Namespace) -> None:
    job = await observe.job_details(jet, options.queue, options.id)
    if options.json:
        write_json(job)
        return
    outcome = job.outcome
    facts: dict[str, str | int] = {
        "state": job.state,
        "key": job.key,
        "attempt": job.attempt,
        "enqueued": moment_text(rfc3339(job.enqueued_at)),
        "last error": job.last_error,
    }
    if outcome is not None:
        facts |= {
            "started": moment_text(rfc3339(outcome.started_at)),
            "finished": moment_text(rfc3339(outcome.finished_at)),
            "worker": outcome.worker,
            "result": bytes(outcome.result).decode(errors="replace") if outcome.state == "completed" else "",
        }
    write_facts(f"job {job.id}: {job.job}", facts)
    if outcome is not None and outcome.traceback:
        for line in outcome.traceback.rstrip("\n").split("\n"):
            write_line(f"    {line}")
