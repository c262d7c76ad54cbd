"""``pelton cron``: the schedules of a queue; pause, resume and run them."""

from __future__ import annotations

import argparse

from pelton.api import ConfigError, rfc3339
from pelton.cli.asking import add_force, is_agreed
from pelton.cli.output import write_line
from pelton.cli.queues import add_queue, queue_of
from pelton.cli.stores import add_verb
from pelton.cli.tables import ago_text, moment_text, write_json, write_table
from pelton.connect import Jet
from pelton.queue import JobSchedule, Queue


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list, "list the schedules of a queue, or of all queues")
    listing.add_argument("queue", nargs="?", default="", metavar="QUEUE")
    _named(add_verb(verbs, "pause", _pause, "enqueue no more jobs of a schedule", writes=True))
    _named(add_verb(verbs, "resume", _resume, "enqueue jobs of a schedule again", writes=True))
    text = "enqueue the job of a schedule now, whether it is due or not; its times stay as they are"
    _named(add_verb(verbs, "run", _run, text, writes=True))
    removing = _named(add_verb(verbs, "rm", _remove, "remove a schedule; jobs that it has enqueued stay", writes=True))
    add_force(removing)


def _named(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_queue(parser).add_argument("name", metavar="NAME")
    return parser


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    names = [options.queue] if options.queue else await jet.queue_names()
    queues = [await jet.queue(name, create=False) for name in names]
    found = [(queue.name, one) for queue in queues for one in await queue.schedules()]
    if options.json:
        write_json([{"queue": queue, **_plain(one)} for queue, one in found])
        return
    now = jet.runtime.clock.now()
    rows = [
        (queue, one.name, one.job, one.key, _times(one), moment_text(rfc3339(one.next_due)) if one.next_due else "",
         ago_text(rfc3339(one.last_finished_at), now) if one.last_finished_at else "",
         "paused" if one.paused else "")
        for queue, one in found
    ]  # fmt: skip
    heads = ("queue", "schedule", "job", "key", "times", "next", "last run", "state")
    write_table(heads, rows, empty="no schedules")


def _plain(schedule: JobSchedule) -> dict[str, object]:
    return {name: getattr(schedule, name) for name in schedule.__struct_fields__}


def _times(schedule: JobSchedule) -> str:
    if schedule.every:
        return f"every {schedule.every:g} s"
    return f"{schedule.cron} {schedule.timezone}".rstrip()


async def _pause(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    await queue.pause_schedule(options.name)
    await _report(queue, options, "paused")


async def _resume(jet: Jet, options: argparse.Namespace) -> None:
    queue = await queue_of(jet, options)
    await queue.resume_schedule(options.name)
    await _report(queue, options, "resumed")


async def _report(queue: Queue, options: argparse.Namespace, done: str) -> None:
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
    if options.json:
        write_json({"schedule": options.name, "id": handle.id})
    else:
        write_line(f"schedule {options.name} of queue {options.queue}: job {handle.id} is in the queue")


async def _remove(jet: Jet, options: argparse.Namespace) -> int:
    queue = await queue_of(jet, options)
    await _schedule(queue, options.name)
    if not is_agreed(options, f"Really remove schedule {options.name} of queue {options.queue}?"):
        return 1
    await queue.unschedule(options.name)
    write_json({"deleted": options.name}) if options.json else write_line(f"schedule {options.name} removed")
    return 0
