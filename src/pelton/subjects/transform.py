"""Transforms: map the subjects that a filter matches to other subjects (ADR-30).

    Transform("orders.*.*", "by-item.{{wildcard(2)}}.{{partition(8,1)}}").apply("orders.eu.spade")

The source is compiled to a pattern, each function of the destination to a small function of its match, and
results are cached, because real traffic repeats its subjects. The cache is bounded and cleared completely
when it is full; results of `random` are never cached.

Results that could be invalid subjects are checked: `split` may leave nothing, a cut may leave a
lone `*`. A NATS server stores messages under such names; here the transform has no result then. Lengths count
bytes of UTF-8, as there, but a cut inside a character moves to its end.

**Parses a token of a transform's destination: text, or one of the mapping functions (ADR-30).** Spellings, arguments
and error texts are nats-server 2.15's. A function is written between `{{` and `}}`, each word of its name begins with a
small or a capital letter; `$2` is short for `{{wildcard(2)}}`. A token that only looks like a function
(`x{{left(1,2)}}`, `$name`) is text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise, product
from operator import itemgetter
from typing import Final, Literal

import msgspec

from pelton.subjects.match import is_filter, is_subject

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


class Function(msgspec.Struct, frozen=True):
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
            _function_of(token)
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
    (kind, _, read), arguments = _function_of(token)
    return read(kind, token, _COMMA.split(arguments))


def _function_of(token: str) -> tuple[_Row, str]:
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


def _partition_mapping(kind: Kind, token: str, arguments: list[str]) -> Function:
    buckets = _number(arguments[0], token, _INT32)
    return Function(kind, tuple(_number(text, token, _INT64) for text in arguments[1:]), buckets)


def _cut_mapping(kind: Kind, token: str, arguments: list[str]) -> Function:
    _check_count(arguments, 2, token)
    return Function(kind, (_number(arguments[0], token, _INT64),), _number(arguments[1], token, _INT32))


def _split_mapping(kind: Kind, token: str, arguments: list[str]) -> Function:
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
    ("partition", "partition", _partition_mapping),
    ("splitfromleft", "split from left", _cut_mapping),
    ("splitfromright", "split from right", _cut_mapping),
    ("slicefromleft", "slice from left", _cut_mapping),
    ("slicefromright", "slice from right", _cut_mapping),
    ("right", "right", _cut_mapping),
    ("left", "left", _cut_mapping),
    ("split", "split", _split_mapping),
    ("random", "random", _random),
)
_PLACES: Final = {
    "".join(spelled): place
    for place, (_, words, _) in enumerate(_FUNCTIONS)
    for spelled in product(*[(word, word.capitalize()) for word in words.split()])
}


Draw = Callable[[int], int]
"""Draws an integer from 0 up to, but excluding, its argument."""

_Part = Callable[[re.Match[str]], str]
_Maker = Callable[[str], str | None]
_Cuts = Callable[[int, int], Iterable[int]]

_MEMORY: Final = 65_536
_BAD_SUBJECT: Final = "invalid subject"
_ALL: Final = ">"
_UINT32: Final = 0xFFFFFFFF
# These functions always make valid tokens from subjects; and these need no wildcard in the source.
_FAITHFUL: Final = frozenset({"wildcard", "partition", "random"})
_ANYWHERE: Final = frozenset({"partition", "random"})
_ONE_TOKEN: Final = _FAITHFUL | {"left", "right"}


class Transform:
    """One source and destination, compiled; `random` uses `draw`."""

    def __init__(self, src: str, dest: str, draw: Draw) -> None:
        """An empty `src` is `>`. Raises TransformError in nats-server's words."""
        self.src: str = src or _ALL
        self.dest = dest
        functions = _functions(self.src, dest)
        kinds = {function.kind for function in functions if function is not None}
        self.reach: str = _reach(dest, functions)
        """A filter that matches every subject the transform makes."""
        self._functions, self._draw = functions, draw
        self._faithful = kinds <= _FAITHFUL
        self._remembers = "random" not in kinds
        self._memory: dict[str, str | None] = {}

    @cached_property
    def _make(self) -> _Maker:
        # When it is first needed: a request may bring thousands, and a pattern takes 0.3 ms.
        return _maker(self.src, self.dest, self._functions, self._draw)

    def apply(self, subject: str) -> str | None:
        """Return the subject that a literal one is mapped to; None if the source does not match it."""
        memory = self._memory
        if subject in memory:
            return memory[subject]
        made = self._make(subject)
        if made is not None and not self._faithful and not is_subject(made):
            made = None
        if self._remembers:
            if len(memory) >= _MEMORY:
                memory.clear()
            memory[subject] = made
        return made


def _functions(src: str, dest: str) -> list[Function | None]:
    """Return the function of each token of the destination, None for text; raises TransformError."""
    check_form(dest)
    tokens = dest.split(".")
    if not is_filter(src) or "*" in tokens or (src.split(".")[-1] == _ALL) != (tokens[-1] == _ALL):
        raise TransformError(_BAD_SUBJECT)
    functions, sources = [], src.split(".")
    for token in tokens:
        function = function_of(token)
        if function is None and not is_filter(token):
            raise TransformError(_BAD_SUBJECT)
        if function is not None:
            _check_wildcards(sources, token, function)
        functions.append(function)
    return functions


def _check_wildcards(sources: Sequence[str], token: str, function: Function) -> None:
    wild = sources.count("*")
    if wild == 0 and sources[-1] != _ALL:
        if function.kind not in _ANYWHERE:
            raise refusal(OUT_OF_RANGE, token)
        return
    for wildcard in function.wildcards:
        if wildcard > wild:
            raise refusal(OUT_OF_RANGE, f"{token}: [{wildcard}]")


def _reach(dest: str, functions: Sequence[Function | None]) -> str:
    tokens: list[str] = []
    for text, function in zip(dest.split("."), functions, strict=True):
        if function is not None and function.kind not in _ONE_TOKEN:
            return ".".join([*tokens, _ALL])
        tokens.append(text if function is None else "*")
    return ".".join(tokens)


# --- making a subject


def _maker(src: str, dest: str, functions: Sequence[Function | None], draw: Draw) -> _Maker:
    """Return the function that makes the new subject; it returns None if the source does not match."""
    sources = src.split(".")
    if not any(functions) and "*" not in sources:
        return _replace_beginning(src, dest, open_ended=sources[-1] == _ALL)
    named = _pattern(sources).fullmatch
    wild = sources.count("*")
    parts: list[_Part] = []
    texts: list[str] = []
    for text, function in zip(dest.split("."), functions, strict=True):
        if function is None and text != _ALL:
            texts.append(text.replace("%", "%%"))
            continue
        texts.append("%s")
        # The last group is what the source's tail matches.
        parts.append(itemgetter(wild + 1) if function is None else _part(function, wild, draw))
    template = ".".join(texts)

    def make(subject: str) -> str | None:
        found = named(subject)
        return None if found is None else template % tuple([part(found) for part in parts])

    return make


def _replace_beginning(src: str, dest: str, *, open_ended: bool) -> _Maker:
    """Return the function for a transform that changes only the beginning."""
    if not open_ended:
        return lambda subject: dest if subject == src else None
    prefix, head = src[:-1], dest[:-1]
    skipped = len(prefix)
    return lambda subject: head + subject[skipped:] if subject.startswith(prefix) else None


def _pattern(sources: Sequence[str]) -> re.Pattern[str]:
    groups = {"*": "([^.]+)", _ALL: "(.+)"}
    return re.compile(r"\.".join([groups.get(token) or re.escape(token) for token in sources]), re.DOTALL)


def _part(function: Function, wild: int, draw: Draw) -> _Part:
    """Return what computes one mapping function from a match of the source."""
    if function.kind == "random":
        below = abs(function.number)
        return lambda found: str(draw(below)) if below else "0"
    tokens = [_token(wildcard) for wildcard in function.wildcards]
    if function.kind == "partition":
        return _partition_transform(tokens if wild else (), function.number)
    (token,) = tokens
    if function.kind == "wildcard":
        return token
    if function.kind == "split":
        return _split_transform(token, function.separator)
    return _cut_transform(function, token)


def _token(wildcard: int) -> _Part:
    """Return the token that a wildcard matched; below 1 it is the first token, as on the server."""
    return itemgetter(wildcard) if wildcard > 0 else lambda found: found[0].partition(".")[0]


def _partition_transform(tokens: Sequence[_Part], buckets: int) -> _Part:
    """Return a bucket for some tokens, or for the whole subject; a negative number of them wraps as on the server."""
    buckets &= _UINT32
    if buckets == 0:
        return lambda found: "0"
    if not tokens:
        return lambda found: str(_fnv1a(found[0]) % buckets)
    return lambda found: str(_fnv1a("".join([token(found) for token in tokens])) % buckets)


def _fnv1a(text: str) -> int:
    """The 32-bit FNV-1a hash, with its two constants."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & _UINT32
    return value


def _split_transform(token: _Part, separator: str) -> _Part:
    if not separator:
        return lambda found: ".".join(token(found))
    return lambda found: ".".join([piece for piece in token(found).split(separator) if piece])


# Where each function cuts a token of a given length in bytes; a cut at either end has no effect.
_CUTS: Final[dict[str, _Cuts]] = {
    "splitfromleft": lambda size, length: (length,),
    "splitfromright": lambda size, length: (size - length,),
    "slicefromleft": lambda size, length: range(length, size, length),
    "slicefromright": lambda size, length: range(size % length, size, length),
    "left": lambda size, length: (length,),
    "right": lambda size, length: (size - length,),
}


def _cut_transform(function: Function, token: _Part) -> _Part:
    kind, length = function.kind, function.number
    cuts = _CUTS[kind]

    def cut(found: re.Match[str]) -> str:
        whole = token(found)
        text = whole.encode()
        if not 0 < length < len(text):
            return whole
        pieces = _pieces(text, cuts(len(text), length))
        if kind == "left":
            return pieces[0]
        return pieces[-1] if kind == "right" else ".".join(pieces)

    return cut


def _pieces(token: bytes, cuts: Iterable[int]) -> list[str]:
    """Return the token cut into pieces; none is empty and no character is split."""
    bounds = [0]
    for cut in cuts:
        while cut < len(token) and token[cut] & 0xC0 == 0x80:
            cut += 1
        if bounds[-1] < cut < len(token):
            bounds.append(cut)
    bounds.append(len(token))
    return [token[start:end].decode() for start, end in pairwise(bounds)]
