"""``pelton rekey``: encrypt a store, change its key, or decrypt it."""

from __future__ import annotations

import argparse

from pelton.api import KeyFile
from pelton.cli.keys import add_key, key_of
from pelton.cli.output import write_line
from pelton.engine import rekey


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("store", metavar="STORE")
    add_key(parser)
    new = parser.add_mutually_exclusive_group(required=True)
    new.add_argument("--new-key-file", metavar="FILE", help="the new key")
    new.add_argument("--decrypt", action="store_true", help="remove the key: the store becomes readable for all")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Rekey; return 0 when done."""
    rekey(options.store, key_of(options), None if options.decrypt else KeyFile(options.new_key_file))
    write_line(f"{options.store}: {'readable for all' if options.decrypt else 'encrypted with the new key'}")
    return 0
