"""Commands for streams and messages: ``pelton stream``, ``pub``, ``sub``, ``request``."""

from __future__ import annotations

import argparse
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec

from pelton import observe
from pelton.api import ConfigError, Headers, MessageNotFoundError, StoredMessage, StreamConfig, headers
from pelton.api.times import dec_hook
from pelton.api.wording import age_text, bytes_text, moment_text
from pelton.cli.arguments import (
    CREATE,
    FORCE,
    NAMES,
    RAW,
    duration,
    fields_of,
    header,
    option,
    parts_of,
    payload_of,
    store_command,
    together,
)
from pelton.cli.output import (
    confirm,
    show_message,
    show_stored,
    write_change,
    write_done,
    write_facts,
    write_found,
    write_json,
    write_json_line,
    write_line,
)
from pelton.connect import Jet
from pelton.observe.queues import newest_messages

_SWITCHES: Final = (
    ("discard-per-subject", "discard_new_per_subject", "refuse new messages of a full subject"),
    ("allow-direct", "allow_direct", "direct gets"),
    ("allow-rollup", "allow_rollup_hdrs", "messages that replace all before them"),
    ("allow-msg-ttl", "allow_msg_ttl", "a time to live for each message"),
    ("allow-schedules", "allow_msg_schedules", "scheduled messages"),
    ("deny-delete", "deny_delete", "no message can be deleted"),
    ("deny-purge", "deny_purge", "no purge"),
)
# The options of the nats command; those that it calls otherwise have the field's name as well.
_FIELDS: Final = together(
    option("--config FILE", "the configuration as JSON, as 'stream info --json' shows it"),
    option("--subjects SUBJECTS", "what it takes, several by comma", action="append"),
    option("--description TEXT"),
    option("--storage", choices=("file", "memory")),
    option("--retention", choices=("limits", "interest", "work", "workqueue")),
    option("--discard", choices=("old", "new")),
    option("--max-msgs N", type=int),
    option("--max-msgs-per-subject N", type=int),
    option("--max-bytes SIZE"),
    option("--max-age TIME", "such as 7d; 0: for ever"),
    option("--max-msg-size SIZE"),
    option("--max-consumers N", type=int),
    option("--dupe-window TIME", "how long message ids are remembered", dest="duplicate_window"),
    option("--replicas N", dest="num_replicas"),
    *(option(f"--{name}", text, dest=field, action=argparse.BooleanOptionalAction) for name, field, text in _SWITCHES),
)


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    given = fields_of(options, StreamConfig.__struct_fields__)
    if "subjects" in given:
        given["subjects"] = parts_of(options.subjects)
    if given.get("retention") == "work":
        given["retention"] = "workqueue"
    return given


def _config(options: argparse.Namespace) -> StreamConfig | None:
    """Return the configuration of ``--config``, under the name of the command line. Raises ConfigError."""
    if options.config is None:
        return None
    try:
        raw = msgspec.json.decode(Path(options.config).read_bytes())
        found = msgspec.convert(raw.get("config", raw), StreamConfig, dec_hook=dec_hook)
    except (OSError, AttributeError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"--config {options.config}: {error}") from None
    return msgspec.structs.replace(found, name=options.stream)


@store_command("stream ls", "list the streams")
@option("--subject SUBJECT", "only streams that take this subject", default="")
@NAMES
async def _list(jet: Jet, options: argparse.Namespace) -> None:
    found = await observe.stream_summaries(jet)
    if options.subject:
        names = set(await jet.stream_names(options.subject))
        found = [one for one in found if one.name in names]
    now = jet.runtime.clock.now()
    write_found(
        options,
        found,
        "stream, kind, messages, size, subjects, consumers, last message",
        lambda one: (one.name, one.kind, one.messages, bytes_text(one.bytes), one.num_subjects, one.consumers,
                     age_text(one.last_at, now)),
        empty="no streams",
        drop="consumers, subjects, kind",
    )  # fmt: skip


@store_command("stream info STREAM", "show a stream")
async def _info(jet: Jet, options: argparse.Namespace) -> None:
    info = await (await jet.stream(options.stream)).info()
    config, state = info.config, info.state
    write_facts(
        options,
        info,
        f"stream {config.name}",
        {
            "description": config.description,
            "subjects": ", ".join(config.subjects),
            "retention": config.retention,
            "storage": config.storage,
            "replicas": config.num_replicas,
            "discard": config.discard,
            "max messages": "" if config.max_msgs < 0 else config.max_msgs,
            "max per subject": "" if config.max_msgs_per_subject < 0 else config.max_msgs_per_subject,
            "max size": "" if config.max_bytes < 0 else bytes_text(config.max_bytes),
            "max age": str(config.max_age) if config.max_age else "",
            "duplicate window": str(config.duplicate_window),
            "mirror of": "" if config.mirror is None else config.mirror.name,
            "sources": ", ".join(source.name for source in config.sources),
            "created": moment_text(info.created),
            "messages": state.messages,
            "size": bytes_text(state.bytes),
            "first sequence": state.first_seq,
            "last sequence": state.last_seq,
            "first message": moment_text(state.first_ts) if state.messages else "",
            "last message": moment_text(state.last_ts) if state.last_seq else "",
            "deleted": state.num_deleted,
            "different subjects": state.num_subjects,
            "consumers": state.consumer_count,
            "leader": "" if info.cluster is None else info.cluster.leader,
        },
    )


@store_command("stream add STREAM", "create a stream", writes=True)
@CREATE
@_FIELDS
async def _add(jet: Jet, options: argparse.Namespace) -> None:
    config = _config(options)
    made = await jet.create_stream(options.stream if config is None else config, **_fields(options))
    await write_change(options, made.info, f"stream {made.name} created")


@store_command("stream edit STREAM", "change the configuration of a stream", writes=True)
@_FIELDS
async def _edit(jet: Jet, options: argparse.Namespace) -> None:
    config = _config(options)
    if config is None and not _fields(options):
        raise ConfigError("nothing to change: give an option, such as --max-age 7d")
    changed = await jet.update_stream(options.stream if config is None else config, **_fields(options))
    await write_change(options, changed.info, f"stream {changed.name} changed")


@store_command("stream rm STREAM", "delete a stream with its messages and consumers", writes=True)
@FORCE
async def _remove(jet: Jet, options: argparse.Namespace) -> None:
    info = await (await jet.stream(options.stream)).info()
    confirm(options, f"Really delete stream {options.stream} with {info.state.messages:,} messages?")
    await jet.delete_stream(options.stream)
    write_done(options, {"deleted": options.stream}, f"stream {options.stream} deleted")


@store_command("stream purge STREAM", "remove messages of a stream", writes=True)
@option("--subject FILTER", "only messages of these subjects", default="")
@option("--seq N", "only messages before this sequence", type=int, default=0)
@option("--keep N", "keep the newest messages", type=int, default=0)
@FORCE
async def _purge(jet: Jet, options: argparse.Namespace) -> None:
    stream = await jet.stream(options.stream)
    messages = (await stream.info()).state.messages
    is_part = options.subject or options.seq or options.keep
    what = f"messages of the {messages:,} in" if is_part else f"all {messages:,} messages of"
    confirm(options, f"Really purge {what} stream {options.stream}?")
    purged = await stream.purge(filter=options.subject, seq=options.seq, keep=options.keep)
    write_done(options, {"purged": purged}, f"{purged:,} messages removed")


@store_command("stream rmm STREAM", "remove one message", writes=True)
@option("SEQ", type=int)
@FORCE
async def _remove_message(jet: Jet, options: argparse.Namespace) -> None:
    stream = await jet.stream(options.stream)
    await stream.get_message(options.seq)
    confirm(options, f"Really remove message {options.seq} of stream {options.stream}?")
    await stream.delete_message(options.seq)
    write_done(options, {"deleted": options.seq}, f"message {options.seq} removed")


@store_command("stream get STREAM", "show one message")
@option("[SEQ]", type=int)
@option("-S --last-for SUBJECT", "the last message of a subject")
@option("--raw", "write the payload alone, as it is")
async def _get(jet: Jet, options: argparse.Namespace) -> None:
    if (options.seq is None) == (options.last_for is None):
        raise ConfigError("give the message's SEQ, or --last-for SUBJECT")
    stream = await jet.stream(options.stream)
    if options.last_for is not None:
        stored = await stream.get_last_message(options.last_for)
    else:
        stored = await stream.get_message(options.seq)
    show_stored(options, stored)


@store_command("stream tail STREAM", "show the newest messages, and those that follow")
@option("--subject FILTER", "only messages of these subjects", default=">")
@option("-n --count N", "how many to begin with (default 10)", type=int, default=10)
@option("--follow -F", "go on with new messages until interrupted")
@option("--every EVERY", argparse.SUPPRESS, type=duration, default=0.5)
@option("--until UNTIL", argparse.SUPPRESS, type=int, default=0)
async def _tail(jet: Jet, options: argparse.Namespace) -> None:
    stream = await jet.stream(options.stream)
    state = (await stream.info()).state
    newest = list[StoredMessage]()
    async with aclosing(newest_messages(stream, options.subject, state, max(options.count, 1))) as messages:
        while len(newest) < options.count and (found := await anext(messages, None)) is not None:
            newest.append(found)
    for stored in reversed(newest):
        show_stored(options, stored)
    shown, seq = len(newest), state.last_seq + 1
    while options.follow and not (options.until and shown >= options.until):
        try:
            stored = await stream.get_next_message(options.subject, seq)
        except MessageNotFoundError:
            await jet.runtime.clock.sleep(options.every)
            continue
        show_stored(options, stored)
        shown, seq = shown + 1, stored.seq + 1


# --- commands for messages: ``pelton pub``, ``sub``, ``request``


@store_command("pub SUBJECT", writes=True)
@option("[BODY]", "default, or -: standard input")
@option("-H --header HEADER", action="append", type=header, default=[], metavar="'NAME: VALUE'")
@option("--count N", "publish it so often", default=1)
@option("--msg-id ID", "stored once within the stream's duplicate window")
@option("--ttl TIME", "the stream removes it after this time")
@option("--no-ack", "to subscribers, and to a stream if there is one, without an answer")
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


@store_command("sub", writes=True)
@option("SUBJECT", "a subject, or a filter such as 'orders.>'")
@option("--count N", "end after this number of messages")
@option("--queue GROUP", "share the messages with others in this group", default="")
@option("--timeout TIME", "end, with status 1, if none comes for so long")
@RAW
async def _subscribe(jet: Jet, options: argparse.Namespace) -> int:
    async with await jet.subscribe(options.subject, queue=options.queue) as subscription:
        write_line(f"subscribed to {options.subject}", error=True, flush=True)
        seen = 0
        while options.count is None or seen < options.count:
            message = await subscription.next(timeout=options.timeout)
            if message is None:
                return 1
            seen += 1
            show_message(options, {"subject": message.subject}, message.headers, message.data)
    return 0


# --- ``pelton request``: send a message, and show the answers to it

_NOBODY: Final = b"NATS/1.0 503"


@store_command("request SUBJECT", writes=True)
@option("[BODY]", "default, or -: standard input")
@option("-H --header HEADER", action="append", type=header, default=[], metavar="'NAME: VALUE'")
@option("--replies N", "how many answers to wait for (default 1)", default=1)
@option("--timeout TIME", "for each of them (default 5s)", default=5.0)
@RAW
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
            answered = headers.decode(found.headers) if found.headers else Headers()
            show_message(options, {"subject": options.subject}, answered, found.data)
    finally:
        await answers.close()
    return 0
