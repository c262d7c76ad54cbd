"""Commands for streams and messages: ``pelton stream``, ``pub``, ``sub``, ``request``."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from pelton import observe
from pelton.api import (
    ConfigError,
    Headers,
    Incoming,
    MessageNotFoundError,
    StoredMessage,
    StreamConfig,
    StreamState,
    headers,
)
from pelton.api.times import dec_hook
from pelton.api.wording import age_text, bytes_text, moment_text
from pelton.cli.arguments import (
    add_create,
    add_verb,
    count,
    define_verb,
    duration,
    fields_of,
    header,
    parts_of,
    payload_of,
    size,
)
from pelton.cli.output import (
    add_force,
    is_agreed,
    show_message,
    show_stored,
    write_done,
    write_facts,
    write_found,
    write_json,
    write_json_line,
    write_line,
    write_raw,
)
from pelton.connect import Jet
from pelton.jet import Stream


def define_stream(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list, "list the streams")
    listing.add_argument("--subject", default="", metavar="SUBJECT", help="only streams that take this subject")
    listing.add_argument("-n", "--names", action="store_true", help="only their names")
    _in_stream(add_verb(verbs, "info", _info, "show a stream"))
    adding = _in_stream(add_verb(verbs, "add", _add, "create a stream", writes=True))
    add_create(adding)
    _add_fields(adding)
    _add_fields(_in_stream(add_verb(verbs, "edit", _edit, "change the configuration of a stream", writes=True)))
    text = "delete a stream with its messages and consumers"
    add_force(_in_stream(add_verb(verbs, "rm", _remove, text, writes=True)))
    purging = _in_stream(add_verb(verbs, "purge", _purge, "remove messages of a stream", writes=True))
    purging.add_argument("--subject", default="", metavar="FILTER", help="only messages of these subjects")
    purging.add_argument("--seq", type=int, default=0, metavar="N", help="only messages before this sequence")
    purging.add_argument("--keep", type=int, default=0, metavar="N", help="keep the newest messages")
    add_force(purging)
    erasing = _in_stream(add_verb(verbs, "rmm", _remove_message, "remove one message", writes=True))
    erasing.add_argument("seq", type=int, metavar="SEQ")
    add_force(erasing)
    getting = _in_stream(add_verb(verbs, "get", _get, "show one message"))
    getting.add_argument("seq", type=int, nargs="?", metavar="SEQ")
    getting.add_argument("-S", "--last-for", metavar="SUBJECT", help="the last message of a subject")
    getting.add_argument("--raw", action="store_true", help="write the payload alone, as it is")
    tailing = _in_stream(add_verb(verbs, "tail", _tail, "show the newest messages, and those that follow"))
    tailing.add_argument("--subject", default=">", metavar="FILTER", help="only messages of these subjects")
    tailing.add_argument("-n", "--count", type=int, default=10, metavar="N", help="how many to begin with (default 10)")
    tailing.add_argument("--follow", "-F", action="store_true", help="go on with new messages until interrupted")
    tailing.add_argument("--every", type=duration, default=0.5, help=argparse.SUPPRESS)
    tailing.add_argument("--until", type=int, default=0, help=argparse.SUPPRESS)


def _in_stream(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("stream", metavar="STREAM")
    return parser


def _add_fields(parser: argparse.ArgumentParser) -> None:
    # The options of the nats command; those that it calls otherwise have the field's name as well.
    add = parser.add_argument
    add("--config", metavar="FILE", help="the configuration as JSON, as 'stream info --json' shows it")
    add("--subjects", action="append", metavar="SUBJECTS", help="what it takes, several by comma")
    add("--description", metavar="TEXT")
    add("--storage", choices=("file", "memory"))
    add("--retention", choices=("limits", "interest", "work", "workqueue"))
    add("--discard", choices=("old", "new"))
    add("--max-msgs", type=int, metavar="N")
    add("--max-msgs-per-subject", type=int, metavar="N")
    add("--max-bytes", type=size, metavar="SIZE")
    add("--max-age", type=duration, metavar="TIME", help="such as 7d; 0: for ever")
    add("--max-msg-size", type=size, metavar="SIZE")
    add("--max-consumers", type=int, metavar="N")
    text = "how long message ids are remembered"
    add("--dupe-window", dest="duplicate_window", type=duration, metavar="TIME", help=text)
    add("--replicas", dest="num_replicas", type=count, metavar="N")
    for name, field, text in (
        ("discard-per-subject", "discard_new_per_subject", "refuse new messages of a full subject"),
        ("allow-direct", "allow_direct", "direct gets"),
        ("allow-rollup", "allow_rollup_hdrs", "messages that replace all before them"),
        ("allow-msg-ttl", "allow_msg_ttl", "a time to live for each message"),
        ("allow-schedules", "allow_msg_schedules", "scheduled messages"),
        ("deny-delete", "deny_delete", "no message can be deleted"),
        ("deny-purge", "deny_purge", "no purge"),
    ):
        add(f"--{name}", dest=field, action=argparse.BooleanOptionalAction, help=text)


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    given = fields_of(options, StreamConfig)
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


async def _info(jet: Jet, options: argparse.Namespace) -> None:
    info = await (await jet.stream(options.stream)).info()
    if options.json:
        write_json(info)
        return
    config, state = info.config, info.state
    write_facts(
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


async def _add(jet: Jet, options: argparse.Namespace) -> None:
    config = _config(options)
    made = await jet.create_stream(options.stream if config is None else config, **_fields(options))
    await _report(jet, options, f"stream {made.name} created")


async def _edit(jet: Jet, options: argparse.Namespace) -> None:
    config = _config(options)
    if config is None and not _fields(options):
        raise ConfigError("nothing to change: give an option, such as --max-age 7d")
    changed = await jet.update_stream(options.stream if config is None else config, **_fields(options))
    await _report(jet, options, f"stream {changed.name} changed")


async def _report(jet: Jet, options: argparse.Namespace, text: str) -> None:
    if options.json:
        write_json(await (await jet.stream(options.stream)).info())
    else:
        write_line(text)


async def _remove(jet: Jet, options: argparse.Namespace) -> int:
    info = await (await jet.stream(options.stream)).info()
    if not is_agreed(options, f"Really delete stream {options.stream} with {info.state.messages:,} messages?"):
        return 1
    await jet.delete_stream(options.stream)
    write_done(options, {"deleted": options.stream}, f"stream {options.stream} deleted")
    return 0


async def _purge(jet: Jet, options: argparse.Namespace) -> int:
    stream = await jet.stream(options.stream)
    messages = (await stream.info()).state.messages
    is_part = options.subject or options.seq or options.keep
    what = f"messages of the {messages:,} in" if is_part else f"all {messages:,} messages of"
    if not is_agreed(options, f"Really purge {what} stream {options.stream}?"):
        return 1
    purged = await stream.purge(filter=options.subject, seq=options.seq, keep=options.keep)
    write_done(options, {"purged": purged}, f"{purged:,} messages removed")
    return 0


async def _remove_message(jet: Jet, options: argparse.Namespace) -> int:
    stream = await jet.stream(options.stream)
    await stream.get_message(options.seq)
    if not is_agreed(options, f"Really remove message {options.seq} of stream {options.stream}?"):
        return 1
    await stream.delete_message(options.seq)
    write_done(options, {"deleted": options.seq}, f"message {options.seq} removed")
    return 0


async def _get(jet: Jet, options: argparse.Namespace) -> None:
    if (options.seq is None) == (options.last_for is None):
        raise ConfigError("give the message's SEQ, or --last-for SUBJECT")
    stream = await jet.stream(options.stream)
    if options.last_for is not None:
        stored = await stream.get_last_message(options.last_for)
    else:
        stored = await stream.get_message(options.seq)
    if options.raw:
        write_raw(stored.data)
    else:
        show_stored(stored, as_json=options.json)


async def _tail(jet: Jet, options: argparse.Namespace) -> None:
    stream = await jet.stream(options.stream)
    state = (await stream.info()).state
    newest = await _newest(stream, state, options.subject, options.count)
    for stored in newest:
        show_stored(stored, as_json=options.json)
    shown, seq = len(newest), state.last_seq + 1
    while options.follow and not (options.until and shown >= options.until):
        try:
            stored = await stream.get_next_message(options.subject, seq)
        except MessageNotFoundError:
            await jet.runtime.clock.sleep(options.every)
            continue
        show_stored(stored, as_json=options.json)
        shown, seq = shown + 1, stored.seq + 1


async def _newest(stream: Stream, state: StreamState, subject: str, wanted: int) -> list[StoredMessage]:
    """Return the newest messages of a filter: from the last one back, in parts that grow until there are enough."""
    try:
        last = min((await stream.get_last_message(subject)).seq, state.last_seq)
    except MessageNotFoundError:
        return []
    found: list[StoredMessage] = []
    part, end = max(wanted, 1), last
    while len(found) < wanted and end >= max(state.first_seq, 1):
        begin = max(end - part + 1, state.first_seq, 1)
        found = await _between(stream, subject, begin, end) + found
        part, end = part * 2, begin - 1
    return found[-wanted:] if wanted > 0 else []


async def _between(stream: Stream, subject: str, begin: int, end: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    with suppress(MessageNotFoundError):
        while begin <= end and (stored := await stream.get_next_message(subject, begin)).seq <= end:
            found.append(stored)
            begin = stored.seq + 1
    return found


# --- commands for messages: ``pelton pub``, ``sub``, ``request``


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
