"""The ``pelton`` command: one sub-command a module. Only this room reads arguments and environment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pelton.api import PeltonError
from pelton.cli import (
    backup_command,
    compact_command,
    demo_command,
    elect_command,
    object_command,
    pipeline_command,
    rekey_command,
    restore_command,
    salvage_command,
    verify_command,
)

_COMMANDS = (
    demo_command,
    elect_command,
    verify_command,
    backup_command,
    restore_command,
    salvage_command,
    compact_command,
    rekey_command,
    object_command,
    pipeline_command,
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(prog="pelton", description="Durable streams and exclusive work in one file.")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: 0 done, 1 failed, 2 misused."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except PeltonError as error:
        print(f"pelton: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
