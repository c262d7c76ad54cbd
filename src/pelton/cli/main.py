"""The ``pelton`` command: a module for each family of commands, loaded when one is called.

Only this package reads arguments and environment.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from pelton import __version__

# Each is declared in pelton.cli.<name>_command, or in one of these.
_TOGETHER: Final = {
    "store_commands": "backup restore copy promote verify salvage compact migrate rekey sql",
    "stream_commands": "stream pub sub request",
    "bucket_commands": "kv object",
    "job_commands": "jobs dead flow",
    "queue_commands": "queue limits cron workers",
    "lock_commands": "locks elections elect",
    "watch_commands": "info metrics dashboard audit",
}
COMMANDS: Final = {
    "info": "show a store or cluster as a whole",
    "stream": "list, show, create, change and empty streams, and read their messages",
    "consumer": "list, show, create, pause and remove consumers, and take messages",
    "pub": "publish messages",
    "sub": "show messages as they are published",
    "request": "send a message, and show the answers to it",
    "kv": "key-value buckets and their keys",
    "elect": "let processes elect a leader, and kill it",
    "serve": "let any NATS client work with a store",
    "verify": "check every page, checksum, count and bound of a store",
    "backup": "copy a store, in use or not, to a new file",
    "copy": "copy a store or cluster, or some streams, to another one",
    "promote": "make a standby, which a copy that follows a store has kept, the store",
    "restore": "verify a backup, and create a new store from it or add its streams to one",
    "salvage": "write what a damaged store still holds to a new one",
    "compact": "rewrite a store that is not open, without unused space",
    "migrate": "bring a store of an older version up to date, and keep a copy if asked",
    "rekey": "encrypt a store that is not open, change its key, or decrypt it",
    "work": "run the jobs of a program, in one process or several",
    "object": "put files into an object store, get them, list them",
    "queue": "how the queues go: states, rates, times; pause, resume, empty and remove them",
    "jobs": "the jobs of a queue: show, cancel, retry, wait for them",
    "dead": "jobs that failed for good, and another try",
    "flow": "flows of jobs that depend on each other: how far they are; cancel them",
    "limits": "the limits of a queue and how much of them is used: set them, take them away",
    "cron": "the schedules of a queue: pause, resume and run them",
    "workers": "who works, and who ran the jobs that ended last",
    "locks": "who holds which lock",
    "elections": "who leads",
    "top": "streams, consumers and queues, again and again",
    "dashboard": "a live page for a browser",
    "metrics": "metrics for Prometheus",
    "audit": "who did what on the dashboard and by commands",
    "sql": "read a store file with SQL, while others write",
    "completion": "print the completions of a shell",
    "pipeline": "archive and replay streams, dead letters and reports, with Spark",
}
# Where the store comes in their words: after the verb, or after the command.
_IN_GROUPS: Final = frozenset({"stream", "consumer", "kv", "object", "queue", "jobs", "dead", "cron", "flow", "limits"})
_ALONE: Final = frozenset(
    {"info", "pub", "sub", "request", "workers", "locks", "elections", "top", "sql", "metrics", "dashboard", "audit"}
)
_INTERRUPTED: Final = 130
_FEW: Final = 12


class CommandParser(argparse.ArgumentParser):
    """One that says what a mistyped word may have meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        near = _near(value, action.choices)
        known = f"choose from {', '.join(map(str, action.choices))}" if len([*action.choices]) < _FEW else "see --help"
        raise argparse.ArgumentError(action, f"there is no {value!r}: {near or known}")

    def format_help(self) -> str:
        """Return the help: what the site shows as code is plain on a terminal."""
        return super().format_help().replace("`", "")

    def error(self, message: str) -> NoReturn:
        """Write what is wrong, and end with status 2."""
        known, _, rest = message.partition("unrecognized arguments: ")
        near = "" if known else _near(rest.split()[0].split("=")[0], _options_of(self))
        store = os.environ.get("PELTON_STORE")
        if near:
            message += f": {near}"
        elif not known and store and not rest.startswith("-"):
            message += (
                f"; PELTON_STORE names the store, {store!r}: another one is a path with a folder, or ends in .pelton"
            )
        elif (
            "arguments are required" in message
            and not store
            and any(one.dest == "store" and not one.option_strings for one in self._actions)
        ):
            message += "; the store comes first, unless PELTON_STORE names it"
        super().error(message)


def _near(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    # One that others of its kind have, such as --force, is no mistyped one.
    found = get_close_matches(word, [*known], n=1)
    found = [] if word in found else found
    return f"did you mean {found[0]!r}?" if found else ""


def _options_of(of: argparse.ArgumentParser) -> Iterator[str]:
    """Return the options of a parser and of those within it: of the chosen command, all others have none."""
    for action in of._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _options_of(inner)


def parser(chosen: str = "") -> argparse.ArgumentParser:
    """Return the parser of the command line, with the arguments of the chosen command."""
    top = CommandParser(prog="pelton", description="Durable streams and exclusive work in one file.")
    top.add_argument("--version", action="version", version=f"pelton {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == chosen:
            from pelton.cli.arguments import define

            module = next((module for module, names in _TOGETHER.items() if name in names.split()), f"{name}_command")
            define(command, name, import_module(f"pelton.cli.{module}"))
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: 0 done, 1 failed, 2 usage error, 130 interrupted."""
    words = words_with_store(sys.argv[1:] if arguments is None else arguments)
    if not words or (len(words) == 1 and is_group(words[0])):
        words = [*words, "--help"]
    # Only --help and --version may precede the command.
    options = parser(words[0] if words else "").parse_args(words, argparse.Namespace(words=words))
    from pelton.api import PeltonError
    from pelton.api.wording import text_for_people
    from pelton.cli.output import Declined, write_line, write_logs

    write_logs()
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except PeltonError as error:
        write_line(f"pelton: {text_for_people(error)}", error=True)
        return 1
    except Declined:
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever reads the output has seen enough, such as "head"; Python must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def is_group(command: str) -> bool:
    return command in _IN_GROUPS or command == "pipeline"


def words_with_store(words: Sequence[str]) -> Sequence[str]:
    """Return the words with the store of ``PELTON_STORE``, if they take one and name none."""
    depth = 2 if words and words[0] in _IN_GROUPS else 1
    store = os.environ.get("PELTON_STORE")
    if not store or len(words) < depth or words[0] not in _IN_GROUPS | _ALONE:
        return words
    from pelton.cli.arguments import with_store

    return with_store(words, depth, store)


if __name__ == "__main__":
    sys.exit(main())
