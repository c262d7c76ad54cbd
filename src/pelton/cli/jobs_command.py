"""``pelton jobs``: the jobs of a queue; cancel them, try them again, wait for them."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pelton import observe
from pelton.api import ConfigError, JobNotFoundError, rfc3339
from pelton.cli.asking import add_force, is_agreed
from pelton.cli.output import write_line
from pelton.cli.queues import add_filters, add_queue, check_choice, filter_text, queue_of
from pelton.cli.stores import add_verb
from pelton.cli.tables import ago_text, moment_text, write_facts, write_json, write_table
from pelton.cli.values import count, duration
from pelton.connect import Jet
from pelton.queue import JobInfo, Outcome, Queue

_UNFINISHED = ("pending", "scheduled", "held", "running", "retrying")
_ENDED = ("completed", "failed", "cancelled", "expired")


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(
        verbs, "ls", _list, "list the jobs of a queue that have not ended, or with --state those that have"
    )
    add_queue(listing)
    listing.add_argument("--state", choices=(*_UNFINISHED, *_ENDED), help="only jobs in this state")
    add_filters(listing)
    listing.add_argument("--tenant", metavar="TENANT", help="only jobs of this tenant that have not ended")
    listing.add_argument("--limit", type=count, default=50, metavar="N", help="how many at most (default 50)")
    text = "list the keys with most jobs that have not ended, and how many each has"
    keys = add_queue(add_verb(verbs, "keys", _keys, text))
    keys.add_argument("--limit", type=count, default=50, metavar="N", help="how many at most (default 50)")
    add_queue(add_verb(verbs, "show", _show, "show one job")).add_argument("id", metavar="ID")
    _define_cancel(add_queue(add_verb(verbs, "cancel", _cancel, "cancel jobs, waiting or running", writes=True)))
    text = "put failed jobs into the queue again, as 'dead redrive' does"
    retrying = add_queue(add_verb(verbs, "retry", _retry, text, writes=True))
    retrying.add_argument("id", nargs="+", metavar="ID")
    retrying.add_argument("--args", metavar="JSON", help="arguments to replace, by name, as a JSON object")
    waiting = add_queue(add_verb(verbs, "wait", _wait, "wait until jobs have ended, and show how", writes=True))
    waiting.add_argument("id", nargs="+", metavar="ID")
    waiting.add_argument("--timeout", type=duration, metavar="TIME", help="in all; default: for ever")


def _define_cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="*", metavar="ID")
    parser.add_argument("--state", choices=_UNFINISHED, help="all jobs in this state")
    parser.add_argument("--key", metavar="KEY", help="all jobs of this key")
    parser.add_argument("--job", metavar="NAME", help="all jobs of this name")
    parser.add_argument("--all", action="store_true", help="all jobs that have not ended")
    parser.add_argument("--reason", default="", metavar="TEXT", help="for the history, and for the job if it runs")
    add_force(parser)


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    found: list[JobInfo] = []
    async with aclosing(_ended(jet, options) if options.state in _ENDED else _unfinished(jet, options)) as jobs:
        async for job in jobs:
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


async def _keys(jet: Jet, options: argparse.Namespace) -> None:
    counts = await observe.key_counts(jet, options.queue, limit=options.limit)
    if options.json:
        write_json(counts)
        return
    write_table(("key", "jobs"), [(one.key, one.jobs) for one in counts.keys], empty="no jobs with keys")
    if counts.sampled:
        write_line(
            f"of the oldest {counts.sampled:,} jobs: in a queue that is not exclusive, only they name their keys"
        )


def _unfinished(jet: Jet, options: argparse.Namespace) -> AsyncGenerator[JobInfo, None]:
    return observe.unfinished_jobs(
        jet, options.queue, state=options.state, key=options.key, job=options.job, tenant=options.tenant
    )


async def _ended(jet: Jet, options: argparse.Namespace) -> AsyncGenerator[JobInfo, None]:
    await queue_of(jet, options)
    if options.tenant is not None:
        raise ConfigError("--tenant is for jobs that have not ended: outcomes do not name it")
    for outcome in reversed(await observe.ended_jobs(jet, options.queue, max(options.limit * 20, 1000))):
        is_asked = options.key in (None, outcome.key) and options.job in (None, outcome.job)
        if outcome.state == options.state and is_asked:
            yield await observe.job_details(jet, options.queue, outcome.id)


async def _show(jet: Jet, options: argparse.Namespace) -> None:
    job = await observe.job_details(jet, options.queue, options.id)
    if options.json:
        write_json(job)
        return
    outcome = job.outcome
    facts: dict[str, str | int] = {
        "state": job.state,
        "key": job.key,
        "priority": job.priority,
        "tenant": job.tenant,
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


async def _cancel(jet: Jet, options: argparse.Namespace) -> int:
    check_choice(options, "state", "key", "job")
    queue = await queue_of(jet, options)
    ids = options.id or await _chosen(queue, options)
    question = f"Really cancel {len(ids):,} jobs of queue {options.queue}{filter_text(options)}?"
    # Ids were chosen one by one.
    if not options.id and not is_agreed(options, question):
        return 1
    ended: dict[str, bool] = {}
    for job_id in ids:
        try:
            ended[job_id] = await queue.cancel(job_id, reason=options.reason)
        except JobNotFoundError as error:
            write_line(f"pelton: {error}", error=True)
    if options.json:
        write_json({"cancelled": ended})
    else:
        for job_id, is_cancelled in ended.items():
            write_line(f"job {job_id}: " + ("cancelled" if is_cancelled else "had ended before"))
    return 0 if len(ended) == len(ids) and all(ended.values()) else 1


async def _chosen(queue: Queue, options: argparse.Namespace) -> list[str]:
    return [job.id async for job in queue.jobs(state=options.state, key=options.key, job=options.job)]


async def _retry(jet: Jet, options: argparse.Namespace) -> int:
    queue, given = await queue_of(jet, options), _arguments(options.args)
    again: dict[str, str] = {}
    for job_id in options.id:
        try:
            again[job_id] = (await queue.redrive(job_id, given)).id
        except JobNotFoundError as error:
            write_line(f"pelton: {error}", error=True)
    if options.json:
        write_json({"redriven": again})
    else:
        for old, new in again.items():
            write_line(f"job {old} is in the queue again, as job {new}")
    return 0 if len(again) == len(options.id) else 1


def _arguments(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--args is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError('--args names arguments: give a JSON object, such as \'{"car": "car1"}\'')
    return found


async def _wait(jet: Jet, options: argparse.Namespace) -> int:
    queue, clock = await queue_of(jet, options), jet.runtime.clock
    end = None if options.timeout is None else clock.monotonic() + options.timeout
    outcomes: list[Outcome] = []
    for job_id in options.id:
        # Raises for an id that was never enqueued, for which it would wait in vain.
        await queue.get(job_id)
        left = None if end is None else max(end - clock.monotonic(), 0.0)
        try:
            outcomes.append(await queue.handle(job_id).outcome(timeout=left))
        except TimeoutError as error:
            write_line(f"pelton: {error}", error=True)
            continue
        if not options.json:
            last = outcomes[-1]
            write_line(f"job {job_id}: {last.state}" + (f": {last.error}" if last.error else ""), flush=True)
    if options.json:
        write_json(outcomes)
    is_well = len(outcomes) == len(options.id) and all(one.state == "completed" for one in outcomes)
    return 0 if is_well else 1
