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
from pelton.api.wording import age_text, moment_text, text_for_people
from pelton.cli.arguments import (
    FILTERS,
    FORCE,
    WIDE,
    check_choice,
    filter_text,
    moment_of,
    option,
    queue_of,
    store_command,
    together,
)
from pelton.cli.output import (
    confirm,
    plain,
    write_done,
    write_facts,
    write_found,
    write_json,
    write_line,
    write_lines,
    write_table,
)
from pelton.connect import Jet
from pelton.observe.summaries import history_lines
from pelton.queue import FlowInfo, Outcome, Queue
from pelton.queue.builder import FlowState

P = TypeVar("P", bound=Any)
T = TypeVar("T")
_PAGE_S: Final = 5.0
_UNFINISHED = ("pending", "scheduled", "waiting", "stuck", "held", "running", "retrying")
_ENDED = ("completed", "failed", "cancelled", "expired")


_LIMIT: Final = option("--limit N", "how many at most (default 50)", default=50)
_SINCE: Final = option("--since TIME", "only those of the last time, such as 1h, or since RFC 3339 text", type=str)
_SELECTION: Final = together(
    FILTERS,
    option("--tenant TENANT", "only jobs of this tenant"),
    option("--error TEXT", "only jobs whose last error contains it"),
    _SINCE,
    _LIMIT,
    option("--reverse", "from the other end"),
)
_SAME: Final = together(option("--key KEY", "all jobs of this key"), option("--job NAME", "all jobs of this name"))


@store_command("jobs ls QUEUE", "list the jobs of a queue that have not ended, or with --state those that have")
@option("--state", "only jobs in this state", choices=(*_UNFINISHED, *_ENDED))
@_SELECTION
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
    key, job, tenant, error = (getattr(options, name) or "" for name in ("key", "job", "tenant", "error"))
    return observe.JobSelection(key=key, job=job, tenant=tenant, error=error, since=_since(jet, options))


def _since(jet: Jet, options: argparse.Namespace) -> int:
    return moment_of(options.since, jet.runtime.clock.now(), -1) if options.since else 0


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


@store_command("jobs keys QUEUE", "list the keys with most jobs that have not ended, and how many each has")
@_LIMIT
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


@store_command("jobs show QUEUE ID", "show one job: what it waits for, its arguments, the errors of its attempts")
async def _show_jobs(jet: Jet, options: argparse.Namespace) -> None:
    details = await observe.job_with_details(jet, options.queue, options.id)
    job, outcome = details.job, details.job.outcome
    arguments = None if details.arguments is None else details.arguments.decode(errors="replace")
    known = json.loads(arguments) if options.json and arguments is not None else None
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
    record = {
        **plain(job), "waits_for": details.waits_for, "arguments": known, "errors": details.errors,
        "history": details.history,
    }  # fmt: skip
    errors = [
        f"  {moment_text(at)}: {what}{detail and f': {detail}'}" for at, what, detail in history_lines(details.history)
    ]
    errors += [f"  attempt {each.attempt}, {moment_text(each.at)}: {each.error}" for each in details.errors]
    errors += [] if outcome is None else _traceback_lines(outcome)
    write_facts(options, record, f"job {job.id}: {job.job}", facts, errors)


@store_command("jobs add QUEUE", "put a job into the queue", writes=True)
@option("JOB", "its name, as the worker's program declares it")
@option("--args JSON", "its arguments by name, as a JSON object")
@option("--key KEY")
@option("--priority N", "0 to 3, the highest first (default 0)", type=int)
@option("--tenant TENANT")
@option("--delay TIME", "start it after this time")
@option("--ttl TIME", "do not start it after this time")
@option("--unique TEXT", "not while another job of this name is there")
async def _add(jet: Jet, options: argparse.Namespace) -> None:
    queue, given = await queue_of(jet, options), _arguments(options.args) or {}
    names = ("key", "priority", "tenant", "delay", "ttl", "unique")
    chosen = {name: value for name in names if (value := getattr(options, name)) is not None}
    handle = await queue.options(**chosen).enqueue(options.job, **given)
    write_done(options, {"queue": options.queue, "id": handle.id}, f"job {handle.id} is in queue {options.queue}")


@store_command("jobs cancel QUEUE [ID...]", "cancel jobs, waiting or running", writes=True)
@option("--state", "all jobs in this state", choices=_UNFINISHED)
@_SAME
@option("--all", "all jobs that have not ended")
@option("--reason TEXT", "for the history, and for the job if it runs", default="")
@FORCE
async def _cancel_jobs(jet: Jet, options: argparse.Namespace) -> int:
    check_choice(options, "state", "key", "job")
    queue = await queue_of(jet, options)
    picked = queue.jobs(state=options.state, key=options.key, job=options.job)
    ids = options.id or [job.id async for job in picked]
    if not ids:
        return _write_none(options, {"cancelled": {}}, "unfinished jobs")
    question = f"Really cancel {len(ids):,} jobs of queue {options.queue}{filter_text(options)}?"
    # Ids were chosen one by one.
    if not options.id:
        confirm(options, question)
    ended = await _for_each(queue, ids, lambda job_id: queue.cancel(job_id, reason=options.reason))
    told = {True: "cancelled", False: "had ended before"}
    # A function on a thread ends when it looks, or returns.
    running = {job.id async for job in queue.jobs(state="running")} if any(ended.values()) else set[str]()
    lines = [f"job {one}: {'runs, and is told to end' if one in running else told[how]}" for one, how in ended.items()]
    write_lines(options, {"cancelled": ended}, lines)
    return 0 if len(ended) == len(ids) and all(ended.values()) else 1


@store_command("jobs send QUEUE ID SIGNAL", "send a signal to a job: what it waits for, or will", writes=True)
@option("--value JSON", "its value (default null)")
@option("--msg-id TEXT", "not if one of this id was sent to the job before", default="")
async def _send(jet: Jet, options: argparse.Namespace) -> None:
    queue, value = await queue_of(jet, options), _json("--value", options.value)
    is_sent = await queue.send(options.id, options.signal, value, msg_id=options.msg_id)
    done = "is sent" if is_sent else "was sent before"
    write_done(options, {"sent": is_sent}, f"signal {options.signal} to job {options.id} {done}")


def _write_none(options: argparse.Namespace, value: object, what: str) -> int:
    """Say that nothing matches what was chosen, where there is nothing to ask about; return the status."""
    write_done(options, value, f"queue {options.queue} has no {what}{filter_text(options)}")
    return 0


@store_command("jobs retry QUEUE ID...", "put failed jobs into the queue again, as 'dead redrive' does", writes=True)
@option("--args JSON", "arguments to replace, by name, as a JSON object")
async def _retry(jet: Jet, options: argparse.Namespace) -> int:
    given = _arguments(options.args)
    return await _put_again(await queue_of(jet, options), options.id, given, options)


async def _put_again(queue: Queue, ids: list[str], given: dict[str, object] | None, options: argparse.Namespace) -> int:
    """Redrive jobs, with other arguments if any are given; return 0 if all are in the queue again."""
    handles = await _for_each(queue, ids, lambda job_id: queue.redrive(job_id, given))
    again = {old: handle.id for old, handle in handles.items()}
    lines = [f"job {old} is in the queue again, as job {new}" for old, new in again.items()]
    options.done = f"{len(again):,} jobs are in the queue again"
    write_lines(options, {"redriven": again}, lines)
    return 0 if len(again) == len(ids) else 1


async def _for_each(queue: Queue, ids: Iterable[str], do: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Return what was done for each job; one for which it cannot be is told on standard error, and stops no other."""
    done: dict[str, T] = {}
    for job_id in ids:
        try:
            done[job_id] = await do(job_id)
        except (JobNotFoundError, ConfigError) as error:
            write_line(f"pelton: {await _reason(queue, job_id, error)}", error=True)
    return done


async def _reason(queue: Queue, job_id: str, error: Exception) -> str:
    """Return why something was not done for a job: of one that is there, that it is no dead letter."""
    try:
        job = await queue.get(job_id)
    except (JobNotFoundError, ConfigError) as unknown:
        return text_for_people(unknown)
    if not isinstance(error, JobNotFoundError):
        return text_for_people(error)
    why = "was redriven or removed already" if job.state == "failed" else f"is {job.state}, not failed"
    return f"job {job_id} of queue {queue.name!r} is no dead letter: it {why}"


def _arguments(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    found = _json("--args", text)
    if not isinstance(found, dict):
        raise ConfigError('--args names arguments: give a JSON object, such as \'{"car": "car1"}\'')
    return found


def _json(what: str, text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what} is no JSON: {error}") from None


@store_command("jobs wait QUEUE ID...", "wait until jobs have ended, and show how", writes=True)
@option("--timeout TIME", "in all; default: for ever")
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
        except TimeoutError:
            waited = f"has not ended within {options.timeout:g} s; it was not cancelled"
            write_line(f"pelton: job {job_id} of queue {options.queue!r} {waited}", error=True)
            continue
        if not options.json:
            last = outcomes[-1]
            write_line(f"job {job_id}: {last.state}" + (f": {last.error}" if last.error else ""), flush=True)
    if options.json:
        write_json(outcomes)
    is_well = len(outcomes) == len(options.id) and all(one.state == "completed" for one in outcomes)
    return 0 if is_well else 1


# --- ``pelton dead``: jobs that failed for good, and another try


_ALL: Final = option("--all", "all of them")


async def _ids(queue: Queue, options: argparse.Namespace) -> list[str]:
    return [letter.outcome.id async for letter in queue.dead_letters(key=options.key, job=options.job)]


@store_command("dead ls QUEUE", "list the dead letters of a queue, the newest first")
@_SELECTION
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


@store_command("dead errors QUEUE", "count the dead letters of a queue by their errors, in which numbers do not matter")
@_SELECTION
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


@store_command("dead show QUEUE ID", "show a dead letter: arguments, error, traceback")
async def _show_dead(jet: Jet, options: argparse.Namespace) -> None:
    letter = await observe.dead_letter(jet, options.queue, options.id)
    if letter is None:
        none = JobNotFoundError(options.queue, options.id, "it left no dead letter, or was already redriven")
        raise ConfigError(await _reason(await queue_of(jet, options), options.id, none))
    outcome = letter.outcome
    write_facts(
        options,
        letter,
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
        _traceback_lines(outcome),
    )


def _traceback_lines(outcome: Outcome) -> list[str]:
    return [f"    {line}" for line in outcome.traceback.rstrip("\n").split("\n")] if outcome.traceback else []


@store_command("dead redrive QUEUE [ID...]", "put failed jobs into their queue again", writes=True)
@_ALL
@_SAME
async def _redrive(jet: Jet, options: argparse.Namespace) -> int:
    check_choice(options, "key", "job")
    queue = await queue_of(jet, options)
    ids = options.id or await _ids(queue, options)
    if not ids:
        return _write_none(options, {"redriven": {}}, "dead letters")
    return await _put_again(queue, ids, None, options)


@store_command("dead rm QUEUE [ID...]", "remove dead letters; the history keeps how the jobs ended", writes=True)
@_ALL
@_SAME
@FORCE
async def _remove(jet: Jet, options: argparse.Namespace) -> int:
    check_choice(options, "key", "job")
    queue = await queue_of(jet, options)
    ids = options.id or await _ids(queue, options)
    if not ids:
        return _write_none(options, {"deleted": []}, "dead letters")
    confirm(options, f"Really remove {len(ids):,} dead letters of queue {options.queue}{filter_text(options)}?")
    done = [*await _for_each(queue, ids, queue.discard)]
    write_done(options, {"deleted": done}, f"{len(done):,} dead letters removed")
    return 0 if len(done) == len(ids) else 1


# --- ``pelton flow``: jobs that depend on each other; how far they are, and cancel them


@store_command("flow ls QUEUE", "list the flows of a queue, those that began last first")
@option("--state", "only flows in this state", choices=get_args(FlowState))
@_SINCE
@_LIMIT
async def _list_flow(jet: Jet, options: argparse.Namespace) -> None:
    # Whether the queue exists, its flows do not tell.
    await queue_of(jet, options)
    state, since, limit = options.state, _since(jet, options), options.limit
    found = await observe.flow_summaries(jet, options.queue, state=state, since=since, limit=limit, within=60)
    now = jet.runtime.clock.now()
    write_found(
        options,
        found,
        "id, name, state, jobs, enqueued, error",
        lambda one: (one.id, one.name, one.state, one.size, age_text(one.enqueued_at, now), one.error),
        empty="no flows",
        drop="jobs",
    )  # fmt: skip


@store_command("flow show QUEUE ID", "show a flow with its jobs")
@WIDE
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
    write_facts(options, flow, f"flow {flow.id}" + (f": {flow.name}" if flow.name else ""), facts)
    write_line("")
    _write_nodes(flow, wide=options.wide)


def _write_nodes(flow: FlowInfo, *, wide: bool) -> None:
    rows = [
        (str(node.number), node.job, node.state, node.id, ", ".join(map(str, node.after)), node.error)
        for node in flow.nodes
    ]
    write_table(("job", "name", "state", "id", "after", "error"), rows, empty="no jobs", drop="id", wide=wide)


@store_command(
    "flow cancel QUEUE ID", "cancel a flow: jobs that wait never start, the others are cancelled", writes=True
)
@option("--reason TEXT", "for the history", default="")
async def _cancel_flow(jet: Jet, options: argparse.Namespace) -> int:
    queue = await queue_of(jet, options)
    is_cancelled = await queue.flow(options.id).cancel(reason=options.reason)
    done = "cancelled" if is_cancelled else "had ended before"
    write_done(options, {"cancelled": {options.id: is_cancelled}}, f"flow {options.id}: {done}")
    return 0 if is_cancelled else 1
