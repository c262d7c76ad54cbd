"""Writes the pages of the command line from the commands' own parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final, NamedTuple

from pelton.cli.main import COMMANDS, parser
from pelton.server.settings.options import FLAGS, OPTIONS, Option

_HEAD: Final = """# Commands

Every command of `pelton`; its page has its arguments and options. For what they print, see [the guide to the command
line](../guides/operating/command-line.md). A command exits with 0 if it is done, 1 if it failed, 2 for a usage error,
130 if it was interrupted.

`PELTON_STORE` gives the store to commands that look at one, if you name none.
"""


class CommandPage(NamedTuple):
    """A page of commands: what they are about, and their names."""

    title: str
    about: str
    commands: tuple[str, ...]


COMMAND_PAGES: Final = {
    "commands-stores": CommandPage(
        "Commands for store files",
        "Check, copy, back up, repair, encrypt and query the files of stores.",
        ("verify", "backup", "restore", "copy", "promote", "salvage", "compact", "migrate", "rekey", "sql"),
    ),
    "commands-servers": CommandPage(
        "Commands for servers and operators",
        "Serve a store, watch it, and see who did what.",
        ("info", "serve", "top", "dashboard", "metrics", "audit", "completion"),
    ),
    "commands-streams": CommandPage(
        "Commands for streams",
        "Streams, consumers and messages.",
        ("stream", "consumer", "pub", "sub", "request"),
    ),
    "commands-values": CommandPage(
        "Commands for values and locks",
        "Buckets, object stores, locks and elections.",
        ("kv", "object", "locks", "elections", "elect"),
    ),
    "commands-queues": CommandPage(
        "Commands for queues",
        "How queues go: their states, limits, schedules and workers.",
        ("queue", "limits", "cron", "workers"),
    ),
    "commands-jobs": CommandPage(
        "Commands for jobs",
        "Run jobs, look at them, cancel them, and try dead letters again.",
        ("work", "jobs", "dead", "flow", "pipeline"),
    ),
}


def command_pages() -> dict[str, str]:
    """Return the pages by name: one that lists all commands, and those that show them as ``--help`` does."""
    places = {name: page for page, described in COMMAND_PAGES.items() for name in described.commands}
    rows = [
        f"| [`pelton {name}`]({places[name]}.md#pelton-{name}) | {_cell(text)} |" for name, text in COMMANDS.items()
    ]
    found = {"commands": "\n".join([_HEAD, "| command | what it does |", "|---|---|", *rows]) + "\n"}
    for page, described in COMMAND_PAGES.items():
        shown = [part for name in described.commands for part in _with_its_commands(name)]
        found[page] = "\n".join([f"# {described.title}\n", f"{described.about}\n", *shown])
    return found


def _with_its_commands(name: str) -> Iterator[str]:
    said = _sentence(COMMANDS[name])
    yield f"## pelton {name}\n\n{said}\n"
    yield from _command(_sub_parsers(parser(name))[name], f"pelton {name}", 3, said)
    if name == "serve":
        yield _server_options()


def _server_options() -> str:
    """Return the table of a server's options, from the declarations by which files and flags are read."""
    rows = ["| key in a file | flag | value | meaning |", "|---|---|---|---|"]
    for path, option in {**FLAGS, **OPTIONS}.items():
        block = f"{path.rpartition('.')[0]}." if "." in path else ""
        keys = ", ".join(f"`{block}{key}`" for key in option.keys.split())
        flags = ", ".join(f"`-{name}`" if len(name) < 3 else f"`--{name}`" for name in option.flag.split())
        if keys or flags:
            rows.append(f"| {keys} | {flags} | {option.kind} | {_cell(_meaning(option))} |")
    return "\n".join(rows) + "\n"


def _meaning(option: Option) -> str:
    said = [option.help, f"not supported yet: {option.not_yet}" if option.not_yet else ""]
    return "; ".join(filter(None, [*said, "a reload cannot change it" if option.fixed else ""]))


def _command(command: argparse.ArgumentParser, words: str, level: int, said: str = "") -> Iterator[str]:
    below = _sub_parsers(command)
    if not below:
        usage = command.format_usage().removeprefix("usage: ")
        yield f"```text\n{' '.join(usage.split())}\n```\n"
        if command.description and _sentence(command.description) not in said:
            yield f"{command.description}\n"
        rows = [
            _row(action) for action in command._actions if action.dest != "help" and action.help != argparse.SUPPRESS
        ]
        if rows:
            yield "\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows]) + "\n"
    for name, each in below.items():
        yield f"{'#' * level} {words} {name}\n"
        helped = _helps(command).get(name, "")
        yield f"{_sentence(helped)}\n"
        yield from _command(each, f"{words} {name}", level + 1, _sentence(helped))


def _sub_parsers(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _helps(command: argparse.ArgumentParser) -> dict[str, str]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {choice.dest: choice.help or "" for choice in action._choices_actions}
    return {}


def _row(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.option_strings and action.nargs != 0:
        name += f" {action.metavar or (action.choices and '|'.join(map(str, action.choices))) or action.dest.upper()}"
    text = (action.help or "") % {**vars(action), "prog": "pelton"}
    plain = action.default in (None, False, argparse.SUPPRESS, "", [], ()) or callable(action.default)
    default = "" if plain or "default" in text else f"`{action.default}`"
    return f"| `{name}` | {_cell(text)} | {default} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
