"""How filters relate to subjects and to each other.

All arguments must be valid (`is_subject`, `is_filter`): they are checked at the public API, because these functions
run on every message.

**Which of very many filters share a subject, or match one, without comparing each with each.** Filters are grouped by
their shape: how many tokens they have, and where their wildcards stand. Two of the same shapes overlap if they have the
same tokens where neither has a wildcard, so a dictionary of these tokens finds the other. What it costs grows with the
number of filters times that of their shapes, and there are few of those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations_with_replacement
from operator import itemgetter
from typing import NamedTuple

from pelton.subjects.validate import has_wildcard


def matches(filter: str, subject: str) -> bool:
    """Whether the filter matches the subject. To test many subjects, use `compile_filter`."""
    return filter == subject or is_subset(subject, filter)


def is_subset(a: str, b: str) -> bool:
    """Whether filter `b` matches every subject that filter `a` matches."""
    narrow, wide = a.split("."), b.split(".")
    for ours, theirs in zip(narrow, wide, strict=False):
        if theirs == ">":
            return True
        if ours == ">" or (theirs != "*" and ours != theirs):
            return False
    return len(narrow) == len(wide)


def overlaps(a: str, b: str) -> bool:
    """Whether some subject matches both filters."""
    left, right = a.split("."), b.split(".")
    for ours, theirs in zip(left, right, strict=False):
        if ours == ">" or theirs == ">":
            return True
        if ours != theirs and ours != "*" and theirs != "*":
            return False
    return len(left) == len(right)


def compile_filter(filter: str) -> Callable[[str], bool]:
    """Return the fastest test for one filter: a comparison or a prefix if that is enough, else a pattern."""
    if filter == ">":
        return lambda subject: True
    if not has_wildcard(filter):
        return filter.__eq__
    if filter.endswith(".>") and not has_wildcard(filter[:-2]):
        prefix = filter[:-1]
        return lambda subject: subject.startswith(prefix)
    pattern = re.compile(r"\.".join(map(_token_pattern, filter.split("."))), re.DOTALL).fullmatch
    return lambda subject: pattern(subject) is not None


def _token_pattern(token: str) -> str:
    if token == "*":
        return r"[^.]+"
    return ".+" if token == ">" else re.escape(token)


class _Shape(NamedTuple):
    """How many tokens there are before a last ``>``, which of them are ``*``, and whether there is a ``>``."""

    length: int
    stars: tuple[int, ...]
    has_tail: bool


_Groups = dict[_Shape, list[tuple[int, list[str]]]]


def clash_within(filters: Sequence[str]) -> tuple[str, str] | None:
    """Return the first filter that overlaps with one before it, and the first such one; None if none does."""
    groups, first = _groups(filters), len(filters)
    for mine, theirs in combinations_with_replacement(groups, 2):
        key = _key(mine, theirs)
        if key is None:
            continue
        known: dict[object, int] = {}
        for index, tokens in groups[mine]:
            earlier = known.setdefault(key(tokens), index)
            if mine is theirs and earlier != index:
                first = min(first, index)
                break
        for index, tokens in groups[theirs] if mine is not theirs else ():
            first = min(first, max(index, known.get(key(tokens), first)))
    if first == len(filters):
        return None
    return filters[first], next(one for one in filters if overlaps(one, filters[first]))


def clash_between(filters: Iterable[str], others: Iterable[str]) -> bool:
    """Whether a filter overlaps with one of the others."""
    ours, groups = _groups(filters), _groups(others)
    for mine, some in ours.items():
        for theirs, more in groups.items():
            key = _key(mine, theirs)
            if key is None:
                continue
            known = {key(tokens) for _, tokens in some}
            if any(key(tokens) in known for _, tokens in more):
                return True
    return False


def first_match(filters: Iterable[str]) -> Callable[[str], int | None]:
    """Return what finds the index of the first filter that matches a subject, None if none does."""
    looks = []
    for shape, some in _groups(filters).items():
        literal = [place for place in range(shape.length) if place not in shape.stars]
        key = itemgetter(*literal) if literal else _nothing
        known: dict[object, int] = {}
        for index, tokens in some:
            known.setdefault(key(tokens), index)
        looks.append((shape.length, shape.has_tail, key, known))

    def first(subject: str) -> int | None:
        tokens, found = subject.split("."), None
        for length, has_tail, key, known in looks:
            if len(tokens) == length + has_tail or (has_tail and len(tokens) > length):
                index = known.get(key(tokens))
                if index is not None and (found is None or index < found):
                    found = index
        return found

    return first


def _nothing(tokens: list[str]) -> object:
    return None


def _groups(filters: Iterable[str]) -> _Groups:
    groups: _Groups = {}
    for index, text in enumerate(filters):
        tokens = text.split(".")
        has_tail = tokens[-1] == ">"
        if has_tail:
            tokens.pop()
        stars = tuple([place for place, token in enumerate(tokens) if token == "*"]) if "*" in text else ()
        groups.setdefault(_Shape(len(tokens), stars, has_tail), []).append((index, tokens))
    return groups


def _key(one: _Shape, other: _Shape) -> Callable[[list[str]], object] | None:
    """Return what is the same of two filters of these shapes if they overlap; None if they never do."""
    if one.length != other.length and not (one.has_tail if one.length < other.length else other.has_tail):
        return None
    if one.length == other.length and one.has_tail != other.has_tail:
        return None
    literal = [
        place for place in range(min(one.length, other.length)) if place not in one.stars and place not in other.stars
    ]
    return itemgetter(*literal) if literal else _nothing
