"""``pelton flow``: jobs that depend on each other; how far they are, and cancel them."""

from __future__ import annotations

import argparse
from typing import get_args

from pelton import observe
from pelton.api import rfc3339
from pelton.cli.output import write_line
from pelton.cli.queues import add_queue, queue_of
from pelton.cli.stores import add_verb
from pelton.cli.tables import ago_text, moment_text, write_facts, write_json, write_table
from pelton.cli.values import count
from pelton.connect import Jet
from pelton.queue import FlowInfo
from pelton.queue.model.flow_records import FlowState


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_queue(add_verb(verbs, "ls", _list, "list the flows of a queue, those that began last first"))
    listing.add_argument("--state", choices=get_args(FlowState), help="only flows in this state")
    listing.add_argument("--limit", type=count, default=50, metavar="N", help="how many at most (default 50)")
    _with_id(add_verb(verbs, "show", _show, "show a flow with its jobs"))
    text = "cancel a flow: jobs that wait never start, the others are cancelled"
    cancelling = _with_id(add_verb(verbs, "cancel", _cancel, text, writes=True))
    cancelling.add_argument("--reason", default="", metavar="TEXT", help="for the history")


def _with_id(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_queue(parser).add_argument("id", metavar="ID")
    return parser


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    # Whether the queue exists, its flows do not tell.
    await queue_of(jet, options)
    found = await observe.flow_summaries(jet, options.queue, state=options.state, limit=options.limit, within=60)
    if options.json:
        write_json(found)
        return
    now = jet.runtime.clock.now()
    rows = [
        (one.id, one.name, one.state, one.size, ago_text(rfc3339(one.enqueued_at), now), one.error[:60])
        for one in found
    ]
    write_table(("id", "name", "state", "jobs", "enqueued", "error"), rows, empty="no flows")


async def _show(jet: Jet, options: argparse.Namespace) -> None:
    flow = await observe.flow_details(jet, options.queue, options.id)
    if options.json:
        write_json(flow)
        return
    facts: dict[str, str | int] = {
        "state": flow.state,
        "jobs": flow.size,
        "enqueued": moment_text(rfc3339(flow.enqueued_at)),
        "ended": moment_text(rfc3339(flow.finished_at)) if flow.finished_at else "",
        "error": flow.error,
    }
    write_facts(f"flow {flow.id}" + (f": {flow.name}" if flow.name else ""), facts)
    write_line("")
    _write_nodes(flow)


def _write_nodes(flow: FlowInfo) -> None:
    rows = [
        (str(node.number), node.job, node.state, node.id, ", ".join(map(str, node.after)), node.error[:60])
        for node in flow.nodes
    ]
    write_table(("job", "name", "state", "id", "after", "error"), rows, empty="no jobs")


async def _cancel(jet: Jet, options: argparse.Namespace) -> int:
    queue = await queue_of(jet, options)
    is_cancelled = await queue.flow(options.id).cancel(reason=options.reason)
    if options.json:
        write_json({"cancelled": {options.id: is_cancelled}})
    else:
        write_line(f"flow {options.id}: " + ("cancelled" if is_cancelled else "had ended before"))
    return 0 if is_cancelled else 1
