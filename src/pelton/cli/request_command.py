"""``pelton request``: send a message, and show the answers to it."""

from __future__ import annotations

import argparse
from typing import Final

from pelton.api import Headers, Incoming, headers
from pelton.cli.messages import show_message, write_raw
from pelton.cli.output import write_line
from pelton.cli.stores import define_verb
from pelton.cli.values import count, duration, header, payload_of
from pelton.connect import Jet

_NOBODY: Final = b"NATS/1.0 503"


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    define_verb(parser, _request, writes=True)
    add = parser.add_argument
    add("subject", metavar="SUBJECT")
    add("body", nargs="?", metavar="BODY", help="default, or -: standard input")
    add("-H", "--header", action="append", type=header, default=[], metavar="'NAME: VALUE'")
    add("--replies", type=count, default=1, metavar="N", help="how many answers to wait for (default 1)")
    add("--timeout", type=duration, default=5.0, metavar="TIME", help="for each of them (default 5s)")
    add("--raw", action="store_true", help="write the payloads alone, as they are")


async def _request(jet: Jet, options: argparse.Namespace) -> int:
    data, given = payload_of(options.body), dict(options.header)
    inbox = f"_INBOX.{jet.runtime.ids.new()}"
    answers = await jet.backend.subscribe(inbox)
    try:
        await jet.backend.send(options.subject, data, headers.encode(given) if given else None, inbox)
        for number in range(options.replies):
            found = await answers.next(options.timeout)
            # An answer with this status says that nobody is there to answer.
            if found is None or (found.headers or b"").startswith(_NOBODY):
                write_line("no further answer" if number else f"no answer from {options.subject}", error=True)
                return 1
            _show(found, options)
    finally:
        await answers.close()
    return 0


def _show(answer: Incoming, options: argparse.Namespace) -> None:
    if options.raw:
        write_raw(answer.data)
        return
    given = headers.decode(answer.headers) if answer.headers else Headers()
    show_message({"subject": options.subject}, given, answer.data, as_json=options.json)
