"""``pelton verify``: is every byte of a store what it should be."""

from __future__ import annotations

import argparse
from typing import Any

from pelton.cli.keys import add_key, key_of
from pelton.engine import verify


def add_to(commands: Any) -> None:
    """Add this command to the parser's sub-commands."""
    parser = commands.add_parser("verify", help="check every page, checksum, count and bound of a store")
    parser.add_argument("store", metavar="STORE")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tell what is wrong; 0 when nothing is."""
    found = verify(options.store, key_of(options))
    for problem in found:
        print(problem)
    if not found:
        print(f"{options.store}: all is well")
        return 0
    print(f"{options.store}: {len(found)} findings; save what it holds: pelton salvage {options.store} NEW")
    return 1
