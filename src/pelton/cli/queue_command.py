"""``pelton queue``: how the queues go; pause, resume, empty and remove them."""

from __future__ import annotations

import argparse

from pelton import observe
from pelton.cli.asking import add_force, is_agreed
from pelton.cli.output import write_line
from pelton.cli.queues import add_filters, add_queue, filter_text, queue_of
from pelton.cli.stores import add_verb
from pelton.cli.tables import ago_text, moment_text, seconds_text, write_facts, write_json, write_table
from pelton.cli.values import count, duration
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list, "list the queues")
    listing.add_argument("-n", "--names", action="store_true", help="only their names")
    add_queue(add_verb(verbs, "info", _info, "show a queue"))
    tenants = add_queue(add_verb(verbs, "tenants", _tenants, "list the tenants with the most jobs"))
    tenants.add_argument("--limit", type=count, default=25, metavar="N", help="how many at most (default 25)")
    add_filters(add_queue(add_verb(verbs, "pause", _pause, "start no more jobs, in any process", writes=True)))
    resuming = add_queue(add_verb(verbs, "resume", _resume, "start jobs again", writes=True))
    add_filters(resuming)
    text = "pause, and wait until no job runs: for a deployment or a migration"
    draining = add_queue(add_verb(verbs, "drain", _drain, text, writes=True))
    draining.add_argument("--timeout", type=duration, metavar="TIME", help="default: for ever; it stays paused")
    purging = add_queue(add_verb(verbs, "purge", _purge, "cancel all jobs that no worker holds", writes=True))
    add_filters(purging)
    purging.add_argument("--tenant", metavar="TENANT", help="only jobs of this tenant")
    add_force(purging)
    removing = add_verb(verbs, "rm", _remove, "remove a queue: jobs, history and dead letters", writes=True)
    add_force(add_queue(removing))


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    if options.names:
        for name in await jet.queue_names():
            write_line(name)
        return
    found = await observe.queue_summaries(jet)
    if options.json:
        write_json(found)
        return
    now = jet.runtime.clock.now()
    rows = [
        (each.name, each.pending, each.held, each.running, each.retrying, each.completed, each.failed,
         each.dead_letters, each.per_minute, seconds_text(each.run.median), ago_text(each.oldest_at, now),
         "paused" if each.paused else "")
        for each in found
    ]  # fmt: skip
    heads = (
        "queue",
        "pending",
        "held",
        "running",
        "retrying",
        "completed",
        "failed",
        "dead",
        "per minute",
        "run",
        "oldest",
        "state",
    )
    write_table(heads, rows, empty="no queues")


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
    if options.json:
        write_json(found)
        return
    rows = [(one.tenant, one.pending, one.taken, one.weight) for one in found]
    write_table(("tenant", "pending", "taken", "weight"), rows, empty="no tenant has jobs")


async def _pause(jet: Jet, options: argparse.Namespace) -> None:
    await (await queue_of(jet, options)).pause(key=options.key, job=options.job)
    await _report(jet, options, "paused")


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


async def _resume(jet: Jet, options: argparse.Namespace) -> None:
    await (await queue_of(jet, options)).resume(key=options.key, job=options.job)
    await _report(jet, options, "resumed")


async def _report(jet: Jet, options: argparse.Namespace, done: str) -> None:
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
    write_json({"purged": purged}) if options.json else write_line(f"{purged:,} jobs cancelled")
    return 0


async def _remove(jet: Jet, options: argparse.Namespace) -> int:
    queue = await queue_of(jet, options)
    counts = await queue.counts()
    jobs = f"{counts.unfinished:,} jobs, {counts.running:,} of them running"
    if not is_agreed(options, f"Really remove queue {options.queue}, with {jobs}, its history and dead letters?"):
        return 1
    await queue.delete(force=True)
    write_json({"deleted": options.queue}) if options.json else write_line(f"queue {options.queue} deleted")
    return 0
