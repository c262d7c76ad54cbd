"""A store's key for the commands: from a file, or the environment; never from an argument, which others may see."""

from __future__ import annotations

import argparse
import os
from typing import Final

from pelton.api.keys import Key, KeyFile

VARIABLE: Final = "PELTON_KEY"


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the option for the key of an encrypted store."""
    parser.add_argument("--key-file", metavar="FILE", help=f"the store's key (or in the variable {VARIABLE})")


def key_of(options: argparse.Namespace) -> Key | None:
    """Return the given key, or None."""
    if options.key_file is not None:
        return KeyFile(options.key_file)
    return os.environ.get(VARIABLE) or None
