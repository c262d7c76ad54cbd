"""``pelton consumer``: list, show, create, pause and remove consumers, and take messages."""

from __future__ import annotations

import argparse
from typing import Any, Final

from pelton import observe
from pelton.api import ConsumerConfig, ConsumerInfo, rfc3339
from pelton.api.wording import age_text, moment_text
from pelton.cli.arguments import FORCE, NAMES, RAW, fields_of, moment_of, option, parts_of, store_command
from pelton.cli.output import confirm, show_message, write_change, write_done, write_facts, write_found, write_line
from pelton.connect import Jet
from pelton.jet import Consumer, Message
from pelton.observe.holdings import INTERNAL

_POLICIES: Final = {"all": "all", "last": "last", "new": "new", "subject": "last_per_subject"}


@store_command("consumer ls [STREAM]", "list the consumers of a stream, or of all streams")
@option("--all", "also those by which queues, locks and elections work")
@NAMES
async def _list(jet: Jet, options: argparse.Namespace) -> None:
    now, found = jet.runtime.clock.now(), await observe.consumer_summaries(jet, options.stream or "")
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


@store_command("consumer info STREAM CONSUMER", "show a consumer")
async def _info(jet: Jet, options: argparse.Namespace) -> None:
    _show(await (await _consumer(jet, options)).info(), options)


def _show(info: ConsumerInfo, options: argparse.Namespace) -> None:
    config = info.config
    filters = (config.filter_subject,) if config.filter_subject else config.filter_subjects
    write_facts(
        options,
        info,
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


@store_command("consumer add STREAM CONSUMER", "create a consumer", writes=True)
@option("--filter FILTER", "only these subjects, several by comma", action="append")
@option("--ack", "default: explicit", dest="ack_policy", choices=("explicit", "all", "none"))
@option("--deliver", "where to start (default: all)", dest="deliver_policy", choices=tuple(_POLICIES))
@option("--wait TIME", "until a delivery that is not settled is repeated", dest="ack_wait")
@option("--max-deliver N", type=int)
@option("--max-pending N", "deliveries that may be unsettled at once", dest="max_ack_pending", type=int)
@option(
    "--max-pending-per-subject N",
    "the same for each subject (a file alone)",
    dest="max_ack_pending_per_subject",
    type=int,
)
@option("--backoff TIME", "the waits of redeliveries, one each", action="append")
@option("--target SUBJECT", "push messages to this subject", dest="deliver_subject")
@option("--replay", dest="replay_policy", choices=("instant", "original"))
@option("--description TEXT")
async def _add(jet: Jet, options: argparse.Namespace) -> None:
    made = await (await jet.stream(options.stream)).create_consumer(**_fields(options))
    await write_change(options, made.info, f"consumer {options.stream} > {options.consumer} created")


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    given = fields_of(options, ConsumerConfig.__struct_fields__)
    if options.deliver_policy is not None:
        given["deliver_policy"] = _POLICIES[options.deliver_policy]
    filters = parts_of(options.filter)
    if len(filters) == 1:
        given["filter_subject"] = filters[0]
    elif filters:
        given["filter_subjects"] = filters
    return {"durable_name": options.consumer, **given}


@store_command("consumer rm STREAM CONSUMER", "delete a consumer", writes=True)
@FORCE
async def _remove(jet: Jet, options: argparse.Namespace) -> None:
    info = await (await _consumer(jet, options)).info()
    left = f"its position, and {info.num_pending:,} messages to deliver"
    confirm(options, f"Really delete consumer {options.stream} > {options.consumer}, {left}?")
    await (await jet.stream(options.stream)).delete_consumer(options.consumer)
    write_done(options, {"deleted": options.consumer}, f"consumer {options.stream} > {options.consumer} deleted")


@store_command("consumer next STREAM CONSUMER", "take messages, and acknowledge them", writes=True)
@option("--count N", "how many at most (default 1)", default=1)
@option("--wait TIME", "for the first one (default 5s)", default=5.0)
@option("--no-ack", "leave them to be redelivered after the ack wait")
@option("--nak", "give them back at once")
@RAW
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
    delivered = message.delivered
    facts = {"seq": delivered.seq, "subject": message.subject, "time": rfc3339(delivered.time_ns)}
    facts |= {"delivery": delivered.num_delivered, "pending": delivered.num_pending}
    show_message(options, facts, message.headers, message.data)


@store_command("consumer pause STREAM CONSUMER", "stop deliveries for a time", writes=True)
@option("UNTIL", "a duration such as 1h, or RFC 3339 text")
async def _pause(jet: Jet, options: argparse.Namespace) -> None:
    consumer = await _consumer(jet, options)
    await consumer.pause(rfc3339(moment_of(options.until, jet.runtime.clock.now(), 1)))
    _show(await consumer.info(), options)


@store_command("consumer resume STREAM CONSUMER", "go on with deliveries", writes=True)
async def _resume(jet: Jet, options: argparse.Namespace) -> None:
    consumer = await _consumer(jet, options)
    await consumer.resume()
    _show(await consumer.info(), options)
