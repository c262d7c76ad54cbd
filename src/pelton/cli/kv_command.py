"""``pelton kv``: key-value buckets and their keys."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from pelton import observe
from pelton.buckets import Entry
from pelton.cli.asking import add_force, is_agreed
from pelton.cli.messages import payload_json, payload_text, write_raw
from pelton.cli.output import write_line
from pelton.cli.stores import add_create, add_verb
from pelton.cli.tables import ago_text, moment_text, size_text, write_json, write_json_line, write_table
from pelton.cli.values import count, duration, payload_of, size
from pelton.connect import Jet


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list, "list the buckets, or the keys of one")
    listing.add_argument("bucket", nargs="?", metavar="BUCKET")
    listing.add_argument("filter", nargs="*", metavar="FILTER", help="only these keys, such as 'users.*'")
    adding = _in_bucket(add_verb(verbs, "add", _add, "create a bucket", writes=True))
    add_create(adding)
    adding.add_argument("--history", type=count, default=1, metavar="N", help="revisions of a key (default 1)")
    adding.add_argument("--ttl", type=duration, default=0, metavar="TIME", help="how long values live")
    text = "allow 'put --ttl'; markers of keys that have expired are kept so long, for watchers"
    adding.add_argument("--marker-ttl", type=duration, default=0, metavar="TIME", help=text)
    adding.add_argument("--max-bucket-size", type=size, default=-1, metavar="SIZE")
    adding.add_argument("--max-value-size", type=size, default=-1, metavar="SIZE")
    adding.add_argument("--replicas", type=count, default=1, metavar="N")
    adding.add_argument("--description", default="", metavar="TEXT")
    getting = _with_key(add_verb(verbs, "get", _get, "show the value of a key"))
    getting.add_argument("--revision", type=int, default=0, metavar="N")
    getting.add_argument("--raw", action="store_true", help="write the value alone, as it is")
    putting = _with_key(add_verb(verbs, "put", _put, "write a key", writes=True))
    putting.add_argument("value", nargs="?", metavar="VALUE", help="default, or -: standard input")
    putting.add_argument("--ttl", type=duration, metavar="TIME", help="how long this value lives")
    putting.add_argument("--revision", type=int, metavar="N", help="only if this is the last one; 0: if there is none")
    deleting = _in_bucket(add_verb(verbs, "del", _delete, "delete a key, or a whole bucket", writes=True))
    deleting.add_argument("key", nargs="?", metavar="KEY")
    deleting.add_argument("--purge", action="store_true", help="older revisions as well")
    add_force(deleting)
    watching = _in_bucket(add_verb(verbs, "watch", _watch, "show keys, and then every change", writes=True))
    watching.add_argument("filter", nargs="*", metavar="FILTER", help="only these keys")
    watching.add_argument("--count", type=count, metavar="N", help="end after this number")
    watching.add_argument("--updates-only", action="store_true", help="begin with the next change")
    _with_key(add_verb(verbs, "history", _history, "show the revisions of a key"))


def _in_bucket(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("bucket", metavar="BUCKET")
    return parser


def _with_key(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("bucket", metavar="BUCKET")
    parser.add_argument("key", metavar="KEY")
    return parser


async def _list(jet: Jet, options: argparse.Namespace) -> None:
    if options.bucket is not None:
        bucket = await jet.bucket(options.bucket)
        found = sorted([key async for key in bucket.keys(*options.filter)])
        if options.json:
            write_json(found)
            return
        for key in found:
            write_line(key)
        return
    buckets = await observe.bucket_summaries(jet)
    if options.json:
        write_json(buckets)
        return
    now = jet.runtime.clock.now()
    rows = [
        (each.name, each.keys, each.values, size_text(each.bytes), each.history, f"{each.ttl:g} s" if each.ttl else "",
         ago_text(each.last_at, now))
        for each in buckets
    ]  # fmt: skip
    write_table(("bucket", "keys", "values", "size", "history", "ttl", "last change"), rows, empty="no buckets")


async def _add(jet: Jet, options: argparse.Namespace) -> None:
    bucket = await jet.create_bucket(
        options.bucket,
        history=options.history,
        ttl=options.ttl,
        limit_marker_ttl=options.marker_ttl,
        max_bytes=options.max_bucket_size,
        max_value_size=options.max_value_size,
        replicas=options.replicas,
        description=options.description,
    )
    if options.json:
        write_json(await bucket.status())
    else:
        write_line(f"bucket {options.bucket} created")


async def _get(jet: Jet, options: argparse.Namespace) -> None:
    entry = await (await jet.bucket(options.bucket)).get(options.key, revision=options.revision)
    if options.raw:
        write_raw(entry.value or b"")
    elif options.json:
        write_json(_plain(entry))
    else:
        _show(entry)


def _plain(entry: Entry[bytes]) -> dict[str, Any]:
    facts = {"bucket": entry.bucket, "key": entry.key, "revision": entry.revision, "time": entry.time}
    return {**facts, "operation": entry.operation, **payload_json(entry.value or b"")}


def _show(entry: Entry[bytes]) -> None:
    value = entry.value or b""
    shown = payload_text(value) if entry.operation == "put" else f"({entry.operation})"
    text = f"(hex) {value.hex(' ')}" if shown is None else shown
    write_line(f"{entry.key} > {text}  [{entry.revision}, {moment_text(entry.time)}]", flush=True)


async def _put(jet: Jet, options: argparse.Namespace) -> None:
    bucket, value = await jet.bucket(options.bucket), payload_of(options.value)
    if options.revision == 0:
        revision = await bucket.create(options.key, value, ttl=options.ttl)
    elif options.revision is not None:
        revision = await bucket.update(options.key, value, options.revision, ttl=options.ttl)
    else:
        revision = await bucket.put(options.key, value, ttl=options.ttl)
    if options.json:
        write_json({"bucket": options.bucket, "key": options.key, "revision": revision})
    else:
        write_line(f"{options.key}: revision {revision}")


async def _delete(jet: Jet, options: argparse.Namespace) -> int:
    bucket = await jet.bucket(options.bucket)
    if options.key is None:
        if not is_agreed(options, f"Really delete bucket {options.bucket} with all its keys?"):
            return 1
        await jet.delete_bucket(options.bucket)
    else:
        await (bucket.purge(options.key) if options.purge else bucket.delete(options.key))
    deleted = options.bucket if options.key is None else options.key
    write_json({"deleted": deleted}) if options.json else write_line(f"{deleted}: deleted")
    return 0


async def _watch(jet: Jet, options: argparse.Namespace) -> None:
    bucket = await jet.bucket(options.bucket)
    entries: AsyncGenerator[Entry[bytes] | None, None] = bucket.watch(
        *options.filter, updates_only=options.updates_only
    )
    seen = 0
    async with aclosing(entries):
        async for entry in entries:
            if entry is None:
                continue
            write_json_line(_plain(entry)) if options.json else _show(entry)
            seen += 1
            if options.count is not None and seen >= options.count:
                return


async def _history(jet: Jet, options: argparse.Namespace) -> None:
    entries = await (await jet.bucket(options.bucket)).history(options.key)
    if options.json:
        write_json([_plain(entry) for entry in entries])
        return
    for entry in entries:
        _show(entry)
