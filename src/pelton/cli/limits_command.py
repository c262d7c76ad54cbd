"""``pelton limits``: how many jobs of a queue may run at a time, and how many may start in a period."""

from __future__ import annotations

import argparse

from pelton import observe
from pelton.cli.output import write_line
from pelton.cli.queues import add_queue, queue_of
from pelton.cli.stores import add_verb
from pelton.cli.tables import seconds_text, write_json, write_table
from pelton.cli.values import count, duration
from pelton.connect import Jet
from pelton.queue import Rate


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    text = "list the limits of a queue, or of all queues, and how much of each is used"
    listing = add_verb(verbs, "ls", _list, text)
    listing.add_argument("queue", nargs="?", default="", metavar="QUEUE")
    setting = _scope(add_verb(verbs, "set", _set, "set a limit, in place of the one for the same jobs", writes=True))
    setting.add_argument("--concurrency", type=count, metavar="N", help="at most N of them run at a time")
    setting.add_argument("--rate", type=count, metavar="N", help="at most N of them start in the time of --per")
    setting.add_argument("--per", type=duration, default=1.0, metavar="TIME", help="default: 1s")
    setting.add_argument("--burst", type=count, default=1, metavar="N", help="how many may start at once (default 1)")
    _scope(add_verb(verbs, "rm", _remove, "take a limit away", writes=True))


def _scope(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_queue(parser).add_argument("--job", metavar="NAME", help="for jobs of this name (default: for all)")
    parser.add_argument("--per-key", action="store_true", help="for each key by itself")
    return parser


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    names = [options.queue] if options.queue else await jet.queue_names()
    found = [one for name in names for one in await observe.limit_summaries(jet, name)]
    if options.json:
        write_json(found)
        return
    rows = [
        (one.queue, _scope_text(one), "" if one.concurrency is None else one.concurrency, one.running,
         f"{one.keys} keys, {one.fullest} at most" if one.per_key else "", _rate_text(one),
         seconds_text(one.next_start))
        for one in found
    ]  # fmt: skip
    heads = ("queue", "jobs", "at a time", "running", "of keys", "starts", "next in")
    write_table(heads, rows, empty="no limits")


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
    if options.json:
        write_json(limit)
    else:
        write_line(f"limit of queue {options.queue} for {_scope_text(limit)}: set")


async def _remove(jet: Jet, options: argparse.Namespace) -> int:
    is_gone = await (await queue_of(jet, options)).unlimit(job=options.job, per_key=options.per_key)
    if options.json:
        write_json({"deleted": is_gone})
    else:
        write_line(f"limit of queue {options.queue}: " + ("taken away" if is_gone else "there was none"))
    return 0 if is_gone else 1
