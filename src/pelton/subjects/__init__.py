"""Subjects and filters: the addresses of messages. Pure functions and one data structure, no input or output.

A subject is a list of tokens joined by dots (`orders.eu.1`). A filter is a subject that may hold wildcards:
`*` stands for exactly one token, `>` as the last token for one or more. A `*` or `>` inside a longer token is
an ordinary character.
"""

from pelton.subjects.candidates import candidates
from pelton.subjects.index import SubjectIndex
from pelton.subjects.mapping import TransformError
from pelton.subjects.match import clash_between, clash_within, compile_filter, first_match, is_subset, matches, overlaps
from pelton.subjects.transform import Draw, Transform
from pelton.subjects.validate import LONGEST, fault_of, fits, has_wildcard, is_filter, is_subject

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
