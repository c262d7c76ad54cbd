"""How filters relate to subjects and to each other.

All arguments must be valid (`is_subject`, `is_filter`): they are checked at the public API, because these functions
run on every message.
"""

import re
from collections.abc import Callable

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
