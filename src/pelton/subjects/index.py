"""Finds, among many filters, those that match a subject.

Filters are kept in a trie, one level per token, wildcards as children like any other, so a lookup
costs the depth of the subject and the wildcards on its path, not the number of filters. Real traffic repeats
its subjects, so answers are also cached. The cache is bounded, and is cleared completely whenever it is full
or the filters change: then an answer is either right or absent, and there is no bookkeeping to get wrong. Long subjects
are not cached: publishing to many of them must not fill the memory.
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeVar

_T = TypeVar("_T")

_CACHE_LIMIT: Final = 32_768
# Each family costs 200 bytes, though it may have one subject only.
_MOST_FAMILIES: Final = 16_384
LONGEST_CACHED: Final = 128
_WILD: Final = {"*", ">"}


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
        """An empty index."""
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
        return None if any(not node.children.keys() <= _WILD for node in family.level) else family.found

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
    """Return the values of all filters below a node."""
    found, left = set[_T](), list(node.children.values())
    while left:
        child = left.pop()
        found.update(child.values)
        left += child.children.values()
    return found


def _values(ends: list[dict[_T, int]]) -> tuple[_T, ...]:
    """Return the values of the filters that match."""
    return tuple(ends[0]) if len(ends) == 1 else _merge(ends)


def _merge(ends: list[dict[_T, int]]) -> tuple[_T, ...]:
    """Return the values of several filters, in insertion order."""
    pairs = [(order, value) for values in ends for value, order in values.items()]
    pairs.sort(key=_order)
    return tuple([value for _, value in pairs])


def _order(pair: tuple[int, object]) -> int:
    return pair[0]


def _prune(root: _Node[_T], path: list[tuple[str, _Node[_T]]]) -> None:
    """Drop the nodes at the end of `path` that have become empty."""
    parents = [root, *(node for _, node in path[:-1])]
    for parent, (token, node) in zip(reversed(parents), reversed(path), strict=True):
        if node.values or node.children:
            return
        parent.adopt(token, None)
