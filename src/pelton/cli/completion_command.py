"""``pelton completion``: what a shell needs to complete commands, verbs and options.

``source <(pelton completion bash)``, the same for zsh, ``pelton completion fish | source``.
"""

from __future__ import annotations

import argparse
from typing import Final

from pelton.cli.main import COMMANDS, parser
from pelton.cli.output import write_line

_BASH: Final = """\
_pelton() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" verb="${{COMP_WORDS[2]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "$command $verb" in
{cases}
    esac
    if [ "$COMP_CWORD" -eq 2 ]; then
      case "$command" in
{groups}
      esac
    fi
  fi
  case "$current" in
    -*) ;;
    *) [ "$COMP_CWORD" -gt 1 ] && COMPREPLY=($(compgen -f -- "$current")) ;;
  esac
  COMPREPLY+=($(compgen -W "$words" -- "$current"))
}}
complete -o filenames -F _pelton pelton
"""
_ZSH: Final = "autoload -U +X bashcompinit && bashcompinit\n"


def define(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the completions of a shell; return 0."""
    words = _words()
    text = _fish(words) if options.shell == "fish" else _bash(words)
    for line in (_ZSH * (options.shell == "zsh") + text).rstrip("\n").split("\n"):
        write_line(line)
    return 0


def _words() -> dict[str, dict[str, list[str]]]:
    """Return the options of every verb, by command and verb; the verb is empty where there are none."""
    found: dict[str, dict[str, list[str]]] = {}
    for name in COMMANDS:
        command = _inner(parser(name))[name]
        verbs = _inner(command) or {"": command}
        found[name] = {verb: _options(inner) for verb, inner in verbs.items()}
    return found


def _inner(outer: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in outer._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(inner: argparse.ArgumentParser) -> list[str]:
    return sorted(
        option
        for action in inner._actions
        if action.help != argparse.SUPPRESS
        for option in action.option_strings
        if option.startswith("--")
    )


def _bash(words: dict[str, dict[str, list[str]]]) -> str:
    cases, groups = [], []
    for name, verbs in words.items():
        if "" not in verbs:
            groups.append(f'        {name}) words="{" ".join(verbs)}" ;;')
        for verb, options in verbs.items():
            cases.append(f'      "{name} {verb}"{"*" * (not verb)}) words="{" ".join(options)}" ;;')
    return _BASH.format(commands=" ".join(words), cases="\n".join(cases), groups="\n".join(groups))


def _fish(words: dict[str, dict[str, list[str]]]) -> str:
    lines = []
    for name, verbs in words.items():
        lines.append(f"complete -c pelton -n __fish_use_subcommand -a {name} -d '{COMMANDS[name]}'")
        seen = f"__fish_seen_subcommand_from {name}"
        for verb, options in verbs.items():
            if verb:
                lines.append(f"complete -c pelton -n '{seen}' -a {verb}")
            inside = f"{seen}; and __fish_seen_subcommand_from {verb}" if verb else seen
            lines += [f"complete -c pelton -n '{inside}' -l {option.removeprefix('--')}" for option in options]
    return "\n".join(lines)
