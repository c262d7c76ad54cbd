"""Commands for buckets: ``pelton kv``, of keys and values, and ``pelton object``, of files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from pelton import observe
from pelton.api import ConfigError
from pelton.api.wording import age_text, bytes_text, moment_text
from pelton.buckets import Entry, ObjectInfo
from pelton.cli.arguments import STANDARD, Verb, add_create, add_verb, count, duration, payload_of, run, size
from pelton.cli.output import (
    Bar,
    add_force,
    is_agreed,
    payload_json,
    payload_text,
    write_done,
    write_found,
    write_json,
    write_json_line,
    write_line,
    write_raw,
)
from pelton.connect import Jet


def define_kv(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = add_verb(verbs, "ls", _list_kv, "list the buckets, or the keys of one")
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
    getting = _with_key(add_verb(verbs, "get", _get_kv, "show the value of a key"))
    getting.add_argument("--revision", type=int, default=0, metavar="N")
    getting.add_argument("--raw", action="store_true", help="write the value alone, as it is")
    putting = _with_key(add_verb(verbs, "put", _put_kv, "write a key", writes=True))
    putting.add_argument("value", nargs="?", metavar="VALUE", help="default, or -: standard input")
    putting.add_argument("--ttl", type=duration, metavar="TIME", help="how long this value lives")
    putting.add_argument("--revision", type=int, metavar="N", help="only if this is the last one; 0: if there is none")
    text = "delete a key, or a whole bucket"
    deleting = _in_bucket(add_verb(verbs, "del", _delete_kv, text, writes=True, aliases=["rm"]))
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


async def _list_kv(jet: Jet, options: argparse.Namespace) -> None:
    if options.bucket is not None:
        bucket = await jet.bucket(options.bucket)
        found = sorted([key async for key in bucket.keys(*options.filter)])
        if options.json:
            write_json(found)
            return
        for key in found:
            write_line(key)
        return
    now = jet.runtime.clock.now()
    write_found(
        options,
        await observe.bucket_summaries(jet),
        "bucket, keys, values, size, history, ttl, last change",
        lambda one: (one.name, one.keys, one.values, bytes_text(one.bytes), one.history, f"{one.ttl:g} s" if one.ttl
                     else "", age_text(one.last_at, now)),
        empty="no buckets",
        drop="ttl, history, last change, values",
    )  # fmt: skip


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


async def _get_kv(jet: Jet, options: argparse.Namespace) -> None:
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


async def _put_kv(jet: Jet, options: argparse.Namespace) -> None:
    bucket, value = await jet.bucket(options.bucket), payload_of(options.value)
    if options.revision == 0:
        revision = await bucket.create(options.key, value, ttl=options.ttl)
    elif options.revision is not None:
        revision = await bucket.update(options.key, value, options.revision, ttl=options.ttl)
    else:
        revision = await bucket.put(options.key, value, ttl=options.ttl)
    stored = {"bucket": options.bucket, "key": options.key, "revision": revision}
    write_done(options, stored, f"{options.key}: revision {revision}")


async def _delete_kv(jet: Jet, options: argparse.Namespace) -> int:
    bucket = await jet.bucket(options.bucket)
    if options.key is None:
        if not is_agreed(options, f"Really delete bucket {options.bucket} with all its keys?"):
            return 1
        await jet.delete_bucket(options.bucket)
    else:
        await (bucket.purge(options.key) if options.purge else bucket.delete(options.key))
    deleted = options.bucket if options.key is None else options.key
    write_done(options, {"deleted": deleted}, f"{deleted}: deleted")
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


# --- ``pelton object``: files in and out of an object store, in a store file or on a cluster


def define_object(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    put = _verb(verbs, "put", _put_object, "store a file, or standard input (-)", writes=True)
    put.add_argument("file", metavar="FILE")
    put.add_argument("name", metavar="NAME", nargs="?", help="default: the file's own name")
    put.add_argument("--description", default="", metavar="TEXT")
    put.add_argument("--create", action="store_true", help="create store and bucket if they are missing")
    get = _verb(verbs, "get", _get_object, "write an object to a file, or to standard output (-)")
    get.add_argument("name", metavar="NAME")
    get.add_argument("file", metavar="FILE", nargs="?", help="default: the last part of the object's name")
    _verb(verbs, "ls", _list_object, "list the objects")
    _verb(verbs, "info", _info, "show one object").add_argument("name", metavar="NAME")
    _verb(verbs, "rm", _delete_object, "delete an object", writes=True).add_argument("name", metavar="NAME")
    cleanup = _verb(verbs, "cleanup", _cleanup, "remove the remains of puts whose process was killed", writes=True)
    cleanup.add_argument("--older-than", type=float, default=3600.0, metavar="SECONDS", help="default: 3600")


def _verb(verbs: Any, name: str, verb: Verb, text: str, *, writes: bool = False) -> argparse.ArgumentParser:
    parser = _in_bucket(add_verb(verbs, name, verb, text, writes=writes))
    parser.set_defaults(run=_run_object, create=False)
    return parser


def _run_object(options: argparse.Namespace) -> int:
    try:
        return run(options)
    except OSError as error:
        write_line(f"pelton: {error}", error=True)
        return 1


async def _put_object(jet: Jet, options: argparse.Namespace) -> None:
    store = await (jet.create_objects(options.bucket) if options.create else jet.objects(options.bucket))
    name = options.name or os.path.basename(options.file)
    if options.file == STANDARD and not options.name:
        raise ConfigError("standard input (-) has no name: give NAME")
    content = sys.stdin.buffer if options.file == STANDARD else Path(options.file)
    with Bar(f"putting {name}") as bar:
        info = await store.put(name, content, description=options.description, progress=bar.show)
    write_done(options, info, f"{info.name}: {info.size:,} bytes put")


async def _get_object(jet: Jet, options: argparse.Namespace) -> None:
    store = await jet.objects(options.bucket)
    if options.file == STANDARD:
        await store.get_file(options.name, sys.stdout.buffer)
        return
    target = options.file or os.path.basename(options.name)
    if not options.file and target in ("", ".", ".."):
        raise ConfigError(f"the object's name {options.name!r} does not end in a file name: give FILE")
    with Bar(f"getting {options.name}") as bar:
        info = await store.get_file(options.name, Path(target), progress=bar.show)
    write_done(options, info, f"{target}: {info.size:,} bytes got")


async def _list_object(jet: Jet, options: argparse.Namespace) -> None:
    write_found(
        options,
        [info async for info in (await jet.objects(options.bucket)).list()],
        "object, size, written",
        lambda one: (one.name + _lead(one), bytes_text(one.size), moment_text(one.mtime)),
        empty="no objects",
    )


async def _info(jet: Jet, options: argparse.Namespace) -> None:
    info = await (await jet.objects(options.bucket)).info(options.name)
    if options.json:
        write_json(info)
        return
    write_line(f"{info.name}{_lead(info)}: {info.size:,} bytes in {info.chunks} chunks, written {info.mtime}")
    told = {"digest": info.digest, "description": info.description, **info.metadata}
    told |= {name: ", ".join(values) for name, values in info.headers.items()}
    for name, value in told.items():
        if value:
            write_line(f"  {name}: {value}")


async def _delete_object(jet: Jet, options: argparse.Namespace) -> None:
    await (await jet.objects(options.bucket)).delete(options.name)
    write_done(options, {"deleted": options.name}, f"{options.name}: deleted")


async def _cleanup(jet: Jet, options: argparse.Namespace) -> None:
    removed = await (await jet.objects(options.bucket)).cleanup(older_than=options.older_than)
    write_done(options, {"removed": removed}, f"{options.bucket}: {removed} unfinished objects removed")


def _lead(info: ObjectInfo) -> str:
    return "" if info.link is None else f" -> {info.link.bucket}/{info.link.name}"
