"""``pelton sub``: show messages as they are published, stored or not."""

from __future__ import annotations

import argparse

from pelton.cli.messages import show_message, write_raw
from pelton.cli.output import write_line
from pelton.cli.stores import define_verb
from pelton.cli.values import count, duration
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _subscribe, writes=True)
    add = parser.add_argument
    add("subject", metavar="SUBJECT", help="a subject, or a filter such as 'orders.>'")
    add("--count", type=count, metavar="N", help="end after this number of messages")
    add("--queue", default="", metavar="GROUP", help="share the messages with others in this group")
    add("--timeout", type=duration, metavar="TIME", help="end, with status 1, if none comes for so long")
    add("--raw", action="store_true", help="write the payloads alone, as they are")


async def _subscribe(jet: Jet, options: argparse.Namespace) -> int:
    async with await jet.subscribe(options.subject, queue=options.queue) as subscription:
        write_line(f"subscribed to {options.subject}", error=True, flush=True)
        seen = 0
        while options.count is None or seen < options.count:
            message = await subscription.next(timeout=options.timeout)
            if message is None:
                return 1
            seen += 1
            if options.raw:
                write_raw(message.data)
            else:
                show_message({"subject": message.subject}, message.headers, message.data, as_json=options.json)
    return 0
