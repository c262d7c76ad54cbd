"""``pelton salvage``: a new store of what a damaged one still holds."""

from __future__ import annotations

import argparse
from typing import Any

from pelton.cli.keys import add_key, key_of
from pelton.engine import salvage


def add_to(commands: Any) -> None:
    """Add this command to the parser's sub-commands."""
    parser = commands.add_parser("salvage", help="write what a damaged store still holds to a new one")
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("target", metavar="TARGET")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Save what can be read, and tell what was lost; 0 when the new store is there."""
    for loss in salvage(options.store, options.target, key_of(options)):
        print(loss)
    print(f"{options.target}: written")
    return 0
