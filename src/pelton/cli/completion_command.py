"""``pelton completion``: what a shell needs to complete commands, verbs, options, their values, and names in a store.

``source <(pelton completion bash)``, the same for zsh, ``pelton completion fish | source``. For names of queues,
streams, consumers, buckets, keys, objects and schedules, the shell asks ``pelton completion names`` with what has been
typed.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from pelton.api import PeltonError
from pelton.cli.arguments import JSON, declare, opening_of, option, verbs_of
from pelton.cli.main import COMMANDS, is_group, parser, words_with_store
from pelton.cli.output import write_lines

if TYPE_CHECKING:
    from pelton.connect import Jet

# Read by zsh, too, which has no mapfile, and takes a name after a colon for a modifier. Names of files may hold spaces,
# the words may not.
_BASH: Final = """\
_pelton() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" verb="${{COMP_WORDS[2]}}" words="" files=yes IFS=$'\\n'
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}" files=""
  else
    case "$command $verb" in
{options}
    esac
    case "$command $verb $previous" in
{values}
    esac
    if [ "$COMP_CWORD" -eq 2 ]; then
      case "$command" in
{verbs}
      esac
    fi
  fi
  case "$current" in
    -*) files="" ;;
    *)
      case "$command $verb" in
        {names})
          words="$words $(command pelton completion names -- "${{COMP_WORDS[@]:1:$COMP_CWORD}}" \\
            2>/dev/null | tr '\n' ' ')" ;;
      esac ;;
  esac
  [ -n "$files" ] && COMPREPLY=($(compgen -f -- "$current"))
  IFS=" "
  words="$(compgen -W "$words" -- "$current")"
  IFS=$'\\n'
  COMPREPLY+=($words)
}}
complete -o filenames -F _pelton pelton
"""
_ZSH: Final = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""
# By the place of a word: a queue may be called as a command is.
_FISH: Final = """\
function __pelton_has
  test (count (commandline -opc)) -eq $argv[1]
end
function __pelton_in
  set -l words (commandline -opc)
  test "$words[2]" = $argv[1]; or return
  test (count $argv) -eq 1; or test "$words[3]" = $argv[2]
end
function __pelton_names
  command -sq pelton; or return
  set -l words (commandline -opc) (commandline -ct)
  command pelton completion names -- $words[2..-1] 2>/dev/null
end
"""


class _Verb(NamedTuple):
    """What a verb takes: its options, the values of some of them, and those of its arguments."""

    text: str
    options: list[str]
    flags: frozenset[str]
    values: dict[str, list[str]]
    words: list[str]
    has_names: bool


_Commands = dict[str, dict[str, _Verb]]


@declare("completion", description=__doc__, formatter=argparse.RawDescriptionHelpFormatter)
@option("shell", choices=("bash", "zsh", "fish", "names"))
@option("[typed...]", argparse.SUPPRESS)
@JSON
def run_completion(options: argparse.Namespace) -> int:
    """Print the completions of a shell; return 0."""
    if options.shell == "names":
        found = asyncio.run(_names_for(options.typed))
        write_lines(options, found, found)
        return 0
    commands = _commands()
    record = {name: {verb: takes._asdict() for verb, takes in found.items()} for name, found in commands.items()}
    text = _fish(commands) if options.shell == "fish" else _bash(commands)
    write_lines(options, record, (_ZSH * (options.shell == "zsh") + text).rstrip("\n").split("\n"))
    return 0


def _commands() -> _Commands:
    """Return the verbs of every command; one without a name where there are none."""
    found: _Commands = {}
    for name in COMMANDS:
        command = _inner(parser(name))[name]
        texts = _texts(command)
        verbs = _inner(command) or {"": command}
        found[name] = {verb: _verb(inner, texts.get(verb, "")) for verb, inner in verbs.items()}
    return found


def _verb(inner: argparse.ArgumentParser, text: str) -> _Verb:
    shown = [action for action in inner._actions if action.help != argparse.SUPPRESS]
    by_option = {name: action for action in shown for name in action.option_strings if name.startswith("--")}
    return _Verb(
        text,
        sorted(by_option),
        frozenset(option for option, action in by_option.items() if action.nargs == 0),
        {option: [*map(str, action.choices)] for option, action in by_option.items() if action.choices},
        [str(word) for action in shown if not action.option_strings for word in action.choices or ()],
        any(action.metavar in _NAMES for action in shown if not action.option_strings),
    )


def _inner(outer: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {name: inner for action in verbs_of(outer) for name, inner in action.choices.items()}


def _texts(outer: argparse.ArgumentParser) -> dict[str, str]:
    return {each.dest: each.help or "" for action in verbs_of(outer) for each in action._choices_actions}


def _bash(commands: _Commands) -> str:
    options, values, verbs = [], [], []
    for name, found in commands.items():
        if "" not in found:
            verbs.append(f'        {name}) words="{" ".join(found)}" files="" ;;')
        for verb, takes in found.items():
            place = f'"{name} {verb}"{"*" * (not verb)}'
            options.append(f'      {place}) words="{" ".join((*takes.words, *takes.options))}" ;;')
            for name_of_option, choices in takes.values.items():
                values.append(f'      {place}" {name_of_option}") words="{" ".join(choices)}" files="" ;;')
    return _BASH.format(
        commands=" ".join((*commands, "--help", "--version")),
        options="\n".join(options),
        values="\n".join(values),
        names="|".join(
            f'"{name} {verb}"{"*" * (not verb)}'
            for name, found in commands.items()
            for verb, takes in found.items()
            if takes.has_names
        ),
        verbs="\n".join(verbs),
    )


def _fish(commands: _Commands) -> str:
    lines = [
        "complete -c pelton -f -n '__pelton_has 1' -l help",
        "complete -c pelton -f -n '__pelton_has 1' -l version",
    ]
    for name, verbs in commands.items():
        lines.append(f"complete -c pelton -f -n '__pelton_has 1' -a {name} -d {_quote(COMMANDS[name])}")
        for verb, takes in verbs.items():
            if verb:
                place = f"'__pelton_has 2; and __pelton_in {name}'"
                lines.append(f"complete -c pelton -f -n {place} -a {verb} -d {_quote(takes.text)}")
            inside = f"'__pelton_in {f'{name} {verb}'.rstrip()}'"
            lines += [_fish_option(inside, takes, option) for option in takes.options]
            lines += [f"complete -c pelton -f -n {inside} -a {word}" for word in takes.words]
            lines += [f"complete -c pelton -n {inside} -a '(__pelton_names)'"] * takes.has_names
    return _FISH + "\n".join(lines)


def _fish_option(inside: str, takes: _Verb, option: str) -> str:
    line = f"complete -c pelton -n {inside} -l {option.removeprefix('--')}"
    if option in takes.values:
        return f"{line} -x -a {_quote(' '.join(takes.values[option]))}"
    return line if option in takes.flags else f"{line} -r"


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- names in the store that has been typed: of the kind that the argument's placeholder says


class _Place(NamedTuple):
    """Where a name is typed: the command, the arguments before it, the store first, its placeholder, its beginning."""

    command: str
    before: list[str]
    metavar: object
    typed: str


async def _consumers(jet: Jet, place: _Place) -> list[str]:
    return await (await jet.stream(place.before[-1])).consumer_names()


async def _buckets(jet: Jet, place: _Place) -> list[str]:
    from pelton import observe

    found = observe.object_summaries(jet) if place.command == "object" else observe.bucket_summaries(jet)
    return [one.name for one in await found]


async def _keys(jet: Jet, place: _Place) -> list[str]:
    if place.command != "kv":
        return []
    return await _beginning((await jet.bucket(place.before[-1])).keys(), place.typed)


async def _beginning(names: AsyncGenerator[str, None], typed: str) -> list[str]:
    """Return names that begin as was typed: as many as fit a screen, among as many as are read in a moment."""
    found, left = list[str](), _MOST_READ
    async with aclosing(names) as each:
        async for name in each:
            found += [name] * name.startswith(typed)
            left -= 1
            if len(found) >= _MOST_SHOWN or not left:
                break
    return found


async def _named(jet: Jet, place: _Place) -> list[str]:
    from pelton import observe

    if place.command == "object":
        objects = await jet.objects(place.before[1])
        return await _beginning((one.name async for one in objects.list()), place.typed)
    return [one.name for one in await observe.job_schedules(jet, place.before[-1])] if place.command == "cron" else []


_MOST_READ: Final = 50_000
_MOST_SHOWN: Final = 500

_NAMES: Final[dict[object, Callable[[Jet, _Place], Awaitable[list[str]]]]] = {
    "QUEUE": lambda jet, _: jet.queue_names(),
    "STREAM": lambda jet, _: jet.stream_names(),
    "CONSUMER": _consumers,
    "BUCKET": _buckets,
    "KEY": _keys,
    "NAME": _named,
}


async def _names_for(typed: Sequence[str]) -> list[str]:
    """Return the names that may stand at the last of the words that were typed, which may be empty."""
    # Bash parts words at these, which addresses have.
    words = "\0".join(typed).replace("\0:\0", ":").replace("\0=\0", "=").split("\0")
    with suppress(PeltonError, OSError):
        place = _place_of(words_with_store(words))
        if place is not None and place.before and place.metavar in _NAMES:
            options = argparse.Namespace(store=place.before[0], key_file=None)
            async with opening_of(options, writes=False) as jet:
                found = await _NAMES[place.metavar](jet, place)
                # A shell would take such a name for several.
                return [name for name in found if not any(map(str.isspace, name))]
    return []


def _place_of(words: Sequence[str]) -> _Place | None:
    """Return the place of the last word; None if it is no argument of a verb."""
    depth, inner = 1, _inner(parser(words[0])).get(words[0])
    if inner is not None and is_group(words[0]):
        depth, inner = 2, _inner(inner).get(words[1]) if len(words) > 1 else None
    if inner is None or len(words) <= depth:
        return None
    before = [*_arguments_of(inner, words[depth:-1])]
    actions = [action for action in inner._actions if not action.option_strings]
    if not actions or (len(before) >= len(actions) and actions[-1].nargs not in ("*", "+")):
        return None
    return _Place(words[0], before, actions[min(len(before), len(actions) - 1)].metavar, words[-1])


def _arguments_of(inner: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """Return the words that are neither options nor their values."""
    flags = {name for action in inner._actions if action.nargs == 0 for name in action.option_strings}
    is_value = False
    for word in words:
        if not is_value and not word.startswith("-"):
            yield word
        is_value = not is_value and word.startswith("-") and "=" not in word and word not in flags
