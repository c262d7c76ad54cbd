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
from pelton.buckets import BucketSettings, Entry, ObjectInfo
from pelton.cli.arguments import CREATE, FORCE, STANDARD, fields_of, option, payload_of, store_command
from pelton.cli.output import (
    Bar,
    confirm,
    payload_json,
    payload_text,
    write_change,
    write_done,
    write_found,
    write_json_line,
    write_line,
    write_lines,
    write_raw,
)
from pelton.connect import Jet


@store_command("kv ls [BUCKET]", "list the buckets, or the keys of one")
@option("[FILTER...]", "only these keys, such as 'users.*'")
async def _list_kv(jet: Jet, options: argparse.Namespace) -> None:
    if options.bucket is not None:
        bucket = await jet.bucket(options.bucket)
        found = sorted([key async for key in bucket.keys(*options.filter)])
        write_lines(options, found, found)
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


@store_command("kv add BUCKET", "create a bucket", writes=True)
@CREATE
@option("--history N", "revisions of a key (default 1)", default=1)
@option("--ttl TIME", "how long values live", default=0)
@option(
    "--marker-ttl TIME",
    "allow 'put --ttl'; markers of keys that have expired are kept so long, for watchers",
    default=0,
    dest="limit_marker_ttl",
)
@option("--max-bucket-size SIZE", dest="max_bytes", default=-1)
@option("--max-value-size SIZE", default=-1)
@option("--replicas N", default=1)
@option("--description TEXT", default="")
async def _add(jet: Jet, options: argparse.Namespace) -> None:
    bucket = await jet.create_bucket(options.bucket, **fields_of(options, BucketSettings.__annotations__))
    await write_change(options, bucket.status, f"bucket {options.bucket} created")


@store_command("kv get BUCKET KEY", "show the value of a key")
@option("--revision N", type=int, default=0)
@option("--raw", "write the value alone, as it is")
async def _get_kv(jet: Jet, options: argparse.Namespace) -> None:
    entry = await (await jet.bucket(options.bucket)).get(options.key, revision=options.revision)
    if options.raw:
        write_raw(entry.value or b"")
    else:
        write_lines(options, _plain(entry), [_line_of(entry)])


def _plain(entry: Entry[bytes]) -> dict[str, Any]:
    facts = {"bucket": entry.bucket, "key": entry.key, "revision": entry.revision, "time": entry.time}
    return {**facts, "operation": entry.operation, **payload_json(entry.value or b"")}


def _line_of(entry: Entry[bytes]) -> str:
    value = entry.value or b""
    shown = payload_text(value) if entry.operation == "put" else f"({entry.operation})"
    text = f"(hex) {value.hex(' ')}" if shown is None else shown
    return f"{entry.key} > {text}  [{entry.revision}, {moment_text(entry.time)}]"


@store_command("kv put BUCKET KEY", "write a key", writes=True)
@option("[VALUE]", "default, or -: standard input")
@option("--ttl TIME", "how long this value lives")
@option("--revision N", "only if this is the last one; 0: if there is none", type=int)
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


@store_command("kv del BUCKET [KEY]", "delete a key, or a whole bucket", writes=True, aliases=["rm"])
@option("--purge", "older revisions as well")
@FORCE
async def _delete_kv(jet: Jet, options: argparse.Namespace) -> None:
    bucket = await jet.bucket(options.bucket)
    if options.key is None:
        confirm(options, f"Really delete bucket {options.bucket} with all its keys?")
        await jet.delete_bucket(options.bucket)
    else:
        await (bucket.purge(options.key) if options.purge else bucket.delete(options.key))
    deleted = options.bucket if options.key is None else options.key
    write_done(options, {"deleted": deleted}, f"{deleted}: deleted")


@store_command("kv watch BUCKET", "show keys, and then every change", writes=True)
@option("[FILTER...]", "only these keys")
@option("--count N", "end after this number")
@option("--updates-only", "begin with the next change")
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
            write_json_line(_plain(entry)) if options.json else write_line(_line_of(entry), flush=True)
            seen += 1
            if options.count is not None and seen >= options.count:
                return


@store_command("kv history BUCKET KEY", "show the revisions of a key")
async def _history(jet: Jet, options: argparse.Namespace) -> None:
    entries = await (await jet.bucket(options.bucket)).history(options.key)
    write_lines(options, [_plain(entry) for entry in entries], map(_line_of, entries))


# --- ``pelton object``: files in and out of an object store, in a store file or on a cluster


@store_command("object put BUCKET FILE", "store a file, or standard input (-)", writes=True)
@option("[NAME]", "default: the file's own name")
@option("--description TEXT", default="")
@option("--create", "create store and bucket if they are missing")
async def _put_object(jet: Jet, options: argparse.Namespace) -> None:
    store = await (jet.create_objects(options.bucket) if options.create else jet.objects(options.bucket))
    name = options.name or os.path.basename(options.file)
    if options.file == STANDARD and not options.name:
        raise ConfigError("standard input (-) has no name: give NAME")
    content = sys.stdin.buffer if options.file == STANDARD else Path(options.file)
    with Bar(f"putting {name}") as bar:
        info = await store.put(name, content, description=options.description, progress=bar.show)
    write_done(options, info, f"{info.name}: {info.size:,} bytes put")


@store_command("object get BUCKET NAME", "write an object to a file, or to standard output (-)")
@option("[FILE]", "default: the last part of the object's name")
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


@store_command("object ls BUCKET", "list the objects")
async def _list_object(jet: Jet, options: argparse.Namespace) -> None:
    write_found(
        options,
        [info async for info in (await jet.objects(options.bucket)).list()],
        "object, size, written",
        lambda one: (one.name + _lead(one), bytes_text(one.size), moment_text(one.mtime)),
        empty="no objects",
    )


@store_command("object info BUCKET NAME", "show one object")
async def _info(jet: Jet, options: argparse.Namespace) -> None:
    info = await (await jet.objects(options.bucket)).info(options.name)
    head = f"{info.name}{_lead(info)}: {info.size:,} bytes in {info.chunks} chunks, written {info.mtime}"
    told = {"digest": info.digest, "description": info.description, **info.metadata}
    told |= {name: ", ".join(values) for name, values in info.headers.items()}
    write_lines(options, info, [head, *(f"  {name}: {value}" for name, value in told.items() if value)])


@store_command("object rm BUCKET NAME", "delete an object", writes=True)
async def _delete_object(jet: Jet, options: argparse.Namespace) -> None:
    await (await jet.objects(options.bucket)).delete(options.name)
    write_done(options, {"deleted": options.name}, f"{options.name}: deleted")


@store_command("object cleanup BUCKET", "remove the remains of puts whose process was killed", writes=True)
@option("--older-than SECONDS", "default: 3600", default=3600.0)
async def _cleanup(jet: Jet, options: argparse.Namespace) -> None:
    removed = await (await jet.objects(options.bucket)).cleanup(older_than=options.older_than)
    write_done(options, {"removed": removed}, f"{options.bucket}: {removed} unfinished objects removed")


def _lead(info: ObjectInfo) -> str:
    return "" if info.link is None else f" -> {info.link.bucket}/{info.link.name}"
