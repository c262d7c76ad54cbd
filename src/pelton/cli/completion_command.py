"""``pelton completion``: what a shell needs to complete commands, verbs, options and their values.

``source <(pelton completion bash)``, the same for zsh, ``pelton completion fish | source``.
"""

from __future__ import annotations

import argparse
from typing import Final, NamedTuple

from pelton.cli.arguments import add_json
from pelton.cli.main import COMMANDS, parser
from pelton.cli.output import write_json, write_line

# Read by zsh, too, which has no mapfile. Names of files may hold spaces, the words may not.
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
"""


class _Verb(NamedTuple):
    """What a verb takes: its options, the values of some of them, and those of its arguments."""

    text: str
    options: list[str]
    flags: frozenset[str]
    values: dict[str, list[str]]
    words: list[str]


_Commands = dict[str, dict[str, _Verb]]


def define_completion(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    add_json(parser)
    parser.set_defaults(run=run_completion)


def run_completion(options: argparse.Namespace) -> int:
    """Print the completions of a shell; return 0."""
    commands = _commands()
    if options.json:
        write_json({name: {verb: takes._asdict() for verb, takes in found.items()} for name, found in commands.items()})
        return 0
    text = _fish(commands) if options.shell == "fish" else _bash(commands)
    for line in (_ZSH * (options.shell == "zsh") + text).rstrip("\n").split("\n"):
        write_line(line)
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
    by_option = {option: action for action in shown for option in action.option_strings if option.startswith("--")}
    return _Verb(
        text,
        sorted(by_option),
        frozenset(option for option, action in by_option.items() if action.nargs == 0),
        {option: [*map(str, action.choices)] for option, action in by_option.items() if action.choices},
        [str(word) for action in shown if not action.option_strings for word in action.choices or ()],
    )


def _inner(outer: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {name: inner for action in _verbs_of(outer) for name, inner in action.choices.items()}


def _texts(outer: argparse.ArgumentParser) -> dict[str, str]:
    return {each.dest: each.help or "" for action in _verbs_of(outer) for each in action._choices_actions}


def _verbs_of(outer: argparse.ArgumentParser) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [action for action in outer._actions if isinstance(action, argparse._SubParsersAction)]


def _bash(commands: _Commands) -> str:
    options, values, verbs = [], [], []
    for name, found in commands.items():
        if "" not in found:
            verbs.append(f'        {name}) words="{" ".join(found)}" files="" ;;')
        for verb, takes in found.items():
            place = f'"{name} {verb}"{"*" * (not verb)}'
            options.append(f'      {place}) words="{" ".join((*takes.words, *takes.options))}" ;;')
            for option, choices in takes.values.items():
                values.append(f'      {place}" {option}") words="{" ".join(choices)}" files="" ;;')
    return _BASH.format(
        commands=" ".join((*commands, "--help", "--version")),
        options="\n".join(options),
        values="\n".join(values),
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
    return _FISH + "\n".join(lines)


def _fish_option(inside: str, takes: _Verb, option: str) -> str:
    line = f"complete -c pelton -n {inside} -l {option.removeprefix('--')}"
    if option in takes.values:
        return f"{line} -x -a {_quote(' '.join(takes.values[option]))}"
    return line if option in takes.flags else f"{line} -r"


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
