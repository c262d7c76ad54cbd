"""``pelton dead``: jobs that failed for good, and another try."""

from __future__ import annotations

import argparse
from contextlib import aclosing

from pelton import observe
from pelton.api import JobNotFoundError, rfc3339
from pelton.cli.asking import add_force, is_agreed
from pelton.cli.output import write_line
from pelton.cli.queues import add_filters, add_queue, check_choice, filter_text, queue_of
from pelton.cli.stores import add_verb
from pelton.cli.tables import ago_text, moment_text, write_facts, write_json, write_table
from pelton.cli.values import count
from pelton.connect import Jet
from pelton.queue import DeadLetter, Queue


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list, "list the dead letters of a queue")
    add_queue(listing)
    add_filters(listing)
    listing.add_argument("--limit", type=count, default=50, metavar="N", help="how many at most (default 50)")
    text = "show a dead letter: arguments, error, traceback"
    add_queue(add_verb(verbs, "show", _show, text)).add_argument("id", metavar="ID")
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


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    found: list[DeadLetter] = []
    async with aclosing(observe.dead_letters(jet, options.queue, key=options.key, job=options.job)) as letters:
        async for letter in letters:
            found.append(letter)
            if len(found) == options.limit:
                break
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
    check_choice(options, "key", "job")
    queue = await queue_of(jet, options)
    done: dict[str, str] = {}
    ids = options.id or await _ids(queue, options)
    for job_id in ids:
        try:
            done[job_id] = (await queue.redrive(job_id)).id
        except JobNotFoundError as error:
            write_line(f"pelton: {error}", error=True)
    if options.json:
        write_json({"redriven": done})
    else:
        for old, new in done.items():
            write_line(f"job {old} is in the queue again, as job {new}")
    return 0 if len(done) == len(ids) else 1


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
    write_json({"deleted": done}) if options.json else write_line(f"{len(done):,} dead letters removed")
    return 0 if len(done) == len(ids) else 1
