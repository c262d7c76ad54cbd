"""Which subjects and filters are valid, how they relate to each other, and which subjects a filter can match. Pure.

**Validates subjects and filters.** The rules are NATS's: tokens are separated by dots, none is empty, none holds white
space, `>` is only allowed at the end. Three checks go further, because such a string cannot be sent or stored
faithfully: NUL, a lone surrogate, which has no UTF-8 form, and more than `LONGEST` bytes.

**How filters relate to subjects and to each other.** All arguments must be valid (`is_subject`, `is_filter`): they are
checked at the public API, because these functions run on every message.

**Which of very many filters share a subject, or match one, without comparing each with each.** Filters are grouped by
their shape: how many tokens they have, and where their wildcards stand. Two of the same shapes overlap if they have the
same tokens where neither has a wildcard, so a dictionary of these tokens finds the other. What it costs grows with the
number of filters times that of their shapes, and there are few of those.

**Which of many filters match a subject.** They are kept in a trie, one level per token, wildcards as children like any
other, so a lookup costs the depth of the subject and the wildcards on its path, not the number of filters. Real traffic
repeats its subjects, so answers are also cached. The cache is bounded, and is cleared completely whenever it is full or
the filters change: then an answer is either right or absent, and there is no bookkeeping to get wrong. Long subjects
are not cached: publishing to many of them must not fill the memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations_with_replacement
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

LONGEST: Final = 3072
"""The most bytes of a subject or filter.

A NATS server closes a connection whose control line is longer than its `max_control_line`, 4,096 bytes by default,
and does not report its setting. Beside a subject that line holds the reply inbox and, in requests and acks,
the names of a stream and a consumer, each of up to 255 bytes.
"""

_WIDEST = 4  # bytes of a character in UTF-8
_SPACE = r" \t\n\v\f\r"
_TOKEN = rf"[^.{_SPACE}\0\ud800-\udfff]+"
_WILD = r"[*>](?![^.])"  # a whole token, not the beginning of a longer one
_LITERAL = rf"(?!{_WILD}){_TOKEN}"
_ANY_BUT_TAIL = rf"(?!>(?![^.])){_TOKEN}"

_SUBJECT = re.compile(rf"{_LITERAL}(?:\.{_LITERAL})*")
_FILTER = re.compile(rf"(?:{_ANY_BUT_TAIL}\.)*{_TOKEN}")
_HAS_WILD = re.compile(rf"(?:^|\.){_WILD}")
_FAULTS: Final = (
    (r"\A\Z", "it is empty"),
    (r"[\ud800-\udfff]", "it holds a lone surrogate, which has no UTF-8 form"),
    (r"\0", "it holds a NUL character"),
    (rf"[{_SPACE}]", "it holds white space"),
    (r"\A\.|\.\Z|\.\.", "it has an empty token: a dot at an end, or two in a row"),
)


def is_subject(subject: str) -> bool:
    """Whether a message can be published to `subject`: well formed, without wildcards, not too long."""
    return _SUBJECT.fullmatch(subject) is not None and fits(subject)


def is_filter(subject: str) -> bool:
    """Whether `subject` is well formed and not too long; wildcards are allowed."""
    return _FILTER.fullmatch(subject) is not None and fits(subject)


def has_wildcard(subject: str) -> bool:
    """Whether a token of `subject` is a wildcard, so that it names more than one subject."""
    return _HAS_WILD.search(subject) is not None


def fits(subject: str) -> bool:
    """Whether a string, without lone surrogates, has no more bytes than a subject may."""
    return len(subject) * _WIDEST <= LONGEST or len(subject.encode()) <= LONGEST


def fault_of(subject: str, *, wildcards: bool = False) -> str:
    """Return why a string is no subject, or with `wildcards` no filter, as a clause; empty if it is valid."""
    if (is_filter if wildcards else is_subject)(subject):
        return ""
    for pattern, fault in _FAULTS:
        if re.search(pattern, subject):
            return fault
    if not fits(subject):
        return f"it has {len(subject.encode())} bytes, and {LONGEST} are the most"
    return "only its last token can be '>'" if wildcards else "'*' and '>' as tokens are wildcards, for filters"


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


class _Shape(msgspec.Struct, frozen=True):
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


# --- which literal subjects a filter can match, if there are few. Pure

_ONE, _REST = "*", ">"


def candidates(subject_filter: str, patterns: Sequence[str]) -> set[str] | None:
    """Return the literal subjects that match a filter and one of ``patterns``; None if they cannot be listed.

    ``a.*.x`` and the patterns ``a.b.>`` and ``a.c.*`` give ``a.b.x`` and ``a.c.x``; with the pattern ``a.>`` any token
    may stand in the middle.
    """
    wanted = subject_filter.split(".")
    if _REST in wanted:
        return None
    found: set[str] = set()
    for pattern in patterns:
        tokens = _intersect(wanted, pattern.split("."))
        if tokens is None:
            continue
        if _ONE in tokens:
            return None
        found.add(".".join(tokens))
    return found


def _intersect(wanted: Sequence[str], pattern: Sequence[str]) -> list[str] | None:
    """Return the tokens that both allow, ``*`` where both allow any; None if no subject matches both."""
    if pattern[-1] == _REST:
        if len(wanted) < len(pattern):
            return None
        pattern = [*pattern[:-1], *wanted[len(pattern) - 1 :]]
    if len(pattern) != len(wanted):
        return None
    tokens: list[str] = []
    for one, other in zip(wanted, pattern, strict=True):
        if _ONE not in (one, other) and one != other:
            return None
        tokens.append(other if one == _ONE else one)
    return tokens


_T = TypeVar("_T")

_CACHE_LIMIT: Final = 32_768
# Each family costs 200 bytes, though it may have one subject only.
_MOST_FAMILIES: Final = 16_384
LONGEST_CACHED: Final = 128
_WILDCARDS: Final = {"*", ">"}


class _Node(Generic[_T]):
    """The filters that begin with the tokens on the path to this node."""

    __slots__ = ("children", "star", "tail", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[_T]] = {}
        # The wildcards among the children, needed at every step: an attribute is found faster than a key.
        self.star: _Node[_T] | None = None
        self.tail: _Node[_T] | None = None
        self.values: dict[_T, int] = {}  # value -> the number of its insertion

    def adopt(self, token: str, child: _Node[_T] | None) -> _Node[_T]:
        """Make `child` the node for a token, or with None drop the existing one; return it."""
        changed = self.children.pop(token) if child is None else self.children.setdefault(token, child)
        if token == "*":
            self.star = child
        elif token == ">":
            self.tail = child
        return changed

    def beside(self, token: str) -> list[_Node[_T]]:
        """Return the child nodes whose tokens overlap with a token of a filter."""
        if token == "*":
            return [child for name, child in self.children.items() if name != ">"]
        found = (self.children.get(token), self.star)
        return [child for child in found if child is not None]


class _Family(NamedTuple, Generic[_T]):
    """The nodes at which the last tokens of its subjects are looked up, and what one matches that is not there."""

    level: list[_Node[_T]]
    found: tuple[_T, ...]


class SubjectIndex(Generic[_T]):
    """A set of (filter, value) pairs that answers which filters match a subject. Values are hashable."""

    def __init__(self) -> None:
        self._root: _Node[_T] = _Node()
        self._insertions = 0
        self._size = 0
        self._cache: dict[str, tuple[_T, ...]] = {}
        # What a subject matches whose last token is in no filter, by all before it: subjects often end in an id.
        self._families: dict[str, _Family[_T]] = {}
        # The families below which there is nothing to look up, by what they match: most are alike.
        self._alike: dict[tuple[_T, ...], _Family[_T]] = {}

    def __len__(self) -> int:
        return self._size

    def insert(self, filter: str, value: _T) -> None:
        """Add the pair; no effect if it already exists. `filter` must be valid (`is_filter`)."""
        node = self._root
        for token in filter.split("."):
            child = node.children.get(token)
            node = node.adopt(token, _Node()) if child is None else child
        if value not in node.values:
            self._insertions += 1
            self._size += 1
            node.values[value] = self._insertions
            self._forget_answers()

    def _forget_answers(self) -> None:
        self._cache.clear()
        self._families.clear()
        self._alike.clear()

    def remove(self, filter: str, value: _T) -> None:
        """Remove the pair. Raises KeyError if it does not exist."""
        path = self._path(filter)
        if value not in path[-1][1].values:
            raise KeyError((filter, value))
        del path[-1][1].values[value]
        self._size -= 1
        self._forget_answers()
        _prune(self._root, path)

    def overlapping(self, filter: str) -> set[_T]:
        """Return the values of all filters that share a subject with `filter`."""
        level, found = [self._root], set[_T]()
        for token in filter.split("."):
            found.update(value for node in level if node.tail is not None for value in node.tail.values)
            if token == ">":
                return found.union(*map(_all_below, level))
            level = [child for node in level for child in node.beside(token)]
        return found.union(*(node.values for node in level))

    def match(self, subject: str) -> tuple[_T, ...]:
        """Return the values whose filter matches, in insertion order; once for each matching filter of a value.

        `subject` must be literal (`is_subject`).
        """
        found = self._cache.get(subject)
        return self._search(subject) if found is None else found

    def match_below(self, parent: str) -> tuple[_T, ...] | None:
        """Return the values whose filter matches any subject of ``parent`` and one token more.

        ``parent`` ends in a dot. None if what matches depends on that token, which must be literal.
        """
        family = self._families.get(parent) or self._family(parent)
        return None if any(not node.children.keys() <= _WILDCARDS for node in family.level) else family.found

    def _search(self, subject: str) -> tuple[_T, ...]:
        parent, dot, token = subject.rpartition(".")
        parent += dot
        family = self._families.get(parent)
        if family is None:
            family = self._family(parent)
        for node in family.level:
            if token in node.children:
                break
        else:
            return family.found
        ends = self._last(token, *self._ends(parent))
        found = _values(ends)
        if len(subject) <= LONGEST_CACHED:
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            self._cache[subject] = found
        return found

    def _family(self, parent: str) -> _Family[_T]:
        level, ends = self._ends(parent)
        for node in level:
            ends = [*ends, *(child.values for child in (node.star, node.tail) if child is not None)]
        found = _Family(level, _values([values for values in ends if values]))
        if len(parent) <= LONGEST_CACHED:
            if len(self._families) >= _MOST_FAMILIES:
                self._families.clear()
                self._alike.clear()
            if not level:
                found = self._alike.setdefault(found.found, found)
            self._families[parent] = found
        return found

    def _ends(self, parent: str) -> tuple[list[_Node[_T]], list[dict[_T, int]]]:
        """Return the nodes below which the last token of a subject is, and the values that match before it.

        ``parent`` is all before the last token, with its dot.
        """
        level: list[_Node[_T]] = [self._root]
        ends: list[dict[_T, int]] = []
        for token in parent.split(".")[:-1]:
            below: list[_Node[_T]] = []
            below = []
            for node in level:
                if (child := node.children.get(token)) is not None:
                    below.append(child)
                if (star := node.star) is not None:
                    below.append(star)
                if (tail := node.tail) is not None:
                    ends.append(tail.values)
            level = below
        return level, ends

    @staticmethod
    def _last(token: str, level: list[_Node[_T]], ends: list[dict[_T, int]]) -> list[dict[_T, int]]:
        """Return the values of each filter that matches, with the last token."""
        for node in level:
            for child in (node.children.get(token), node.star, node.tail):
                if child is not None and child.values:
                    ends.append(child.values)
        return ends

    def _path(self, filter: str) -> list[tuple[str, _Node[_T]]]:
        path, node = [], self._root
        for token in filter.split("."):
            child = node.children.get(token)
            if child is None:
                child = _Node()  # empty, so the caller finds nothing to remove
            path.append((token, child))
            node = child
        return path


def _all_below(node: _Node[_T]) -> set[_T]:
    found, left = set[_T](), list(node.children.values())
    while left:
        child = left.pop()
        found.update(child.values)
        left += child.children.values()
    return found


def _values(ends: list[dict[_T, int]]) -> tuple[_T, ...]:
    return tuple(ends[0]) if len(ends) == 1 else _merge(ends)


def _merge(ends: list[dict[_T, int]]) -> tuple[_T, ...]:
    """Return the values of several filters, in insertion order."""
    pairs = [(order, value) for values in ends for value, order in values.items()]
    pairs.sort(key=itemgetter(0))
    return tuple([value for _, value in pairs])


def _prune(root: _Node[_T], path: list[tuple[str, _Node[_T]]]) -> None:
    """Drop the nodes at the end of `path` that have become empty."""
    parents = [root, *(node for _, node in path[:-1])]
    for parent, (token, node) in zip(reversed(parents), reversed(path), strict=True):
        if node.values or node.children:
            return
        parent.adopt(token, None)
