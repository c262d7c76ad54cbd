"""``pelton restore``: a new store from a backup, or a backup's streams copied into an existing store."""

from __future__ import annotations

import argparse
import asyncio

from pelton.api import ConfigError
from pelton.cli.keys import add_key, key_of
from pelton.cli.output import write_line
from pelton.cli.progress import Bar
from pelton.connect import open as open_store
from pelton.engine import restore


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("backup", metavar="BACKUP")
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--into", action="store_true", help="copy streams into STORE, which exists and may be in use")
    parser.add_argument(
        "--stream", action="append", metavar="NAME[=NEW]", help="with --into: only this stream, under a new name"
    )
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Restore; return 0 when everything is complete and on disk."""
    if options.into:
        names = asyncio.run(_into(options))
        write_line(f"{options.store}: restored {', '.join(names)}")
        return 0
    if options.stream:
        raise ConfigError("--stream chooses what is copied into a store: give --into as well")
    with Bar("restoring") as bar:
        restore(options.backup, options.store, key=key_of(options), progress=bar.show)
    write_line(f"{options.store}: restored")
    return 0


async def _into(options: argparse.Namespace) -> list[str]:
    pairs = [text.partition("=") for text in options.stream or ()]
    streams = [name for name, _, _ in pairs] or None
    names = {name: new for name, found, new in pairs if found}
    key = key_of(options)
    with Bar("restoring") as bar:
        async with open_store(options.store, key=key) as jet:
            return await jet.restore(options.backup, streams=streams, names=names, key=key, progress=bar.show)
