"""``pelton restore``: a store made of a backup."""

from __future__ import annotations

import argparse
from typing import Any

from pelton.cli.keys import add_key, key_of
from pelton.cli.progress import Bar
from pelton.engine import restore


def add_to(commands: Any) -> None:
    """Add this command to the parser's sub-commands."""
    parser = commands.add_parser("restore", help="verify a backup and make a new store of it")
    parser.add_argument("backup", metavar="BACKUP")
    parser.add_argument("store", metavar="STORE")
    add_key(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Restore; 0 when the store is whole and on disk."""
    with Bar("restoring") as bar:
        restore(options.backup, options.store, key=key_of(options), progress=bar.show)
    print(f"{options.store}: restored")
    return 0
