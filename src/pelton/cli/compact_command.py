"""``pelton compact``: a store without the room that removed messages have left."""

from __future__ import annotations

import argparse
from typing import Any

from pelton.cli.keys import add_key, key_of
from pelton.engine import compact


def add_to(commands: Any) -> None:
    """Add this command to the parser's sub-commands."""
    parser = commands.add_parser("compact", help="write a store that nobody has open anew, without unused room")
    parser.add_argument("store", metavar="STORE")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compact; 0 when done."""
    print(f"{options.store}: {compact(options.store, key_of(options)):,} bytes freed")
    return 0
