"""Commands for jobs: ``pelton jobs``, ``dead`` (failed for good), ``flow`` (jobs that depend on each other)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar, get_args

from msgspec.structs import replace

from pelton import observe
from pelton.api import ConfigError, JobNotFoundError
from pelton.api.wording import age_text, moment_text
from pelton.cli.arguments import (
    add_filters,
    add_queue,
    add_verb,
    add_wide,
    check_choice,
    count,
    duration,
    filter_text,
    moment_of,
    queue_of,
)
from pelton.cli.output import (
    add_force,
    is_agreed,
    plain,
    write_done,
    write_facts,
    write_found,
    write_json,
    write_line,
    write_table,
)
from pelton.connect import Jet
from pelton.queue import FlowInfo, Outcome, Queue
from pelton.queue.model.flow_records import FlowState

P = TypeVar("P", bound=Any)
T = TypeVar("T")
_PAGE_S: Final = 5.0
_UNFINISHED = ("pending", "scheduled", "held", "running", "retrying")
_ENDED = ("completed", "failed", "cancelled", "expired")


def define_jobs(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(
        verbs, "ls", _list_jobs, "list the jobs of a queue that have not ended, or with --state those that have"
    )
    add_queue(listing)
    listing.add_argument("--state", choices=(*_UNFINISHED, *_ENDED), help="only jobs in this state")
    _define_list(listing)
    text = "list the keys with most jobs that have not ended, and how many each has"
    keys = add_queue(add_verb(verbs, "keys", _keys, text))
    keys.add_argument("--limit", type=count, default=50, metavar="N", help="how many at most (default 50)")
    text = "show one job: what it waits for, its arguments, the errors of its attempts"
    add_queue(add_verb(verbs, "show", _show_jobs, text)).add_argument("id", metavar="ID")
    _define_add(add_queue(add_verb(verbs, "add", _add, "put a job into the queue", writes=True)))
    _define_cancel(add_queue(add_verb(verbs, "cancel", _cancel_jobs, "cancel jobs, waiting or running", writes=True)))
    text = "put failed jobs into the queue again, as 'dead redrive' does"
    retrying = add_queue(add_verb(verbs, "retry", _retry, text, writes=True))
    retrying.add_argument("id", nargs="+", metavar="ID")
    retrying.add_argument("--args", metavar="JSON", help="arguments to replace, by name, as a JSON object")
    waiting = add_queue(add_verb(verbs, "wait", _wait, "wait until jobs have ended, and show how", writes=True))
    waiting.add_argument("id", nargs="+", metavar="ID")
    waiting.add_argument("--timeout", type=duration, metavar="TIME", help="in all; default: for ever")


def _define_list(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    parser.add_argument("--tenant", metavar="TENANT", help="only jobs of this tenant")
    parser.add_argument("--error", metavar="TEXT", help="only jobs whose last error contains it")
    text = "only those of the last time, such as 1h, or since RFC 3339 text"
    parser.add_argument("--since", metavar="TIME", help=text)
    parser.add_argument("--limit", type=count, default=50, metavar="N", help="how many at most (default 50)")
    parser.add_argument("--reverse", action="store_true", help="from the other end")


def _define_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its name, as the worker's program declares it")
    parser.add_argument("--args", metavar="JSON", help="its arguments by name, as a JSON object")
    parser.add_argument("--key", metavar="KEY")
    parser.add_argument("--priority", type=int, metavar="N", help="0 to 3, the highest first (default 0)")
    parser.add_argument("--tenant", metavar="TENANT")
    parser.add_argument("--delay", type=duration, metavar="TIME", help="start it after this time")
    parser.add_argument("--ttl", type=duration, metavar="TIME", help="do not start it after this time")
    parser.add_argument("--unique", metavar="TEXT", help="not while another job of this name is there")


def _define_cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="*", metavar="ID")
    parser.add_argument("--state", choices=_UNFINISHED, help="all jobs in this state")
    parser.add_argument("--key", metavar="KEY", help="all jobs of this key")
    parser.add_argument("--job", metavar="NAME", help="all jobs of this name")
    parser.add_argument("--all", action="store_true", help="all jobs that have not ended")
    parser.add_argument("--reason", default="", metavar="TEXT", help="for the history, and for the job if it runs")
    add_force(parser)


async def _list_jobs(jet: Jet, options: argparse.Namespace) -> None:
    if options.tenant and options.state in _ENDED:
        raise ConfigError("--tenant is for jobs that have not ended: outcomes do not name it")
    wanted = replace(_selection(jet, options), state=options.state or "")
    # Those that run, or are tried again, have an order of their own; of those that wait, who has waited longest.
    is_waiting = (options.state or "pending") not in (*_ENDED, "running", "retrying")
    read = partial(observe.list_jobs, jet, options.queue, wanted, oldest_first=is_waiting != options.reverse)
    (found, cursor), now = await _read_pages(options, read, lambda page: page.jobs), jet.runtime.clock.now()
    write_found(
        options,
        found,
        "id, job, key, state, attempt, enqueued, runs for, worker, last error",
        lambda job: (job.id, job.job, job.key, job.state, job.attempt, age_text(job.enqueued_at, now),
                     age_text(job.started_at, now) if job.state == "running" else "", job.worker, job.last_error),
        empty="no jobs",
        drop="attempt, worker, enqueued",
    )  # fmt: skip
    _tell_of_more(options, cursor)


def _selection(jet: Jet, options: argparse.Namespace) -> observe.JobSelection:
    """Return what the filters select."""
    since = moment_of(options.since, jet.runtime.clock.now(), -1) if options.since else 0
    key, job, tenant, error = (getattr(options, name) or "" for name in ("key", "job", "tenant", "error"))
    return observe.JobSelection(key=key, job=job, tenant=tenant, error=error, since=since)


async def _read_pages(
    options: argparse.Namespace, read: Callable[..., Awaitable[P]], part: Callable[[P], Iterable[T]]
) -> tuple[list[T], str]:
    """Return what is on pages, until there are as many as wanted, or no more, and the cursor of what follows."""
    found, cursor = list[T](), ""
    while len(found) < options.limit:
        page = await read(cursor=cursor, limit=options.limit - len(found), within=_PAGE_S)
        found += part(page)
        cursor = page.cursor
        if not cursor:
            break
    return found, cursor


def _tell_of_more(options: argparse.Namespace, cursor: str) -> None:
    if cursor:
        write_line(f"there may be more than these {options.limit:,}: --limit, --reverse, --since", error=True)


async def _keys(jet: Jet, options: argparse.Namespace) -> None:
    counts = await observe.key_counts(jet, options.queue, limit=options.limit)
    if options.json:
        write_json(counts)
        return
    write_found(options, counts.keys, "key, jobs", lambda one: (one.key, one.jobs), empty="no jobs with keys")
    if counts.sampled:
        write_line(
            f"of the oldest {counts.sampled:,} jobs: in a queue that is not exclusive, only they name their keys"
        )


async def _show_jobs(jet: Jet, options: argparse.Namespace) -> None:
    details = await observe.job_with_details(jet, options.queue, options.id)
    job, outcome = details.job, details.job.outcome
    arguments = None if details.arguments is None else details.arguments.decode(errors="replace")
    if options.json:
        known = None if arguments is None else json.loads(arguments)
        write_json({**plain(job), "waits_for": details.waits_for, "arguments": known, "errors": details.errors})
        return
    progress = job.progress
    facts: dict[str, str | int] = {
        "state": job.state,
        "waits for": details.waits_for,
        "key": job.key,
        # Of one that has ended, it is not known.
        "priority": job.priority if outcome is None else "",
        "tenant": job.tenant,
        "attempt": job.attempt,
        "enqueued": moment_text(job.enqueued_at),
        "started": moment_text(job.started_at),
        "runs for": age_text(job.started_at, jet.runtime.clock.now()) if job.state == "running" else "",
        "finished": "" if outcome is None else moment_text(outcome.finished_at),
        "worker": job.worker,
        "progress": "" if progress is None else f"{progress.fraction:.0%} {progress.note}".rstrip(),
        "arguments": arguments or "",
        "last error": job.last_error,
        "result": bytes(outcome.result).decode(errors="replace") if outcome and outcome.state == "completed" else "",
    }
    write_facts(f"job {job.id}: {job.job}", facts)
    for each in details.errors:
        write_line(f"  attempt {each.attempt}, {moment_text(each.at)}: {each.error}")
    if outcome is not None and outcome.traceback:
        for line in outcome.traceback.rstrip("\n").split("\n"):
            write_line(f"    {line}")


async def _add(jet: Jet, options: argparse.Namespace) -> None:
    queue, given = await queue_of(jet, options), _arguments(options.args) or {}
    names = ("key", "priority", "tenant", "delay", "ttl", "unique")
    chosen = {name: value for name in names if (value := getattr(options, name)) is not None}
    handle = await queue.options(**chosen).enqueue(options.job, **given)
    write_done(options, {"queue": options.queue, "id": handle.id}, f"job {handle.id} is in queue {options.queue}")


async def _cancel_jobs(jet: Jet, options: argparse.Namespace) -> int:
    check_choice(options, "state", "key", "job")
    queue = await queue_of(jet, options)
    ids = options.id or await _choose_ids(queue, options)
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


async def _choose_ids(queue: Queue, options: argparse.Namespace) -> list[str]:
    return [job.id async for job in queue.jobs(state=options.state, key=options.key, job=options.job)]


async def _retry(jet: Jet, options: argparse.Namespace) -> int:
    given = _arguments(options.args)
    return await _put_again(await queue_of(jet, options), options.id, given, options)


async def _put_again(queue: Queue, ids: list[str], given: dict[str, object] | None, options: argparse.Namespace) -> int:
    """Redrive jobs, with other arguments if any are given; return 0 if all are in the queue again."""
    again: dict[str, str] = {}
    for job_id in ids:
        try:
            again[job_id] = (await queue.redrive(job_id, given)).id
        except JobNotFoundError as error:
            write_line(f"pelton: {error}", error=True)
    if options.json:
        write_json({"redriven": again})
    else:
        for old, new in again.items():
            write_line(f"job {old} is in the queue again, as job {new}")
    return 0 if len(again) == len(ids) else 1


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


# --- ``pelton dead``: jobs that failed for good, and another try


def define_dead(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    _define_list(add_queue(add_verb(verbs, "ls", _list_dead, "list the dead letters of a queue, the newest first")))
    text = "count the dead letters of a queue by their errors, in which numbers do not matter"
    _define_list(add_queue(add_verb(verbs, "errors", _errors, text)))
    text = "show a dead letter: arguments, error, traceback"
    add_queue(add_verb(verbs, "show", _show_dead, text)).add_argument("id", metavar="ID")
    text = "put failed jobs into their queue again"
    _choose(add_queue(add_verb(verbs, "redrive", _redrive, text, writes=True)))
    text = "remove dead letters; the history keeps how the jobs ended"
    removing = add_queue(add_verb(verbs, "rm", _remove, text, writes=True))
    _choose(removing)
    add_force(removing)


def _choose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="*", metavar="ID")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--key", metavar="KEY", help="all jobs of this key")
    parser.add_argument("--job", metavar="NAME", help="all jobs of this name")


async def _ids(queue: Queue, options: argparse.Namespace) -> list[str]:
    return [letter.outcome.id async for letter in queue.dead_letters(key=options.key, job=options.job)]


async def _list_dead(jet: Jet, options: argparse.Namespace) -> None:
    wanted, now = _selection(jet, options), jet.runtime.clock.now()
    read = partial(observe.list_dead_letters, jet, options.queue, wanted, oldest_first=options.reverse)
    found, cursor = await _read_pages(options, read, lambda page: page.letters)
    write_found(
        options,
        found,
        "id, job, key, attempts, failed, error",
        lambda each: (each.outcome.id, each.outcome.job, each.outcome.key, each.outcome.attempt,
                      age_text(each.outcome.finished_at, now), each.outcome.error),
        empty="no dead letters",
        drop="attempts",
    )  # fmt: skip
    _tell_of_more(options, cursor)


async def _errors(jet: Jet, options: argparse.Namespace) -> None:
    wanted, now = _selection(jet, options), jet.runtime.clock.now()
    found = await observe.group_dead_letters(jet, options.queue, wanted, limit=options.limit, within=_PAGE_S)
    write_found(
        options,
        found.groups,
        "number, job, last, last id, error",
        lambda one: (one.number, one.job, age_text(one.last_at, now), one.last_id, one.error),
        empty="no dead letters",
    )
    if not found.is_whole:
        write_line(f"of the newest {found.looked_at:,} dead letters", error=True)


async def _show_dead(jet: Jet, options: argparse.Namespace) -> None:
    letter = await observe.dead_letter(jet, options.queue, options.id)
    if letter is None:
        raise JobNotFoundError(options.queue, options.id, "it left no dead letter, or was already redriven")
    if options.json:
        write_json(letter)
        return
    outcome = letter.outcome
    write_facts(
        f"job {outcome.id}: {outcome.job}",
        {
            "key": outcome.key,
            "attempts": outcome.attempt,
            "enqueued": moment_text(outcome.enqueued_at),
            "failed": moment_text(outcome.finished_at),
            "worker": outcome.worker,
            "arguments": bytes(letter.envelope.args).decode(errors="replace"),
            "error": outcome.error,
        },
    )
    for line in outcome.traceback.rstrip("\n").split("\n") if outcome.traceback else ():
        write_line(f"    {line}")


async def _redrive(jet: Jet, options: argparse.Namespace) -> int:
    check_choice(options, "key", "job")
    queue = await queue_of(jet, options)
    return await _put_again(queue, options.id or await _ids(queue, options), None, options)


async def _remove(jet: Jet, options: argparse.Namespace) -> int:
    check_choice(options, "key", "job")
    queue = await queue_of(jet, options)
    ids = options.id or await _ids(queue, options)
    question = f"Really remove {len(ids):,} dead letters of queue {options.queue}{filter_text(options)}?"
    if not is_agreed(options, question):
        return 1
    done = []
    for job_id in ids:
        try:
            await queue.discard(job_id)
        except JobNotFoundError as error:
            write_line(f"pelton: {error}", error=True)
            continue
        done.append(job_id)
    write_done(options, {"deleted": done}, f"{len(done):,} dead letters removed")
    return 0 if len(done) == len(ids) else 1


# --- ``pelton flow``: jobs that depend on each other; how far they are, and cancel them


def define_flow(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_queue(add_verb(verbs, "ls", _list_flow, "list the flows of a queue, those that began last first"))
    listing.add_argument("--state", choices=get_args(FlowState), help="only flows in this state")
    listing.add_argument("--limit", type=count, default=50, metavar="N", help="how many at most (default 50)")
    add_wide(_with_id(add_verb(verbs, "show", _show_flow, "show a flow with its jobs")))
    text = "cancel a flow: jobs that wait never start, the others are cancelled"
    cancelling = _with_id(add_verb(verbs, "cancel", _cancel_flow, text, writes=True))
    cancelling.add_argument("--reason", default="", metavar="TEXT", help="for the history")


def _with_id(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_queue(parser).add_argument("id", metavar="ID")
    return parser


async def _list_flow(jet: Jet, options: argparse.Namespace) -> None:
    # Whether the queue exists, its flows do not tell.
    await queue_of(jet, options)
    found = await observe.flow_summaries(jet, options.queue, state=options.state, limit=options.limit, within=60)
    now = jet.runtime.clock.now()
    write_found(
        options,
        found,
        "id, name, state, jobs, enqueued, error",
        lambda one: (one.id, one.name, one.state, one.size, age_text(one.enqueued_at, now), one.error),
        empty="no flows",
        drop="jobs",
    )  # fmt: skip


async def _show_flow(jet: Jet, options: argparse.Namespace) -> None:
    flow = await observe.flow_details(jet, options.queue, options.id)
    if options.json:
        write_json(flow)
        return
    facts: dict[str, str | int] = {
        "state": flow.state,
        "jobs": flow.size,
        "enqueued": moment_text(flow.enqueued_at),
        "ended": moment_text(flow.finished_at) if flow.finished_at else "",
        "error": flow.error,
    }
    write_facts(f"flow {flow.id}" + (f": {flow.name}" if flow.name else ""), facts)
    write_line("")
    _write_nodes(flow, wide=options.wide)


def _write_nodes(flow: FlowInfo, *, wide: bool) -> None:
    rows = [
        (str(node.number), node.job, node.state, node.id, ", ".join(map(str, node.after)), node.error)
        for node in flow.nodes
    ]
    write_table(("job", "name", "state", "id", "after", "error"), rows, empty="no jobs", drop="id", wide=wide)


async def _cancel_flow(jet: Jet, options: argparse.Namespace) -> int:
    queue = await queue_of(jet, options)
    is_cancelled = await queue.flow(options.id).cancel(reason=options.reason)
    done = "cancelled" if is_cancelled else "had ended before"
    write_done(options, {"cancelled": {options.id: is_cancelled}}, f"flow {options.id}: {done}")
    return 0 if is_cancelled else 1
