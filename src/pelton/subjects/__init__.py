"""Subjects and filters: the addresses of messages. Pure functions and one data structure, no input or output.

A subject is a list of tokens joined by dots (`orders.eu.1`). A filter is a subject that may hold wildcards:
`*` stands for exactly one token, `>` as the last token for one or more. A `*` or `>` inside a longer token is
an ordinary character.
"""

from pelton.subjects.index import SubjectIndex
from pelton.subjects.match import (
    LONGEST,
    candidates,
    clash_between,
    clash_within,
    compile_filter,
    fault_of,
    first_match,
    fits,
    has_wildcard,
    is_filter,
    is_subject,
    is_subset,
    matches,
    overlaps,
)
from pelton.subjects.transform import Draw, Transform, TransformError

__all__ = [
    "LONGEST",
    "Draw",
    "SubjectIndex",
    "Transform",
    "TransformError",
    "candidates",
    "clash_between",
    "clash_within",
    "compile_filter",
    "fault_of",
    "first_match",
    "fits",
    "has_wildcard",
    "is_filter",
    "is_subject",
    "is_subset",
    "matches",
    "overlaps",
]
