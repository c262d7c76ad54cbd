"""Commands for queues: ``pelton queue``, ``limits``, ``cron`` (their schedules), ``workers``."""

from __future__ import annotations

import argparse

from pelton import observe
from pelton.api import ConfigError, rfc3339
from pelton.api.wording import age_text, moment_text
from pelton.cli.arguments import (
    add_filters,
    add_queue,
    add_table,
    add_verb,
    count,
    define_verb,
    duration,
    filter_text,
    of_queues,
    queue_of,
)
from pelton.cli.output import (
    add_force,
    is_agreed,
    seconds_text,
    write_done,
    write_facts,
    write_found,
    write_json,
    write_line,
)
from pelton.connect import Jet
from pelton.observe import WorkerSummary
from pelton.queue import JobSchedule, Queue, Rate


def define_queue(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list_queue, "list the queues")
    listing.add_argument("-n", "--names", action="store_true", help="only their names")
    add_queue(add_verb(verbs, "info", _info, "show a queue"))
    tenants = add_queue(add_verb(verbs, "tenants", _tenants, "list the tenants with the most jobs"))
    tenants.add_argument("--limit", type=count, default=25, metavar="N", help="how many at most (default 25)")
    weighing = add_queue(add_verb(verbs, "weigh", _weigh, "give a tenant more turns than others", writes=True))
    weighing.add_argument("tenant", metavar="TENANT")
    weighing.add_argument("weight", type=count, metavar="WEIGHT", help="turns while others have one; 1: as all")
    add_filters(add_queue(add_verb(verbs, "pause", _pause_queue, "start no more jobs, in any process", writes=True)))
    resuming = add_queue(add_verb(verbs, "resume", _resume_queue, "start jobs again", writes=True))
    add_filters(resuming)
    text = "pause, and wait until no job runs: for a deployment or a migration"
    draining = add_queue(add_verb(verbs, "drain", _drain, text, writes=True))
    draining.add_argument("--timeout", type=duration, metavar="TIME", help="default: for ever; it stays paused")
    purging = add_queue(add_verb(verbs, "purge", _purge, "cancel all jobs that no worker holds", writes=True))
    add_filters(purging)
    purging.add_argument("--tenant", metavar="TENANT", help="only jobs of this tenant")
    add_force(purging)
    removing = add_verb(verbs, "rm", _remove_queue, "remove a queue: jobs, history and dead letters", writes=True)
    add_force(add_queue(removing))


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
                      now), each.error or ("paused" if each.paused else "")),
        empty="no queues",
        drop="completed, failed, run, per minute, held",
    )  # fmt: skip


async def _info(jet: Jet, options: argparse.Namespace) -> None:
    queue = await observe.queue_summary(jet, options.queue)
    if options.json:
        write_json(queue)
        return
    spreads = {"wait": queue.wait, "run": queue.run}
    times = {
        f"{name} (median, 95 %, longest)": ", ".join(
            seconds_text(value) or "0" for value in (one.median, one.p95, one.longest)
        )
        for name, one in spreads.items()
        if one.longest
    }
    write_facts(
        f"queue {queue.name}",
        {
            "exclusive": queue.exclusive,
            "lease": f"{queue.lease:g} s",
            "paused": queue.paused,
            "paused keys": ", ".join(queue.paused_keys),
            "paused jobs": ", ".join(queue.paused_jobs),
            "pending": queue.pending,
            "scheduled": queue.scheduled,
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


async def _tenants(jet: Jet, options: argparse.Namespace) -> None:
    found = await observe.tenant_counts(jet, options.queue, options.limit)
    write_found(
        options,
        found,
        "tenant, pending, taken, weight",
        lambda one: (one.tenant, one.pending, one.taken, one.weight),
        empty="no tenant has jobs",
    )


async def _weigh(jet: Jet, options: argparse.Namespace) -> None:
    await (await queue_of(jet, options)).weigh(options.tenant, options.weight)
    weighed = {"tenant": options.tenant, "weight": options.weight}
    write_done(options, weighed, f"tenant {options.tenant} of queue {options.queue}: weight {options.weight}")


async def _pause_queue(jet: Jet, options: argparse.Namespace) -> None:
    await (await queue_of(jet, options)).pause(key=options.key, job=options.job)
    await _report_queue(jet, options, "paused")


async def _drain(jet: Jet, options: argparse.Namespace) -> int:
    try:
        await (await queue_of(jet, options)).drain(timeout=options.timeout)
    except TimeoutError as error:
        write_line(f"pelton: {error}", error=True)
        return 1
    if options.json:
        write_json(await observe.queue_summary(jet, options.queue))
    else:
        write_line(f"queue {options.queue}: paused, and no job runs")
    return 0


async def _resume_queue(jet: Jet, options: argparse.Namespace) -> None:
    await (await queue_of(jet, options)).resume(key=options.key, job=options.job)
    await _report_queue(jet, options, "resumed")


async def _report_queue(jet: Jet, options: argparse.Namespace, done: str) -> None:
    if options.json:
        write_json(await observe.queue_summary(jet, options.queue))
        return
    what = f"jobs of queue {options.queue}{filter_text(options)}" if filter_text(options) else f"queue {options.queue}"
    write_line(f"{what}: {done}")


async def _purge(jet: Jet, options: argparse.Namespace) -> int:
    queue = await queue_of(jet, options)
    counts = await queue.counts()
    waiting = counts.pending + counts.scheduled + counts.held + counts.retrying
    which = f"those{filter_text(options)} among " if filter_text(options) else ""
    if not is_agreed(options, f"Really cancel {which}the {waiting:,} waiting jobs of queue {options.queue}?"):
        return 1
    purged = await queue.purge(key=options.key, job=options.job, tenant=options.tenant)
    write_done(options, {"purged": purged}, f"{purged:,} jobs cancelled")
    return 0


async def _remove_queue(jet: Jet, options: argparse.Namespace) -> int:
    queue = await queue_of(jet, options)
    counts = await queue.counts()
    jobs = f"{counts.unfinished:,} jobs, {counts.running:,} of them running"
    if not is_agreed(options, f"Really remove queue {options.queue}, with {jobs}, its history and dead letters?"):
        return 1
    await queue.delete(force=True)
    write_done(options, {"deleted": options.queue}, f"queue {options.queue} deleted")
    return 0


# --- ``pelton limits``: how many jobs of a queue may run at a time, and how many may start in a period


def define_limits(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    text = "list the limits of a queue, or of all queues, and how much of each is used"
    listing = add_verb(verbs, "ls", _list_limits, text)
    listing.add_argument("queue", nargs="?", default="", metavar="QUEUE")
    setting = _scope(add_verb(verbs, "set", _set, "set a limit, in place of the one for the same jobs", writes=True))
    setting.add_argument("--concurrency", type=count, metavar="N", help="at most N of them run at a time")
    setting.add_argument("--rate", type=count, metavar="N", help="at most N of them start in the time of --per")
    setting.add_argument("--per", type=duration, default=1.0, metavar="TIME", help="default: 1s")
    setting.add_argument("--burst", type=count, default=1, metavar="N", help="how many may start at once (default 1)")
    _scope(add_verb(verbs, "rm", _remove_limits, "take a limit away", writes=True))


def _scope(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_queue(parser).add_argument("--job", metavar="NAME", help="for jobs of this name (default: for all)")
    parser.add_argument("--per-key", action="store_true", help="for each key by itself")
    return parser


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


async def _set(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    rate = None if options.rate is None else Rate(options.rate, per=options.per, burst=options.burst)
    await queue.limit(job=options.job, per_key=options.per_key, concurrency=options.concurrency, rate=rate)
    found = await observe.limit_summaries(jet, options.queue)
    (limit,) = [one for one in found if (one.job, one.per_key) == (options.job or "", options.per_key)]
    write_done(options, limit, f"limit of queue {options.queue} for {_scope_text(limit)}: set")


async def _remove_limits(jet: Jet, options: argparse.Namespace) -> int:
    is_gone = await (await queue_of(jet, options)).unlimit(job=options.job, per_key=options.per_key)
    done = "taken away" if is_gone else "there was none"
    write_done(options, {"deleted": is_gone}, f"limit of queue {options.queue}: {done}")
    return 0 if is_gone else 1


# --- ``pelton cron``: the schedules of a queue; pause, resume and run them


def define_cron(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list_cron, "list the schedules of a queue, or of all queues")
    listing.add_argument("queue", nargs="?", default="", metavar="QUEUE")
    _of_schedule(add_verb(verbs, "pause", _pause_cron, "enqueue no more jobs of a schedule", writes=True))
    _of_schedule(add_verb(verbs, "resume", _resume_cron, "enqueue jobs of a schedule again", writes=True))
    text = "enqueue the job of a schedule now, whether it is due or not; its times stay as they are"
    _of_schedule(add_verb(verbs, "run", _run, text, writes=True))
    removing = _of_schedule(
        add_verb(verbs, "rm", _remove_cron, "remove a schedule; jobs that it has enqueued stay", writes=True)
    )
    add_force(removing)


def _of_schedule(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_queue(parser).add_argument("name", metavar="NAME")
    return parser


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
        record=lambda each: {"queue": each[0], **_plain(each[1])},
    )


def _plain(schedule: JobSchedule) -> dict[str, object]:
    return {name: getattr(schedule, name) for name in schedule.__struct_fields__}


def _times(schedule: JobSchedule) -> str:
    if schedule.every:
        return f"every {schedule.every:g} s"
    return f"{schedule.cron} {schedule.timezone}".rstrip()


async def _pause_cron(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    await queue.pause_schedule(options.name)
    await _report_cron(queue, options, "paused")


async def _resume_cron(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    await queue.resume_schedule(options.name)
    await _report_cron(queue, options, "resumed")


async def _report_cron(queue: Queue, options: argparse.Namespace, done: str) -> None:
    if options.json:
        write_json(await _schedule(queue, options.name))
    else:
        write_line(f"schedule {options.name} of queue {options.queue}: {done}")


async def _schedule(queue: Queue, name: str) -> JobSchedule:
    found = [one for one in await queue.schedules() if one.name == name]
    if not found:
        raise ConfigError(f"queue {queue.name!r} has no schedule {name!r}: see 'pelton cron ls'")
    return found[0]


async def _run(jet: Jet, options: argparse.Namespace) -> None:
    handle = await (await queue_of(jet, options)).run_schedule(options.name)
    text = f"schedule {options.name} of queue {options.queue}: job {handle.id} is in the queue"
    write_done(options, {"schedule": options.name, "id": handle.id}, text)


async def _remove_cron(jet: Jet, options: argparse.Namespace) -> int:
    queue = await queue_of(jet, options)
    await _schedule(queue, options.name)
    if not is_agreed(options, f"Really remove schedule {options.name} of queue {options.queue}?"):
        return 1
    await queue.unschedule(options.name)
    write_done(options, {"deleted": options.name}, f"schedule {options.name} removed")
    return 0


# --- ``pelton workers``: who works, and who ran the jobs that ended last


def define_workers(parser: argparse.ArgumentParser) -> None:
    define_verb(parser, _workers)
    add_table(parser)
    parser.add_argument("queue", nargs="?", default="", metavar="QUEUE", help="default: all")


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
