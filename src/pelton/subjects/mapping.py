"""Parses a token of a transform's destination: text, or one of the mapping functions (ADR-30).

Spellings, arguments and error texts are nats-server 2.15's. A function is written between `{{` and
`}}`, each word of its name begins with a small or a capital letter; `$2` is short for `{{wildcard(2)}}`. A token that
only looks like a function (`x{{left(1,2)}}`, `$name`) is text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from itertools import product
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
_OPENING: Final = re.compile(rf"\{{\{{{_SPACE}([A-Za-z]+){_SPACE}\(")
_CLOSING: Final = re.compile(rf"\){_SPACE}\}}\}}")
_COMMA: Final = re.compile(rf",{_SPACE}")
# No longer than it takes to be out of range.
_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]{1,20})")
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
            _named(token)
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
    (kind, _, read), arguments = _named(token)
    return read(kind, token, _COMMA.split(arguments))


def _named(token: str) -> tuple[_Row, str]:
    """Return the function that a token names, and its arguments: all up to the last end on their line.

    A token may hold more than one name, and the first of the server's order counts. Searching takes a time that grows
    with the token's length alone: a pattern for a whole function would try each beginning with each end.
    """
    closings = [found.start() for found in _CLOSING.finditer(token)]
    named: dict[int, str] = {}
    for opening in _OPENING.finditer(token) if closings else ():
        place, start = _PLACES.get(opening[1]), opening.end()
        if place is None or place in named:
            continue
        line = token.find("\n", start, closings[-1])
        last = bisect_left(closings, len(token) if line < 0 else line) - 1
        if last >= 0 and closings[last] >= start:
            named[place] = token[start : closings[last]]
    if named:
        first = min(named)
        return _FUNCTIONS[first], named[first]
    raise refusal(_UNKNOWN, token)


def _is_mustache(token: str) -> bool:
    return len(token) > 4 and token.startswith("{{") and token.endswith("}}")


def refusal(text: str, token: str) -> TransformError:
    """Return the error that names the token."""
    return TransformError(f"{text} in {token}" if token else text)


def _integer(text: str, allowed: range) -> int | None:
    text = text.strip(" ")
    found = _INTEGER.fullmatch(text)
    value = int(found[1] + found[2]) if found is not None else None
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


# The kind, the words of its name, and what reads its arguments.
_Row = tuple[Kind, str, _Reader]
_FUNCTIONS: Final[tuple[_Row, ...]] = (
    ("wildcard", "wildcard", _wildcard),
    ("partition", "partition", _partition),
    ("splitfromleft", "split from left", _cut),
    ("splitfromright", "split from right", _cut),
    ("slicefromleft", "slice from left", _cut),
    ("slicefromright", "slice from right", _cut),
    ("right", "right", _cut),
    ("left", "left", _cut),
    ("split", "split", _split),
    ("random", "random", _random),
)
_PLACES: Final = {
    "".join(spelled): place
    for place, (_, words, _) in enumerate(_FUNCTIONS)
    for spelled in product(*[(word, word.capitalize()) for word in words.split()])
}
