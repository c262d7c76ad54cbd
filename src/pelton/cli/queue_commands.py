"""Commands for queues: ``pelton queue``, ``limits``, ``cron`` (their schedules), ``workers``."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

from msgspec.structs import asdict

from pelton import observe
from pelton.api import ConfigError, rfc3339
from pelton.api.wording import age_text, moment_text
from pelton.cli.arguments import (
    FILTERS,
    FORCE,
    NAMES,
    TABLE,
    count,
    filter_text,
    of_queues,
    option,
    queue_of,
    store_command,
    together,
)
from pelton.cli.output import (
    confirm,
    pauses_text,
    seconds_text,
    write_change,
    write_done,
    write_facts,
    write_found,
    write_line,
)
from pelton.connect import Jet
from pelton.observe import WorkerSummary
from pelton.queue import JobSchedule, Queue, Rate


@store_command("queue ls", "list the queues")
@NAMES
async def _list_queue(jet: Jet, options: argparse.Namespace) -> None:
    if options.names:
        for name in await jet.queue_names():
            write_line(name)
        return
    found = await observe.queue_summaries(jet)
    now = jet.runtime.clock.now()
    write_found(
        options,
        found,
        "queue, pending, held, running, retrying, completed, failed, dead, per minute, run, oldest, state",
        lambda each: (each.name, each.pending, each.held, each.running, each.retrying, each.completed, each.failed,
                      each.dead_letters, each.per_minute, seconds_text(each.run.median), age_text(each.oldest_at,
                      now), each.error or pauses_text(each)),
        empty="no queues",
        drop="completed, failed, run, per minute, held",
    )  # fmt: skip


@store_command("queue info QUEUE", "show a queue")
async def _info(jet: Jet, options: argparse.Namespace) -> None:
    queue = await observe.queue_summary(jet, options.queue)
    spreads = {"wait": queue.wait, "run": queue.run}
    times = {
        f"{name} (median, 95 %, longest)": ", ".join(
            seconds_text(value) or "0" for value in (one.median, one.p95, one.longest)
        )
        for name, one in spreads.items()
        if one.longest
    }
    write_facts(
        options,
        queue,
        f"queue {queue.name}",
        {
            "exclusive": queue.exclusive,
            "lease": f"{queue.lease:g} s",
            "paused": queue.paused,
            "paused keys": ", ".join(queue.paused_keys),
            "paused jobs": ", ".join(queue.paused_jobs),
            "pending": queue.pending,
            "scheduled": queue.scheduled,
            "waiting": queue.waiting,
            "stuck": queue.stuck,
            "held": queue.held,
            **{f"held for {limit or 'a limit that is gone'}": count for limit, count in queue.held_for.items()},
            "running": queue.running,
            "retrying": queue.retrying,
            "completed": queue.completed,
            "failed": queue.failed,
            "cancelled": queue.cancelled,
            "expired": queue.expired,
            "dead letters": queue.dead_letters,
            "oldest job": moment_text(queue.oldest_at),
            "last ended": moment_text(queue.last_ended_at),
            "jobs per minute": queue.per_minute,
            **times,
        },
    )


@store_command("queue tenants QUEUE", "list the tenants with the most jobs")
@option("--limit N", "how many at most (default 25)", default=25)
async def _tenants(jet: Jet, options: argparse.Namespace) -> None:
    found = await observe.tenant_counts(jet, options.queue, options.limit)
    write_found(
        options,
        found,
        "tenant, pending, taken, weight",
        lambda one: (one.tenant, one.pending, one.taken, one.weight),
        empty="no tenant has jobs",
    )


@store_command("queue weigh QUEUE TENANT", "give a tenant more turns than others", writes=True)
@option("WEIGHT", "turns while others have one; 1: as all", type=count)
async def _weigh(jet: Jet, options: argparse.Namespace) -> None:
    await (await queue_of(jet, options)).weigh(options.tenant, options.weight)
    weighed = {"tenant": options.tenant, "weight": options.weight}
    write_done(options, weighed, f"tenant {options.tenant} of queue {options.queue}: weight {options.weight}")


@store_command("queue pause QUEUE", "start no more jobs, in any process", writes=True)
@FILTERS
async def _pause_queue(jet: Jet, options: argparse.Namespace) -> None:
    await (await queue_of(jet, options)).pause(key=options.key, job=options.job)
    await _report_queue(jet, options, "paused")


@store_command("queue resume QUEUE", "start jobs again", writes=True)
@FILTERS
async def _resume_queue(jet: Jet, options: argparse.Namespace) -> None:
    await (await queue_of(jet, options)).resume(key=options.key, job=options.job)
    await _report_queue(jet, options, "resumed")


@store_command("queue stop-worker QUEUE WORKER", "tell a worker to stop: its jobs have their grace", writes=True)
async def _stop_worker(jet: Jet, options: argparse.Namespace) -> None:
    await (await queue_of(jet, options)).stop_worker(options.worker)
    write_done(options, {"worker": options.worker}, f"worker {options.worker} is told to stop")


@store_command("queue drain QUEUE", "pause, and wait until no job runs: for a deployment or a migration", writes=True)
@option("--timeout TIME", "default: for ever; it stays paused")
async def _drain(jet: Jet, options: argparse.Namespace) -> int:
    try:
        await (await queue_of(jet, options)).drain(timeout=options.timeout)
    except TimeoutError as error:
        write_line(f"pelton: {error}", error=True)
        return 1
    look = partial(observe.queue_summary, jet, options.queue)
    await write_change(options, look, f"queue {options.queue}: paused, and no job runs")
    return 0


async def _report_queue(jet: Jet, options: argparse.Namespace, done: str) -> None:
    what = f"jobs of queue {options.queue}{filter_text(options)}" if filter_text(options) else f"queue {options.queue}"
    await write_change(options, partial(observe.queue_summary, jet, options.queue), f"{what}: {done}")


@store_command("queue purge QUEUE", "cancel all jobs that no worker holds", writes=True)
@FILTERS
@option("--tenant TENANT", "only jobs of this tenant")
@FORCE
async def _purge(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    counts = await queue.counts()
    waiting = counts.unfinished - counts.running
    if not waiting:
        write_done(options, {"purged": 0}, f"queue {options.queue} has no waiting jobs")
        return
    which = f"those{filter_text(options)} among " if filter_text(options) else ""
    confirm(options, f"Really cancel {which}the {waiting:,} waiting jobs of queue {options.queue}?")
    purged = await queue.purge(key=options.key, job=options.job, tenant=options.tenant)
    write_done(options, {"purged": purged}, f"{purged:,} jobs cancelled")


@store_command("queue rm QUEUE", "remove a queue: jobs, history and dead letters", writes=True)
@FORCE
async def _remove_queue(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    counts = await queue.counts()
    jobs = f"{counts.unfinished:,} jobs, {counts.running:,} of them running"
    confirm(options, f"Really remove queue {options.queue}, with {jobs}, its history and dead letters?")
    await queue.delete(force=True)
    write_done(options, {"deleted": options.queue}, f"queue {options.queue} deleted")


# --- ``pelton limits``: how many jobs of a queue may run at a time, and how many may start in a period


_SCOPE: Final = together(
    option("--job NAME", "for jobs of this name (default: for all)"), option("--per-key", "for each key by itself")
)


@store_command("limits ls [QUEUE]", "list the limits of a queue, or of all queues, and how much of each is used")
async def _list_limits(jet: Jet, options: argparse.Namespace) -> None:
    found = [one for _, one in await of_queues(jet, options, observe.limit_summaries)]
    write_found(
        options,
        found,
        "queue, jobs, at a time, running, of keys, starts, next in",
        lambda one: (one.queue, _scope_text(one), "" if one.concurrency is None else one.concurrency, one.running,
                     f"{one.keys} keys, {one.fullest} at most" if one.per_key else "", _rate_text(one),
                     seconds_text(one.next_start)),
        empty="no limits",
        drop="next in, of keys",
    )  # fmt: skip


def _scope_text(limit: observe.LimitSummary) -> str:
    return (limit.job or "all") + (", each key" if limit.per_key else "")


def _rate_text(limit: observe.LimitSummary) -> str:
    if limit.starts is None:
        return ""
    return f"{limit.starts} in {limit.per:g} s" + (f", {limit.burst} at once" if limit.burst > 1 else "")


@store_command("limits set QUEUE", "set a limit, in place of the one for the same jobs", writes=True)
@_SCOPE
@option("--concurrency N", "at most N of them run at a time")
@option("--rate N", "at most N of them start in the time of --per")
@option("--per TIME", "default: 1s", default=1.0)
@option("--burst N", "how many may start at once (default 1)", default=1)
async def _set(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    rate = None if options.rate is None else Rate(options.rate, per=options.per, burst=options.burst)
    await queue.limit(job=options.job, per_key=options.per_key, concurrency=options.concurrency, rate=rate)
    found = await observe.limit_summaries(jet, options.queue)
    (limit,) = [one for one in found if (one.job, one.per_key) == (options.job or "", options.per_key)]
    write_done(options, limit, f"limit of queue {options.queue} for {_scope_text(limit)}: set")


@store_command("limits rm QUEUE", "take a limit away", writes=True)
@_SCOPE
async def _remove_limits(jet: Jet, options: argparse.Namespace) -> int:
    is_gone = await (await queue_of(jet, options)).unlimit(job=options.job, per_key=options.per_key)
    done = "taken away" if is_gone else "there was none"
    write_done(options, {"deleted": is_gone}, f"limit of queue {options.queue}: {done}")
    return 0 if is_gone else 1


# --- ``pelton cron``: the schedules of a queue; pause, resume and run them


@store_command("cron ls [QUEUE]", "list the schedules of a queue, or of all queues")
async def _list_cron(jet: Jet, options: argparse.Namespace) -> None:
    found = await of_queues(jet, options, observe.job_schedules)
    now = jet.runtime.clock.now()

    def row(found: tuple[str, JobSchedule]) -> tuple[str, ...]:
        queue, one = found
        due = moment_text(rfc3339(one.next_due)) if one.next_due else ""
        last = age_text(rfc3339(one.last_finished_at), now) if one.last_finished_at else ""
        return queue, one.name, one.job, one.key, _times(one), due, last, "paused" if one.paused else ""

    write_found(
        options,
        found,
        "queue, schedule, job, key, times, next, last run, state",
        row,
        empty="no schedules",
        drop="key, job, last run",
        record=lambda each: {"queue": each[0], **asdict(each[1])},
    )


def _times(schedule: JobSchedule) -> str:
    if schedule.every:
        return f"every {schedule.every:g} s"
    return f"{schedule.cron} {schedule.timezone}".rstrip()


@store_command("cron pause QUEUE NAME", "enqueue no more jobs of a schedule", writes=True)
async def _pause_cron(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    await queue.pause_schedule(options.name)
    await _report_cron(queue, options, "paused")


@store_command("cron resume QUEUE NAME", "enqueue jobs of a schedule again", writes=True)
async def _resume_cron(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    await queue.resume_schedule(options.name)
    await _report_cron(queue, options, "resumed")


async def _report_cron(queue: Queue, options: argparse.Namespace, done: str) -> None:
    look = partial(_schedule, queue, options.name)
    await write_change(options, look, f"schedule {options.name} of queue {options.queue}: {done}")


async def _schedule(queue: Queue, name: str) -> JobSchedule:
    found = [one for one in await queue.schedules() if one.name == name]
    if not found:
        raise ConfigError(f"queue {queue.name!r} has no schedule {name!r}: see 'pelton cron ls'")
    return found[0]


@store_command(
    "cron run QUEUE NAME",
    "enqueue the job of a schedule now, whether it is due or not; its times stay as they are",
    writes=True,
)
async def _run(jet: Jet, options: argparse.Namespace) -> None:
    handle = await (await queue_of(jet, options)).run_schedule(options.name)
    text = f"schedule {options.name} of queue {options.queue}: job {handle.id} is in the queue"
    write_done(options, {"schedule": options.name, "id": handle.id}, text)


@store_command("cron rm QUEUE NAME", "remove a schedule; jobs that it has enqueued stay", writes=True)
@FORCE
async def _remove_cron(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    await _schedule(queue, options.name)
    confirm(options, f"Really remove schedule {options.name} of queue {options.queue}?")
    await queue.unschedule(options.name)
    write_done(options, {"deleted": options.name}, f"schedule {options.name} removed")


# --- ``pelton workers``: who works, and who ran the jobs that ended last


@store_command("workers")
@TABLE
@option("[QUEUE]", "default: all", default="")
async def _workers(jet: Jet, options: argparse.Namespace) -> None:
    if options.queue:
        await observe.queue_summary(jet, options.queue)
    found = [worker for _, worker in await of_queues(jet, options, observe.worker_summaries)]
    now = jet.runtime.clock.now()
    write_found(
        options,
        found,
        "queue, worker, state, pid, running, oldest, jobs, failed, last job, ended, seen",
        lambda one: (one.queue, one.worker, _state(one), one.pid or "", one.running, seconds_text(one.oldest_running),
                     one.ended, one.failed, one.last_job, age_text(one.last_ended_at, now), age_text(one.seen_at,
                     now)),
        empty="no worker, and none has ended a job",
        drop="ended, last job, jobs, failed, seen, pid",
    )  # fmt: skip


def _state(worker: WorkerSummary) -> str:
    if not worker.seen_at:
        return "gone"
    return "stopping" if worker.stopping else "working" if worker.running else "idle"
