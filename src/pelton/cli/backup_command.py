"""``pelton backup``: a copy of a store, while it is in use."""

from __future__ import annotations

import argparse

from pelton.cli.keys import add_key, key_of
from pelton.cli.output import write_line
from pelton.cli.progress import Bar
from pelton.engine import backup


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--stream", action="append", metavar="NAME", help="only this stream (may be repeated)")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Copy; return 0 when the copy is complete and on disk."""
    with Bar("backing up") as bar:
        backup(options.store, options.target, streams=options.stream, progress=bar.show, key=key_of(options))
    write_line(f"{options.target}: backed up")
    return 0
