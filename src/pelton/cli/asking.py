"""Asks before something is removed for good."""

from __future__ import annotations

import argparse
import sys

from pelton.api import ConfigError
from pelton.cli.output import write_line


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add the option that answers the question in advance."""
    parser.add_argument("-f", "--force", action="store_true", help="do it, without asking")


def is_agreed(options: argparse.Namespace, question: str) -> bool:
    """Whether it is to be done: ``--force`` was given, or whoever sits at the terminal agrees.

    Raises ConfigError, with the question, if nobody can be asked.
    """
    if options.force:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} If so, add --force")
    write_line(f"{question} (y/N)", error=True, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    write_line("nothing was done", error=True)
    return False
