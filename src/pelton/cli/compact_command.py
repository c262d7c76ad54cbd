"""``pelton compact``: free the space that removed messages have left in a store."""

from __future__ import annotations

import argparse

from pelton.cli.keys import add_key, key_of
from pelton.cli.output import write_line
from pelton.engine import compact


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("store", metavar="STORE")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compact; return 0 when done."""
    write_line(f"{options.store}: {compact(options.store, key_of(options)):,} bytes freed")
    return 0
