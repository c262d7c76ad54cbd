"""``pelton salvage``: a new store with what a damaged one still holds."""

from __future__ import annotations

import argparse

from pelton.cli.keys import add_key, key_of
from pelton.cli.output import write_line
from pelton.engine import salvage


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("target", metavar="TARGET")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Save what can be read, and report what was lost; return 0 when the new store is complete."""
    for loss in salvage(options.store, options.target, key_of(options)):
        write_line(loss)
    write_line(f"{options.target}: written")
    return 0
