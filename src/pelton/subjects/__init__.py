"""Subjects and filters: the addresses of messages. Pure functions and one data structure, no input or output.

A subject is a list of tokens joined by dots (`orders.eu.1`). A filter is a subject that may hold wildcards:
`*` stands for exactly one token, `>` as the last token for one or more. A `*` or `>` inside a longer token is
an ordinary character.
"""

from pelton.subjects.match import LONGEST as LONGEST
from pelton.subjects.match import SubjectIndex as SubjectIndex
from pelton.subjects.match import candidates as candidates
from pelton.subjects.match import clash_between as clash_between
from pelton.subjects.match import clash_within as clash_within
from pelton.subjects.match import compile_filter as compile_filter
from pelton.subjects.match import fault_of as fault_of
from pelton.subjects.match import first_match as first_match
from pelton.subjects.match import fits as fits
from pelton.subjects.match import has_wildcard as has_wildcard
from pelton.subjects.match import is_filter as is_filter
from pelton.subjects.match import is_subject as is_subject
from pelton.subjects.match import is_subset as is_subset
from pelton.subjects.match import matches as matches
from pelton.subjects.match import overlaps as overlaps
from pelton.subjects.transform import Draw as Draw
from pelton.subjects.transform import Transform as Transform
from pelton.subjects.transform import TransformError as TransformError
