"""``pelton queue``: how the queues go."""

from __future__ import annotations

import argparse

from pelton import observe
from pelton.cli.stores import add_verb
from pelton.cli.tables import ago_text, moment_text, seconds_text, write_facts, write_json, write_table
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    add_verb(verbs, "ls", _list, "list the queues")
    add_verb(verbs, "info", _info, "show a queue").add_argument("queue", metavar="QUEUE")


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    found = await observe.queue_summaries(jet)
    if options.json:
        write_json(found)
        return
    now = jet.runtime.clock.now()
    rows = [
        (each.name, each.pending, each.running, each.retrying, each.completed, each.failed, each.dead_letters,
         each.per_minute, seconds_text(each.run.median), ago_text(each.oldest_at, now))
        for each in found
    ]  # fmt: skip
    heads = ("queue", "pending", "running", "retrying", "completed", "failed", "dead", "per minute", "run", "oldest")
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
            "pending": queue.pending,
            "scheduled": queue.scheduled,
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
