"""``pelton dead``: jobs that failed for good, and another try."""

from __future__ import annotations

import argparse

from pelton import observe
from pelton.api import ConfigError, JobNotFoundError, rfc3339
from pelton.cli.output import write_line
from pelton.cli.stores import add_verb
from pelton.cli.tables import ago_text, moment_text, write_facts, write_json, write_table
from pelton.cli.values import count
from pelton.connect import Jet
from pelton.queue import DeadLetter


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list, "list the dead letters of a queue")
    listing.add_argument("queue", metavar="QUEUE")
    listing.add_argument("--job", metavar="NAME", help="only jobs of this name")
    listing.add_argument("--limit", type=count, default=50, metavar="N", help="how many at most (default 50)")
    showing = add_verb(verbs, "show", _show, "show a dead letter: arguments, error, traceback")
    showing.add_argument("queue", metavar="QUEUE")
    showing.add_argument("id", metavar="ID")
    redriving = add_verb(verbs, "redrive", _redrive, "put failed jobs into their queue again", writes=True)
    redriving.add_argument("queue", metavar="QUEUE")
    redriving.add_argument("id", nargs="*", metavar="ID")
    redriving.add_argument("--all", action="store_true", help="all of them")
    redriving.add_argument("--job", metavar="NAME", help="all jobs of this name")


async def _letters(jet: Jet, options: argparse.Namespace, limit: int = 0) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    async for letter in observe.dead_letters(jet, options.queue):
        if options.job in (None, letter.outcome.job):
            found.append(letter)
            if len(found) == limit:
                break
    return found


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    await observe.queue_summary(jet, options.queue)
    found = await _letters(jet, options, options.limit)
    if options.json:
        write_json(found)
        return
    now = jet.runtime.clock.now()
    rows = [
        (each.outcome.id, each.outcome.job, each.outcome.key, each.outcome.attempt,
         ago_text(rfc3339(each.outcome.finished_at), now), each.outcome.error[:80])
        for each in found
    ]  # fmt: skip
    write_table(("id", "job", "key", "attempts", "failed", "error"), rows, empty="no dead letters")


async def _show(jet: Jet, options: argparse.Namespace) -> None:
    async for letter in observe.dead_letters(jet, options.queue):
        if letter.outcome.id == options.id:
            break
    else:
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
            "enqueued": moment_text(rfc3339(outcome.enqueued_at)),
            "failed": moment_text(rfc3339(outcome.finished_at)),
            "worker": outcome.worker,
            "arguments": bytes(letter.envelope.args).decode(errors="replace"),
            "error": outcome.error,
        },
    )
    for line in outcome.traceback.rstrip("\n").split("\n") if outcome.traceback else ():
        write_line(f"    {line}")


async def _redrive(jet: Jet, options: argparse.Namespace) -> int:
    if bool(options.id) + options.all + (options.job is not None) != 1:
        raise ConfigError("say which: their IDs, --job NAME, or --all")
    await observe.queue_summary(jet, options.queue)
    queue = await jet.queue(options.queue)
    ids = options.id or [letter.outcome.id for letter in await _letters(jet, options)]
    done: dict[str, str] = {}
    failures = 0
    for job_id in ids:
        try:
            done[job_id] = (await queue.redrive(job_id)).id
        except JobNotFoundError as error:
            failures += 1
            write_line(f"pelton: {error}", error=True)
    if options.json:
        write_json({"redriven": done})
    else:
        for old, new in done.items():
            write_line(f"job {old} is in the queue again, as job {new}")
    return 1 if failures else 0
