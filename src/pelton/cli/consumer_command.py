"""``pelton consumer``: list, show, create, pause and remove consumers, and take messages."""

from __future__ import annotations

import argparse
from typing import Any, Final

from pelton import observe
from pelton.api import ConsumerConfig, ConsumerInfo, rfc3339
from pelton.api.wording import age_text, moment_text
from pelton.cli.arguments import add_verb, count, duration, fields_of, moment_of, parts_of
from pelton.cli.output import (
    add_force,
    is_agreed,
    show_message,
    write_done,
    write_facts,
    write_found,
    write_json,
    write_line,
    write_raw,
)
from pelton.connect import Jet
from pelton.jet import Consumer, Message
from pelton.observe.holdings import INTERNAL

_POLICIES: Final = {"all": "all", "last": "last", "new": "new", "subject": "last_per_subject"}


def define_consumer(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list, "list the consumers of a stream, or of all streams")
    listing.add_argument("stream", nargs="?", default="", metavar="STREAM")
    listing.add_argument("--all", action="store_true", help="also those by which queues, locks and elections work")
    listing.add_argument("-n", "--names", action="store_true", help="only their names")
    _in_stream(add_verb(verbs, "info", _info, "show a consumer"))
    _define_add(_in_stream(add_verb(verbs, "add", _add, "create a consumer", writes=True)))
    removing = _in_stream(add_verb(verbs, "rm", _remove, "delete a consumer", writes=True))
    add_force(removing)
    taking = _in_stream(add_verb(verbs, "next", _next, "take messages, and acknowledge them", writes=True))
    taking.add_argument("--count", type=count, default=1, metavar="N", help="how many at most (default 1)")
    taking.add_argument("--wait", type=duration, default=5.0, metavar="TIME", help="for the first one (default 5s)")
    taking.add_argument("--no-ack", action="store_true", help="leave them to be redelivered after the ack wait")
    taking.add_argument("--nak", action="store_true", help="give them back at once")
    taking.add_argument("--raw", action="store_true", help="write the payloads alone, as they are")
    pausing = _in_stream(add_verb(verbs, "pause", _pause, "stop deliveries for a time", writes=True))
    pausing.add_argument("until", metavar="UNTIL", help="a duration such as 1h, or RFC 3339 text")
    _in_stream(add_verb(verbs, "resume", _resume, "go on with deliveries", writes=True))


def _in_stream(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("stream", metavar="STREAM")
    parser.add_argument("consumer", metavar="CONSUMER")
    return parser


def _define_add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--filter", action="append", metavar="FILTER", help="only these subjects, several by comma")
    add("--ack", dest="ack_policy", choices=("explicit", "all", "none"), help="default: explicit")
    add("--deliver", dest="deliver_policy", choices=tuple(_POLICIES), help="where to start (default: all)")
    text = "until a delivery that is not settled is repeated"
    add("--wait", dest="ack_wait", type=duration, metavar="TIME", help=text)
    add("--max-deliver", type=int, metavar="N")
    text = "deliveries that may be unsettled at once"
    add("--max-pending", dest="max_ack_pending", type=int, metavar="N", help=text)
    text = "the same for each subject (a file alone)"
    add("--max-pending-per-subject", dest="max_ack_pending_per_subject", type=int, metavar="N", help=text)
    add("--backoff", type=duration, action="append", metavar="TIME", help="the waits of redeliveries, one each")
    add("--target", dest="deliver_subject", metavar="SUBJECT", help="push messages to this subject")
    add("--replay", dest="replay_policy", choices=("instant", "original"))
    add("--description", metavar="TEXT")


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    now, found = jet.runtime.clock.now(), await observe.consumer_summaries(jet, options.stream)
    if not (options.all or options.stream):
        own = {one.name for one in await observe.stream_summaries(jet) if one.kind in INTERNAL}
        found = [one for one in found if one.stream not in own]
    write_found(
        options,
        found,
        "stream, consumer, pending, ack pending, redelivered, lag, delivered, last delivery, state",
        lambda one: (one.stream, one.name, one.pending, one.ack_pending, one.redelivered, one.lag, one.delivered_seq,
                     age_text(one.last_delivered_at, now), "paused" if one.paused else ""),
        empty="no consumers",
        drop="delivered, redelivered, state, last delivery",
    )  # fmt: skip


async def _consumer(jet: Jet, options: argparse.Namespace) -> Consumer:
    return await (await jet.stream(options.stream)).consumer(options.consumer)


async def _info(jet: Jet, options: argparse.Namespace) -> None:
    _show(await (await _consumer(jet, options)).info(), as_json=options.json)


def _show(info: ConsumerInfo, *, as_json: bool) -> None:
    if as_json:
        write_json(info)
        return
    config = info.config
    filters = (config.filter_subject,) if config.filter_subject else config.filter_subjects
    write_facts(
        f"consumer {info.stream_name} > {info.name}",
        {
            "description": config.description,
            "filters": ", ".join(filters),
            "kind": f"push to {config.deliver_subject}" if config.deliver_subject else "pull",
            "ack": config.ack_policy,
            "ack wait": str(config.ack_wait),
            "deliver": config.deliver_policy,
            "max deliver": "" if config.max_deliver < 1 else config.max_deliver,
            "max ack pending": config.max_ack_pending,
            "max ack pending per subject": config.max_ack_pending_per_subject or "",
            "created": moment_text(info.created),
            "last delivered": info.delivered.stream_seq,
            "last delivery": moment_text(info.delivered.last_active),
            "ack floor": info.ack_floor.stream_seq,
            "last ack": moment_text(info.ack_floor.last_active),
            "ack pending": info.num_ack_pending,
            "redelivered": info.num_redelivered,
            "pending": info.num_pending,
            "waiting pulls": info.num_waiting,
            "paused for": str(info.pause_remaining) if info.paused else "",
            "leader": "" if info.cluster is None else info.cluster.leader,
        },
    )


async def _add(jet: Jet, options: argparse.Namespace) -> None:
    made = await (await jet.stream(options.stream)).create_consumer(**_fields(options))
    if options.json:
        write_json(await made.info())
    else:
        write_line(f"consumer {options.stream} > {options.consumer} created")


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    given = fields_of(options, ConsumerConfig)
    if options.deliver_policy is not None:
        given["deliver_policy"] = _POLICIES[options.deliver_policy]
    filters = parts_of(options.filter)
    if len(filters) == 1:
        given["filter_subject"] = filters[0]
    elif filters:
        given["filter_subjects"] = filters
    return {"durable_name": options.consumer, **given}


async def _remove(jet: Jet, options: argparse.Namespace) -> int:
    info = await (await _consumer(jet, options)).info()
    left = f"its position, and {info.num_pending:,} messages to deliver"
    if not is_agreed(options, f"Really delete consumer {options.stream} > {options.consumer}, {left}?"):
        return 1
    await (await jet.stream(options.stream)).delete_consumer(options.consumer)
    write_done(options, {"deleted": options.consumer}, f"consumer {options.stream} > {options.consumer} deleted")
    return 0


async def _next(jet: Jet, options: argparse.Namespace) -> int:
    consumer = await _consumer(jet, options)
    found = await consumer.fetch(options.count, timeout=options.wait)
    for message in found:
        _show_message(message, options)
        if options.nak:
            await message.nak()
        elif not options.no_ack and consumer.config.ack_policy != "none":
            await message.ack()
    if not found:
        write_line("no message", error=True)
    return 0 if found else 1


def _show_message(message: Message, options: argparse.Namespace) -> None:
    if options.raw:
        write_raw(message.data)
        return
    delivered = message.delivered
    facts = {"seq": delivered.seq, "subject": message.subject, "time": rfc3339(delivered.time_ns)}
    facts |= {"delivery": delivered.num_delivered, "pending": delivered.num_pending}
    show_message(facts, message.headers, message.data, as_json=options.json)


async def _pause(jet: Jet, options: argparse.Namespace) -> None:
    consumer = await _consumer(jet, options)
    await consumer.pause(rfc3339(moment_of(options.until, jet.runtime.clock.now(), 1)))
    _show(await consumer.info(), as_json=options.json)


async def _resume(jet: Jet, options: argparse.Namespace) -> None:
    consumer = await _consumer(jet, options)
    await consumer.resume()
    _show(await consumer.info(), as_json=options.json)
