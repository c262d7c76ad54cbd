"""Commands for messages: ``pelton pub``, ``sub``, ``request``."""

from __future__ import annotations

import argparse
from typing import Final

from pelton.api import Headers, Incoming, headers
from pelton.cli.arguments import count, define_verb, duration, header, payload_of
from pelton.cli.output import show_message, write_json, write_json_line, write_line, write_raw
from pelton.connect import Jet


def define_pub(parser: argparse.ArgumentParser) -> None:
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


# --- ``pelton sub``: show messages as they are published, stored or not


def define_sub(parser: argparse.ArgumentParser) -> None:
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


# --- ``pelton request``: send a message, and show the answers to it

_NOBODY: Final = b"NATS/1.0 503"


def define_request(parser: argparse.ArgumentParser) -> None:
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
