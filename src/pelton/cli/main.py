"""The ``pelton`` command: one module per sub-command, loaded when it is called. Only this package reads arguments and
environment.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from pelton import __version__

# Each is defined and run by the module pelton.cli.<name>_command.
COMMANDS: Final = {
    "demo": "run 336,776 real flights through a queue, killing a worker on the way",
    "elect": "let processes elect a leader, and kill it",
    "verify": "check every page, checksum, count and bound of a store",
    "backup": "copy a store, in use or not, to a new file",
    "restore": "verify a backup, and create a new store from it or add its streams to one",
    "salvage": "write what a damaged store still holds to a new one",
    "compact": "rewrite a store that is not open, without unused space",
    "rekey": "encrypt a store that is not open, change its key, or decrypt it",
    "work": "run the jobs of a program, in one process or several",
    "object": "put files into an object store, get them, list them",
    "pipeline": "archive and replay streams, dead letters and reports, with Spark",
}
_INTERRUPTED: Final = 130


def parser(chosen: str = "") -> argparse.ArgumentParser:
    """Return the parser of the command line, with the arguments of the chosen command."""
    top = argparse.ArgumentParser(prog="pelton", description="Durable streams and exclusive work in one file.")
    top.add_argument("--version", action="version", version=f"pelton {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == chosen:
            import_module(f"pelton.cli.{name}_command").define(command)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: 0 done, 1 failed, 2 usage error, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else arguments
    # Only --help and --version may precede the command.
    options = parser(words[0] if words else "").parse_args(words)
    from pelton.api import PeltonError
    from pelton.cli.output import write_line, write_logs

    write_logs()
    try:
        status: int = options.run(options)
    except PeltonError as error:
        write_line(f"pelton: {error}", error=True)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
