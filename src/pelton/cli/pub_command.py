"""``pelton pub``: publish messages."""

from __future__ import annotations

import argparse

from pelton.api import headers
from pelton.cli.output import write_line
from pelton.cli.stores import define_verb
from pelton.cli.tables import write_json, write_json_line
from pelton.cli.values import count, duration, header, payload_of
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _publish, writes=True)
    add = parser.add_argument
    add("subject", metavar="SUBJECT")
    add("body", nargs="?", metavar="BODY", help="default, or -: standard input")
    add("-H", "--header", action="append", type=header, default=[], metavar="'NAME: VALUE'")
    add("--count", type=count, default=1, metavar="N", help="publish it so often")
    add("--msg-id", metavar="ID", help="stored once within the stream's duplicate window")
    add("--ttl", type=duration, metavar="TIME", help="the stream removes it after this time")
    add("--no-ack", action="store_true", help="to subscribers, and to a stream if there is one, without an answer")


async def _publish(jet: Jet, options: argparse.Namespace) -> None:
    data, given = payload_of(options.body), dict(options.header)
    for number in range(options.count):
        if options.no_ack:
            await jet.backend.send(options.subject, data, headers.encode(given) if given else None)
            continue
        msg_id = options.msg_id if options.count == 1 or not options.msg_id else f"{options.msg_id}-{number + 1}"
        ack = await jet.publish(options.subject, data, headers=given or None, msg_id=msg_id, ttl=options.ttl)
        if options.json:
            write_json(ack) if options.count == 1 else write_json_line(ack)
            continue
        duplicate = ", which had it already" if ack.duplicate else ""
        write_line(f"stored in stream {ack.stream} as sequence {ack.seq}{duplicate}")
    if options.no_ack:
        # A round trip: when it is answered, the server has read what was sent before it.
        await jet.account_info()
