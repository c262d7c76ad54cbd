"""Commands for a whole store: ``pelton backup``, ``restore``, ``copy``, ``verify`` and so on.

What opens streams is imported where it is needed: the other commands start without it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from pelton.api import ConfigError
from pelton.api.keys import KeyFile
from pelton.cli.arguments import (
    JSON,
    KEY,
    WIDE,
    declare,
    file_command,
    key_of,
    one_of,
    option,
    store_command,
)
from pelton.cli.output import Bar, Cell, write_done, write_json, write_line, write_lines, write_table
from pelton.engine.upkeep import backup, compact, migrate, rekey, restore, salvage, verify
from pelton.storage import SCHEMA_VERSION

if TYPE_CHECKING:
    from pelton.connect import Jet
    from pelton.moving import CopyReport


@file_command("backup STORE TARGET")
@option("--stream NAME", "only this stream (may be repeated)", action="append")
def run_backup(options: argparse.Namespace) -> int:
    """Copy; return 0 when the copy is complete and on disk."""
    with Bar("backing up") as bar:
        backup(options.store, options.target, streams=options.stream, progress=bar.show, key=key_of(options))
    write_done(options, {"target": options.target}, f"{options.target}: backed up")
    return 0


# --- ``pelton restore``: a new store from a backup, or a backup's streams copied into an existing store


@file_command("restore BACKUP STORE")
@option("--into", "copy streams into STORE, which exists and may be in use")
@option("--stream NAME[=NEW]", "with --into: only this stream, under a new name", action="append")
def run_restore(options: argparse.Namespace) -> int:
    """Restore; return 0 when everything is complete and on disk."""
    if options.into:
        names = asyncio.run(_into(options))
        write_done(options, {"store": options.store, "streams": names}, f"{options.store}: restored {', '.join(names)}")
        return 0
    if options.stream:
        raise ConfigError("--stream chooses what is copied into a store: give --into as well")
    with Bar("restoring") as bar:
        restore(options.backup, options.store, key=key_of(options), progress=bar.show)
    write_done(options, {"store": options.store}, f"{options.store}: restored")
    return 0


async def _into(options: argparse.Namespace) -> list[str]:
    from pelton.connect import open as open_store

    pairs = [text.partition("=") for text in options.stream or ()]
    streams = [name for name, _, _ in pairs] or None
    names = {name: new for name, found, new in pairs if found}
    key = key_of(options)
    with Bar("restoring") as bar:
        async with open_store(options.store, key=key) as jet:
            return await jet.restore(options.backup, streams=streams, names=names, key=key, progress=bar.show)


# --- ``pelton copy``: a store or cluster, or some of its streams, to another one


@declare("copy")
@option("SOURCE", "a store file, or an address such as nats://host:4222")
@option("TARGET", "the same; a file is created if it is missing")
@option("--stream NAME", "only this stream (may be repeated)", action="append")
@option("--replicas N", "from a file to a cluster: keep each stream on N servers (default: 1)", type=int)
@WIDE
@option("--target-key-file FILE", "the target's key, if it is an encrypted file")
@JSON
@KEY
def run_copy(options: argparse.Namespace) -> int:
    """Copy; return 0 when the copy is complete, and the same as the original."""
    with Bar("copying") as bar:
        report = asyncio.run(_copy(options, bar))
    if options.json:
        write_json(report)
        return 0
    rows = [
        (one.name, one.messages, one.last_seq, len(one.consumers), one.checksum, "was there" if one.was_there else "")
        for one in report.streams
    ]
    heads = ("stream", "messages", "last sequence", "consumers", "checksum", "")
    write_table(heads, rows, empty="no streams", drop="consumers, last sequence", wide=options.wide)
    for text in report.lost:
        write_line(f"not kept: {text}")
    return 0


async def _copy(options: argparse.Namespace, bar: Bar) -> CopyReport:
    from pelton.moving import copy

    target_key = None if options.target_key_file is None else KeyFile(options.target_key_file)

    def on_progress(stream: str, done: int, total: int) -> None:
        bar.show(done, total, stream)

    return await copy(
        options.source,
        options.target,
        streams=options.stream,
        key=key_of(options),
        target_key=target_key,
        num_replicas=options.replicas,
        progress=on_progress,
    )


# --- ``pelton verify``: check every byte of a store


@file_command("verify STORE")
def run_verify(options: argparse.Namespace) -> int:
    """Report what is wrong; return 0 if nothing is."""
    found = verify(options.store, key_of(options))
    saved = f"save what it holds (pelton salvage {options.store} NEW)"
    end = f"{len(found)} findings; {saved}, or restore a backup" if found else "all is well"
    write_lines(options, {"store": options.store, "findings": found}, [*found, f"{options.store}: {end}"])
    return 1 if found else 0


# --- ``pelton salvage``: a new store with what a damaged one still holds


@file_command("salvage STORE TARGET")
def run_salvage(options: argparse.Namespace) -> int:
    """Save what can be read, and report what was lost; return 0 when the new store is complete."""
    lost = [*salvage(options.store, options.target, key_of(options))]
    write_lines(options, {"target": options.target, "lost": lost}, [*lost, f"{options.target}: written"])
    return 0


# --- ``pelton compact``: free the space that removed messages have left in a store


@file_command("compact STORE")
def run_compact(options: argparse.Namespace) -> int:
    """Compact; return 0 when done."""
    freed = compact(options.store, key_of(options))
    write_done(options, {"store": options.store, "freed": freed}, f"{options.store}: {freed:,} bytes freed")
    return 0


# --- ``pelton migrate``: what opening a store of an older version for writing does, at a time of your choice


@file_command("migrate STORE")
@option("--keep FILE", "copy the store as it was to this new file first")
def run_migrate(options: argparse.Namespace) -> int:
    """Migrate; return 0 when done."""
    before = migrate(options.store, keep=options.keep, key=key_of(options))
    kept = f"; as it was: {options.keep}" if options.keep else ""
    text = f"migrated from schema {before} to {SCHEMA_VERSION}{kept}"
    if before == SCHEMA_VERSION:
        text = f"it is up to date (schema {before})"
    write_done(options, {"store": options.store, "from": before, "to": SCHEMA_VERSION}, f"{options.store}: {text}")
    return 0


# --- ``pelton rekey``: encrypt a store, change its key, or decrypt it


@file_command("rekey STORE")
@one_of(
    option("--new-key-file FILE", "the new key"),
    option("--decrypt", "remove the key: the store becomes readable for all"),
    required=True,
)
def run_rekey(options: argparse.Namespace) -> int:
    """Rekey; return 0 when done."""
    rekey(options.store, key_of(options), None if options.decrypt else KeyFile(options.new_key_file))
    done = "readable for all" if options.decrypt else "encrypted with the new key"
    write_done(options, {"store": options.store, "encrypted": not options.decrypt}, f"{options.store}: {done}")
    return 0


# --- ``pelton sql``: read a store file with SQL, on one snapshot, while others write


@store_command("sql")
@WIDE
@option("[STATEMENT]", "default, or -: standard input")
@option("--timeout TIME", "default 60s", default=60.0)
async def _sql(jet: Jet, options: argparse.Namespace) -> None:
    statement = sys.stdin.read() if options.statement in (None, "-") else options.statement
    async with jet.read(timeout=options.timeout) as view:
        rows = await view.sql(statement)
    if options.json:
        write_json([[value.hex() if isinstance(value, bytes) else value for value in row] for row in rows])
        return
    write_table(None, [[_cell(value) for value in row] for row in rows], empty="no rows", wide=options.wide)


def _cell(value: object) -> Cell:
    if isinstance(value, bytes):
        return f"x'{value[:40].hex()}'" + ("..." if len(value) > 40 else "")
    if value is None:
        return "NULL"
    return value if isinstance(value, str | int | float) else str(value)
