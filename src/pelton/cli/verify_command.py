"""``pelton verify``: check every byte of a store."""

from __future__ import annotations

import argparse

from pelton.cli.keys import add_key, key_of
from pelton.cli.output import write_line
from pelton.engine import verify


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("store", metavar="STORE")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Report what is wrong; return 0 if nothing is."""
    found = verify(options.store, key_of(options))
    for problem in found:
        write_line(problem)
    if not found:
        write_line(f"{options.store}: all is well")
        return 0
    write_line(f"{options.store}: {len(found)} findings; save what it holds: pelton salvage {options.store} NEW")
    return 1
