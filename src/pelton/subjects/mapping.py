"""Parses a token of a transform's destination: text, or one of the mapping functions (ADR-30).

Spellings, arguments and error texts are nats-server 2.15's. A function is written between `{{` and
`}}`, each word of its name begins with a small or a capital letter; `$2` is short for `{{wildcard(2)}}`. A token that
only looks like a function (`x{{left(1,2)}}`, `$name`) is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

Kind = Literal[
    "wildcard",
    "partition",
    "splitfromleft",
    "splitfromright",
    "slicefromleft",
    "slicefromright",
    "right",
    "left",
    "split",
    "random",
]

_INVALID: Final = "invalid mapping destination: "
_UNKNOWN: Final = _INVALID + "unknown function"
OUT_OF_RANGE: Final = _INVALID + "wildcard index out of range"
_NO_MAPPING: Final = _INVALID + "invalid transform"
_TOO_FEW: Final = _INVALID + "not enough arguments passed to the function"
_TOO_MANY: Final = _INVALID + "too many arguments passed to the function"
_WRONG: Final = _INVALID + "function argument is invalid or in the wrong format"

_SPACE: Final = r"[\t\n\f\r ]*"
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_INT32: Final = range(-(1 << 31), 1 << 31)
_INT64: Final = range(-(1 << 63), 1 << 63)


class TransformError(ValueError):
    """A source and destination do not form a valid transform; the text is nats-server's."""


class Function(NamedTuple):
    """A mapping function and its arguments; which of them are used depends on the kind.

    ``wildcards`` count from 1 as written, ``number`` is a length, a position or a number of buckets.
    """

    kind: Kind
    wildcards: tuple[int, ...] = ()
    number: int = 0
    separator: str = ""


def check_form(destination: str) -> None:
    """Raise TransformError if a destination is malformed, regardless of its source and arguments."""
    ended = False
    for token in destination.split("."):
        if not token or ended:
            raise refusal(_NO_MAPPING, token)
        if _is_mustache(token):
            if not any(pattern.search(token) for _, pattern, _ in _FUNCTIONS):
                raise refusal(_UNKNOWN, token)
        elif any(char in token for char in "\t\n\f\r "):
            raise TransformError(_NO_MAPPING)
        ended = token == ">"


def function_of(token: str) -> Function | None:
    """Return the mapping function of a destination token, None for plain text. Raises TransformError."""
    if token.startswith("$"):
        wildcard = _integer(token[1:], _INT64)
        return None if wildcard is None else Function("wildcard", (wildcard,))
    if not _is_mustache(token):
        return None
    # One after another, in the server's order: a token may hold more than one name.
    for kind, pattern, read in _FUNCTIONS:
        found = pattern.search(token)
        if found is not None:
            return read(kind, token, re.split(rf",{_SPACE}", found[1]))
    raise refusal(_UNKNOWN, token)


def _is_mustache(token: str) -> bool:
    return len(token) > 4 and token.startswith("{{") and token.endswith("}}")


def refusal(text: str, token: str) -> TransformError:
    """Return the error that names the token."""
    return TransformError(f"{text} in {token}" if token else text)


def _integer(text: str, allowed: range) -> int | None:
    text = text.strip(" ")
    value = int(text) if _INTEGER.fullmatch(text) else None
    return value if value is not None and value in allowed else None


def _number(text: str, token: str, allowed: range) -> int:
    value = _integer(text, allowed)
    if value is None:
        raise refusal(_WRONG, token)
    return value


def _check_count(arguments: list[str], count: int, token: str) -> None:
    if len(arguments) != count:
        raise refusal(_TOO_FEW if len(arguments) < count else _TOO_MANY, token)


def _wildcard(kind: Kind, token: str, arguments: list[str]) -> Function:
    if arguments == [""]:
        raise refusal(_TOO_FEW, token)
    _check_count(arguments, 1, token)
    return Function(kind, (_number(arguments[0], token, _INT64),))


def _partition(kind: Kind, token: str, arguments: list[str]) -> Function:
    buckets = _number(arguments[0], token, _INT32)
    return Function(kind, tuple(_number(text, token, _INT64) for text in arguments[1:]), buckets)


def _cut(kind: Kind, token: str, arguments: list[str]) -> Function:
    _check_count(arguments, 2, token)
    return Function(kind, (_number(arguments[0], token, _INT64),), _number(arguments[1], token, _INT32))


def _split(kind: Kind, token: str, arguments: list[str]) -> Function:
    _check_count(arguments, 2, token)
    wildcard, separator = _number(arguments[0], token, _INT64), arguments[1]
    if " " in separator:
        raise refusal(_WRONG, token)
    return Function(kind, (wildcard,), separator=separator)


def _random(kind: Kind, token: str, arguments: list[str]) -> Function:
    if len(arguments) != 1:
        raise refusal(_TOO_FEW, token)
    return Function(kind, number=_number(arguments[0], token, _INT32))


_Reader = Callable[[Kind, str, list[str]], Function]


def _row(kind: Kind, words: str, read: _Reader) -> tuple[Kind, re.Pattern[str], _Reader]:
    name = "".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in words.split())
    return kind, re.compile(rf"\{{\{{{_SPACE}{name}{_SPACE}\((.*)\){_SPACE}\}}\}}"), read


_FUNCTIONS: Final = (
    _row("wildcard", "wildcard", _wildcard),
    _row("partition", "partition", _partition),
    _row("splitfromleft", "split from left", _cut),
    _row("splitfromright", "split from right", _cut),
    _row("slicefromleft", "slice from left", _cut),
    _row("slicefromright", "slice from right", _cut),
    _row("right", "right", _cut),
    _row("left", "left", _cut),
    _row("split", "split", _split),
    _row("random", "random", _random),
)
