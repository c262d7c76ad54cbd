"""Commands for a whole store: ``pelton backup``, ``restore``, ``copy``, ``verify`` and so on.

What opens streams is imported where it is needed: the other commands start without it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from pelton.api import ConfigError, PeltonError
from pelton.api.keys import KeyFile
from pelton.api.times import rfc3339
from pelton.api.wording import bytes_text, moment_text, span_text, text_for_people, without_login
from pelton.cli.arguments import (
    JSON,
    KEY,
    WIDE,
    declare,
    file_command,
    is_file,
    key_of,
    moment_of,
    one_of,
    option,
    record_command,
    store_command,
    until_stopped,
)
from pelton.cli.output import (
    Bar,
    Cell,
    write_done,
    write_facts,
    write_json,
    write_json_line,
    write_line,
    write_lines,
    write_table,
)
from pelton.engine.upkeep import backup, compact, migrate, rekey, restore, salvage, verify
from pelton.runtime import Halt, end_tasks, on_thread, system_runtime
from pelton.storage import SCHEMA_VERSION

if TYPE_CHECKING:
    from pelton.connect import Jet
    from pelton.moving import BackupPoint, ContinuousBackup, CopyReport, Promotion


@file_command("backup STORE TARGET")
@option("--stream NAME", "only this stream (may be repeated)", action="append")
@option(
    "--every TIME", "keep on adding points to the backup in TARGET, a folder or an address such as s3://bucket/shop"
)
@option("--keep TIME", "remove points of the backup in TARGET that are older than this, such as 7d")
def run_backup(options: argparse.Namespace) -> int:
    """Copy, or add points; return 0 when the copy or the point is complete and on disk."""
    if options.every or options.keep or _has_points(options.target):
        if options.stream:
            raise ConfigError("--stream is for a backup in a new file: points have all streams; restore those you want")
        asyncio.run(_add_points(options))
        return 0
    with Bar("backing up") as bar:
        backup(options.store, options.target, streams=options.stream, progress=bar.show, key=key_of(options))
    write_done(options, {"target": options.target}, f"{options.target}: backed up")
    return 0


def _has_points(place: str) -> bool:
    return "://" in place or os.path.isdir(place)


async def _add_points(options: argparse.Namespace) -> None:
    """Add a point; with ``--every``, again and again until it is stopped. What fails later is told, and tried again."""
    from pelton.moving import ContinuousBackup

    runtime, backups = system_runtime(), ContinuousBackup(options.target)
    stop = runtime.spawn(until_stopped(), "stop of a backup")
    is_first = True
    while not stop.done():
        begun = runtime.clock.boottime()
        try:
            await _add_point(backups, options, stop.done)
            if is_first:
                await record_command(options, options.store)
        except _Stopped:
            return
        except PeltonError as error:
            if is_first or isinstance(error, ConfigError):
                raise
            write_line(f"pelton: {text_for_people(error)}", error=True)
        is_first = False
        if not options.every:
            return
        await asyncio.wait({stop}, timeout=max(0.0, options.every - (runtime.clock.boottime() - begun)))


class _Stopped(Exception):  # noqa: N818 - no error: what was written of the point is removed with the next one
    """The command was stopped in the middle of a point."""


async def _add_point(backups: ContinuousBackup, options: argparse.Namespace, is_stopped: Callable[[], bool]) -> None:
    with Bar("backing up") as bar:

        def on_progress(done: int, total: int) -> None:
            if is_stopped():
                raise _Stopped
            bar.show(done, total)

        def work(_: Halt) -> BackupPoint:
            return backups.add(options.store, key=key_of(options), keep=options.keep, progress=on_progress)

        point = await on_thread(work)
    if options.json:
        write_json_line(_facts_of(point))
        return
    done = f"{point.messages:,} messages, {bytes_text(point.written)} written"
    write_line(f"{options.target}: point of {moment_text(point.time_ns)}: {done}", flush=True)


def _facts_of(point: BackupPoint) -> dict[str, object]:
    return {
        "name": point.name,
        "time": rfc3339(point.time_ns),
        "messages": point.messages,
        "size": point.size,
        "written": point.written,
        "full": not point.parent,
    }


# --- ``pelton restore``: a new store from a backup, or a backup's streams copied into an existing store


@file_command("restore BACKUP [STORE]")
@option("--list", "list the points of BACKUP, a folder or an address")
@option(
    "--at TIME",
    "the last point that is not after 2026-01-31T12:00:00Z, or so long ago (1h30m); default: the last",
    type=str,
)
@option("--into", "copy streams into STORE, which exists and may be in use")
@option("--stream NAME[=NEW]", "with --into: only this stream, under a new name", action="append")
def run_restore(options: argparse.Namespace) -> int:
    """Restore; return 0 when everything is complete and on disk."""
    has_points = _has_points(options.backup)
    if (options.list or options.at) and not has_points:
        raise ConfigError(f"{options.backup} is one store: --list and --at are for a folder or an address with points")
    if options.list:
        return _list_points(options)
    if options.store is None:
        raise ConfigError("name the STORE to restore to")
    if options.into and has_points:
        raise ConfigError(
            "--into takes a backup in one file: restore the point to a file, and then its streams from there"
        )
    if options.into:
        names = asyncio.run(_into(options))
        write_done(options, {"store": options.store, "streams": names}, f"{options.store}: restored {', '.join(names)}")
        return 0
    if options.stream:
        raise ConfigError("--stream chooses what is copied into a store: give --into as well")
    if has_points:
        return _restore_point(options)
    with Bar("restoring") as bar:
        restore(options.backup, options.store, key=key_of(options), progress=bar.show)
    write_done(options, {"store": options.store}, f"{options.store}: restored")
    return 0


def _list_points(options: argparse.Namespace) -> int:
    from pelton.moving import ContinuousBackup

    points = ContinuousBackup(options.backup).points()
    if options.json:
        write_json([_facts_of(point) for point in points])
        return 0
    rows = [
        (rfc3339(point.time_ns), point.messages, bytes_text(point.size), bytes_text(point.written)) for point in points
    ]
    write_table(("time", "messages", "size", "written"), rows, empty="no points")
    return 0


def _restore_point(options: argparse.Namespace) -> int:
    from pelton.moving import ContinuousBackup

    at = None if options.at is None else moment_of(options.at, system_runtime().clock.now(), -1)
    with Bar("restoring") as bar:
        backups = ContinuousBackup(options.backup)
        point = backups.restore(options.store, at_ns=at, key=key_of(options), progress=bar.show)
    asyncio.run(record_command(options, options.store))
    done = f"{options.store}: restored as of {moment_text(point.time_ns)}"
    write_done(options, {"store": options.store, **_facts_of(point)}, done)
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
@option("[TARGET]", "the same; a file is created if it is missing")
@one_of(
    option(
        "--follow",
        "keep TARGET, a file or cluster, a standby of SOURCE, a file or its pelton serve: see pelton promote",
    ),
    option("--status", "show how far the standby that is named is behind"),
)
@option("--demote", "with --follow: TARGET is a store, such as one that was replaced; overwrite what it holds")
@option("--stream NAME", "only this stream (may be repeated)", action="append")
@option("--replicas N", "to a cluster: keep each stream on N servers (default: 1)", type=int)
@WIDE
@option("--target-key-file FILE", "the target's key, if it is an encrypted file")
@JSON
@KEY
def run_copy(options: argparse.Namespace) -> int:
    """Copy; return 0 when the copy is complete, and the same as the original."""
    if options.status:
        return _show_standby(options)
    if options.target is None:
        raise ConfigError("copy: name a TARGET, which becomes the copy")
    if options.follow:
        return asyncio.run(_follow(options))
    if options.demote:
        raise ConfigError("--demote makes a store a standby: give --follow as well")
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


def _show_standby(options: argparse.Namespace) -> int:
    from pelton.moving import standby_status

    path, source = options.target or options.source, options.source if options.target else None
    found = standby_status(path, key=key_of(options), source=source)
    behind = (
        "not known"
        if found.lag_messages is None
        else f"{found.lag_messages:,} message{'s' * (found.lag_messages != 1)}"
    )
    ago = "" if found.lag_seconds is None else f", {span_text(found.lag_seconds)}"
    facts: dict[str, Cell] = {
        "store": found.source,
        "copied": moment_text(found.copied_ns),
        "behind": behind + ago if found.state == "standby" else "",
        "problem": found.problem,
    }
    is_store = "is the store since it was promoted" if found.state == "store" else "is being promoted"
    title = f"{path} {'is a standby' if found.state == 'standby' else is_store}"
    write_facts(options, found, title, facts)
    return 0


async def _follow(options: argparse.Namespace) -> int:
    from pelton.moving import follow

    if options.stream or options.target_key_file:
        raise ConfigError("--follow keeps all of a store, with its key: leave --stream, --target-key-file out")
    if options.demote:
        options.done = f"{options.target}: made a standby"
    copied, loop, runtime = asyncio.Event(), asyncio.get_running_loop(), system_runtime()
    following = asyncio.current_task()

    async def stop() -> None:
        await until_stopped()
        if following is not None:
            following.cancel()

    def on_copied() -> None:
        loop.call_soon_threadsafe(copied.set)

    told = runtime.spawn(_tell_copied(options, copied), "pelton copy --follow tells that it is up to date")
    stopping = runtime.spawn(stop(), "pelton copy --follow waits for a signal")
    try:
        key = key_of(options)
        ends = {"demote": options.demote, "num_replicas": options.replicas}
        await follow(options.source, options.target, key=key, on_copied=on_copied, **ends)
    except asyncio.CancelledError:
        if not stopping.done():
            raise
    finally:
        await end_tasks(told, stopping)
    return 0


async def _tell_copied(options: argparse.Namespace, copied: asyncio.Event) -> None:
    from pelton.moving.served_log import is_served, name_of

    await copied.wait()
    source, target = (name_of(one) if is_served(one) else one for one in (options.source, options.target))
    write_lines(
        options,
        {"source": source, "target": target},
        [f"{target}: a standby of {source}, and up to date; stop it at any time"],
    )
    if options.demote and not is_served(options.source):
        await record_command(options, options.source)


# --- ``pelton promote``: make a standby the store


@file_command("promote TARGET")
@option("--without-source", "leave the old store alone, which nobody writes to any more")
@option("--source ADDRESS", "of a store on another host: the address of its server, with the login")
def run_promote(options: argparse.Namespace) -> int:
    """Promote; return 0 when TARGET is the store."""
    found = asyncio.run(_promote(options))
    lost = (
        "nothing is lost" if found.is_complete else f"it has all up to {moment_text(found.copied_ns)}: {found.problem}"
    )
    write_lines(options, found, [options.done, lost])
    return 0


async def _promote(options: argparse.Namespace) -> Promotion:
    from pelton.moving import promote

    asks = not options.without_source
    found = await promote(options.target, key=key_of(options), ask_source=asks, source=options.source)
    options.done = f"{without_login(options.target)}: promoted; it replaces {found.source}"
    if is_file(options.target):
        await record_command(options, options.target)
    return found


@file_command("verify STORE")
def run_verify(options: argparse.Namespace) -> int:
    """Report what is wrong; return 0 if nothing is."""
    found = verify(options.store, key_of(options))
    saved = f"save what it holds (pelton salvage {options.store} NEW)"
    end = f"{len(found)} findings; {saved}, or restore a backup" if found else "all is well"
    write_lines(options, {"store": options.store, "findings": found}, [*found, f"{options.store}: {end}"])
    return 1 if found else 0


@file_command("salvage STORE TARGET")
def run_salvage(options: argparse.Namespace) -> int:
    """Save what can be read, and report what was lost; return 0 when the new store is complete."""
    lost = [*salvage(options.store, options.target, key_of(options))]
    write_lines(options, {"target": options.target, "lost": lost}, [*lost, f"{options.target}: written"])
    return 0


@file_command("compact STORE")
def run_compact(options: argparse.Namespace) -> int:
    freed = compact(options.store, key_of(options))
    write_done(options, {"store": options.store, "freed": freed}, f"{options.store}: {freed:,} bytes freed")
    return 0


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


@file_command("rekey STORE")
@one_of(
    option("--new-key-file FILE", "the new key"),
    option("--decrypt", "remove the key: the store becomes readable for all"),
    required=True,
)
def run_rekey(options: argparse.Namespace) -> int:
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
