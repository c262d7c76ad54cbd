"""``pelton object``: files in and out of an object store, in a store file or on a cluster."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from pelton.api import ConfigError
from pelton.buckets import ObjectInfo, ObjectStore
from pelton.cli.keys import add_key
from pelton.cli.output import write_line
from pelton.cli.progress import Bar
from pelton.cli.stores import opened
from pelton.cli.tables import write_json

_STANDARD: Final = "-"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

Verb = Callable[[ObjectStore, argparse.Namespace], Awaitable[None]]


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    put = _verb(verbs, "put", _put, "store a file, or standard input (-)", writes=True)
    put.add_argument("file", metavar="FILE")
    put.add_argument("name", metavar="NAME", nargs="?", help="default: the file's own name")
    put.add_argument("--description", default="", metavar="TEXT")
    put.add_argument("--create", action="store_true", help="create store and bucket if they are missing")
    get = _verb(verbs, "get", _get, "write an object to a file, or to standard output (-)")
    get.add_argument("name", metavar="NAME")
    get.add_argument("file", metavar="FILE", nargs="?", help="default: the last part of the object's name")
    _verb(verbs, "list", _list, "list the objects")
    _verb(verbs, "info", _info, "show one object").add_argument("name", metavar="NAME")
    _verb(verbs, "delete", _delete, "delete an object", writes=True).add_argument("name", metavar="NAME")
    cleanup = _verb(verbs, "cleanup", _cleanup, "remove the remains of puts whose process was killed", writes=True)
    cleanup.add_argument("--older-than", type=float, default=3600.0, metavar="SECONDS", help="default: 3600")


def _verb(verbs: Any, name: str, verb: Verb, text: str, *, writes: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text)
    parser.add_argument("store", metavar="STORE", help="a store file, or an address such as nats://host:4222")
    parser.add_argument("bucket", metavar="BUCKET")
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")
    add_key(parser)
    parser.set_defaults(run=run, verb=verb, writes=writes, create=False)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run one verb; return 0 when it is done."""
    try:
        asyncio.run(_run(options))
    except OSError as error:
        write_line(f"pelton: {error}", error=True)
        return 1
    return 0


async def _run(options: argparse.Namespace) -> None:
    async with opened(options, writes=options.writes) as jet:
        store = jet.create_objects(options.bucket) if options.create else jet.objects(options.bucket)
        await options.verb(await store, options)


async def _put(store: ObjectStore, options: argparse.Namespace) -> None:
    name = options.name or os.path.basename(options.file)
    if options.file == _STANDARD and not options.name:
        raise ConfigError("standard input (-) has no name: give NAME")
    content = sys.stdin.buffer if options.file == _STANDARD else Path(options.file)
    with Bar(f"putting {name}") as bar:
        info = await store.put(name, content, description=options.description, progress=bar.show)
    _report(options, info, f"{info.name}: {info.size:,} bytes put")


def _report(options: argparse.Namespace, value: object, text: str) -> None:
    write_json(value) if options.json else write_line(text)


async def _get(store: ObjectStore, options: argparse.Namespace) -> None:
    if options.file == _STANDARD:
        await store.get_file(options.name, sys.stdout.buffer)
        return
    target = options.file or os.path.basename(options.name)
    if not options.file and target in ("", ".", ".."):
        raise ConfigError(f"the object's name {options.name!r} does not end in a file name: give FILE")
    with Bar(f"getting {options.name}") as bar:
        info = await store.get_file(options.name, Path(target), progress=bar.show)
    _report(options, info, f"{target}: {info.size:,} bytes got")


async def _list(store: ObjectStore, options: argparse.Namespace) -> None:
    if options.json:
        write_json([info async for info in store.list()])
        return
    async for info in store.list():
        write_line(f"{_size(info):>11}  {info.mtime[:19].replace('T', ' ')}  {info.name}{_lead(info)}")


async def _info(store: ObjectStore, options: argparse.Namespace) -> None:
    info = await store.info(options.name)
    if options.json:
        write_json(info)
        return
    write_line(f"{info.name}{_lead(info)}: {info.size:,} bytes in {info.chunks} chunks, written {info.mtime}")
    told = {"digest": info.digest, "description": info.description, **info.metadata}
    told |= {name: ", ".join(values) for name, values in info.headers.items()}
    for name, value in told.items():
        if value:
            write_line(f"  {name}: {value}")


async def _delete(store: ObjectStore, options: argparse.Namespace) -> None:
    await store.delete(options.name)
    _report(options, {"deleted": options.name}, f"{options.name}: deleted")


async def _cleanup(store: ObjectStore, options: argparse.Namespace) -> None:
    removed = await store.cleanup(older_than=options.older_than)
    _report(options, {"removed": removed}, f"{options.bucket}: {removed} unfinished objects removed")


def _lead(info: ObjectInfo) -> str:
    return "" if info.link is None else f" -> {info.link.bucket}/{info.link.name}"


def _size(info: ObjectInfo) -> str:
    size, unit = float(info.size), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{info.size} B"
