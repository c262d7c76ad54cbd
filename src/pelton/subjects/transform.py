"""Transforms: from the subjects that a filter names to other subjects (ADR-30).

    Transform("orders.*.*", "by-item.{{wildcard(2)}}.{{partition(8,1)}}").apply("orders.eu.spade")

The source is compiled to a test, the destination to one small function a token, and results are remembered,
because real traffic repeats its subjects. The memory is bounded and emptied whole when it is full; what holds
`random` is never remembered.

What the functions make is looked at where it could be no subject: `split` may leave nothing, a cut may leave a
lone `*`. A NATS server stores messages under such names; here the transform has no result then. Lengths count
bytes of UTF-8, as there, but a cut inside a character moves behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

from pelton.subjects.mapping import OUT_OF_RANGE, Function, TransformError, check_form, function_of, refusal
from pelton.subjects.match import compile_filter
from pelton.subjects.validate import is_filter, is_subject

Draw = Callable[[int], int]
"""Draws an integer from 0 up to, and without, its argument."""

_Part = Callable[[Sequence[str]], str]
_Cuts = Callable[[int, int], Iterable[int]]

_MEMORY: Final = 65_536
_BAD_SUBJECT: Final = "invalid subject"
_ALL: Final = ">"
_UINT32: Final = 0xFFFFFFFF
# From subjects these make nothing but subjects, and these need no wildcard in the source.
_FAITHFUL: Final = frozenset({"wildcard", "partition", "random"})
_ANYWHERE: Final = frozenset({"partition", "random"})


class Transform:
    """One source and destination, compiled; `draw` is asked by `random`."""

    def __init__(self, src: str, dest: str, draw: Draw) -> None:
        """An empty `src` is `>`. Raises TransformError in nats-server's words."""
        self.src = src or _ALL
        self.dest = dest
        functions = _functions(self.src, dest)
        kinds = {function.kind for function in functions if function is not None}
        self._names = compile_filter(self.src)
        self._make = _maker(self.src, dest, functions, draw)
        self._faithful = kinds <= _FAITHFUL
        self._remembers = "random" not in kinds
        self._memory: dict[str, str | None] = {}

    def apply(self, subject: str) -> str | None:
        """The subject that a literal one is mapped to; None where the source does not name it."""
        memory = self._memory
        if subject in memory:
            return memory[subject]
        made = self._make(subject) if self._names(subject) else None
        if made is not None and not self._faithful and not is_subject(made):
            made = None
        if self._remembers:
            if len(memory) >= _MEMORY:
                memory.clear()
            memory[subject] = made
        return made


def _functions(src: str, dest: str) -> list[Function | None]:
    """The function of each token of the destination, None for text; raises TransformError."""
    check_form(dest)
    tokens = dest.split(".")
    if not is_filter(src) or "*" in tokens or (src.split(".")[-1] == _ALL) != (tokens[-1] == _ALL):
        raise TransformError(_BAD_SUBJECT)
    functions = []
    for token in tokens:
        function = function_of(token)
        if function is None and not is_filter(token):
            raise TransformError(_BAD_SUBJECT)
        if function is not None:
            _check_wildcards(src, token, function)
        functions.append(function)
    return functions


def _check_wildcards(src: str, token: str, function: Function) -> None:
    wild = src.split(".").count("*")
    if wild == 0 and src.split(".")[-1] != _ALL:
        if function.kind not in _ANYWHERE:
            raise refusal(OUT_OF_RANGE, token)
        return
    for wildcard in function.wildcards:
        if wildcard > wild:
            raise refusal(OUT_OF_RANGE, f"{token}: [{wildcard}]")


# --- making a subject


def _maker(src: str, dest: str, functions: Sequence[Function | None], draw: Draw) -> Callable[[str], str]:
    """The function that makes the new subject of one that the source names."""
    sources, texts = src.split("."), dest.split(".")
    if not any(functions):
        if texts[-1] != _ALL:
            return lambda subject: dest
        if "*" not in sources:
            head, skipped = dest[:-1], len(src) - 1
            return lambda subject: head + subject[skipped:]
    positions = [at for at, token in enumerate(sources) if token == "*"]
    parts = [
        _text(text, len(sources) - 1) if function is None else _part(function, positions, draw)
        for text, function in zip(texts, functions, strict=True)
    ]

    def make(subject: str) -> str:
        tokens = subject.split(".")
        return ".".join([part(tokens) for part in parts])

    return make


def _text(text: str, skipped: int) -> _Part:
    if text == _ALL:
        return lambda tokens: ".".join(tokens[skipped:])
    return lambda tokens: text


def _part(function: Function, positions: Sequence[int], draw: Draw) -> _Part:
    """What one function makes of the tokens of a subject; a wildcard below 1 is the subject's first token."""
    at = [positions[wildcard - 1] if 0 < wildcard <= len(positions) else 0 for wildcard in function.wildcards]
    if function.kind == "random":
        below = abs(function.number)
        return lambda tokens: str(draw(below)) if below else "0"
    if function.kind == "partition":
        return _partition(at if positions else (), function.number)
    (first,) = at
    if function.kind == "wildcard":
        return lambda tokens: tokens[first]
    if function.kind == "split":
        return _split(first, function.separator)
    return _cut(function, first)


def _partition(at: Sequence[int], buckets: int) -> _Part:
    """A bucket for some tokens, or for the whole subject; a negative number of them wraps as on the server."""
    buckets &= _UINT32
    if buckets == 0:
        return lambda tokens: "0"
    if not at:
        return lambda tokens: str(_fnv1a(".".join(tokens)) % buckets)
    return lambda tokens: str(_fnv1a("".join([tokens[index] for index in at])) % buckets)


def _fnv1a(text: str) -> int:
    """The 32-bit FNV-1a hash, with its two constants."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & _UINT32
    return value


def _split(at: int, separator: str) -> _Part:
    if not separator:
        return lambda tokens: ".".join(tokens[at])
    return lambda tokens: ".".join([piece for piece in tokens[at].split(separator) if piece])


# Where each function cuts a token of so many bytes; a cut at either end is none.
_CUTS: Final[dict[str, _Cuts]] = {
    "splitfromleft": lambda size, length: (length,),
    "splitfromright": lambda size, length: (size - length,),
    "slicefromleft": lambda size, length: range(length, size, length),
    "slicefromright": lambda size, length: range(size % length, size, length),
    "left": lambda size, length: (length,),
    "right": lambda size, length: (size - length,),
}


def _cut(function: Function, at: int) -> _Part:
    kind, length = function.kind, function.number
    cuts = _CUTS[kind]

    def cut(tokens: Sequence[str]) -> str:
        token = tokens[at].encode()
        if not 0 < length < len(token):
            return tokens[at]
        pieces = _pieces(token, cuts(len(token), length))
        if kind == "left":
            return pieces[0]
        return pieces[-1] if kind == "right" else ".".join(pieces)

    return cut


def _pieces(token: bytes, cuts: Iterable[int]) -> list[str]:
    """The token cut in pieces, none of them empty and no character torn."""
    bounds = [0]
    for cut in cuts:
        while cut < len(token) and token[cut] & 0xC0 == 0x80:
            cut += 1
        if bounds[-1] < cut < len(token):
            bounds.append(cut)
    bounds.append(len(token))
    return [token[start:end].decode() for start, end in pairwise(bounds)]
