"""``pelton rekey``: encrypt a store, change its key, or decrypt it."""

from __future__ import annotations

import argparse
from typing import Any

from pelton.cli.keys import add_key, key_of
from pelton.engine import KeyFile, rekey


def add_to(commands: Any) -> None:
    """Add this command to the parser's sub-commands."""
    parser = commands.add_parser("rekey", help="encrypt a store that nobody has open, change its key, or decrypt it")
    parser.add_argument("store", metavar="STORE")
    add_key(parser)
    new = parser.add_mutually_exclusive_group(required=True)
    new.add_argument("--new-key-file", metavar="FILE", help="the new key")
    new.add_argument("--decrypt", action="store_true", help="no key any more: the store becomes readable for all")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Rekey; 0 when done."""
    rekey(options.store, key_of(options), None if options.decrypt else KeyFile(options.new_key_file))
    print(f"{options.store}: {'readable for all' if options.decrypt else 'encrypted with the new key'}")
    return 0
