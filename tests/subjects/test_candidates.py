"""The literal subjects behind a filter and the subjects of a stream."""

from __future__ import annotations

import itertools

import pytest

from pelton.subjects import candidates, is_subset, matches


@pytest.mark.parametrize(
    ("subject_filter", "patterns", "found"),
    [
        ("a.*.x", ["a.b.>", "a.c.*"], {"a.b.x", "a.c.x"}),
        ("a.*.x", ["a.>"], None),
        ("a.*.x", ["a.*.x"], None),
        ("a.*.x", ["a.b", "b.>"], set()),
        ("a.>", ["a.b"], None),
        ("*.*", ["a.b", "c.d", "c.d.e", "c"], {"a.b", "c.d"}),
        ("q.*.k.1.%.u", ["q.key.>", "q.free", "q.free.>", "q.later.>"], None),
    ],
)
def test_listed(subject_filter: str, patterns: list[str], found: set[str] | None) -> None:
    if found is None and subject_filter.startswith("q."):
        found = {subject_filter.replace("*", token) for token in ("key", "free", "later")}
    assert candidates(subject_filter, patterns) == found


def test_every_subject_that_matches_both_is_listed() -> None:
    tokens = "ab*"
    filters = [".".join(each) for size in (1, 2, 3) for each in itertools.product(tokens, repeat=size)]
    patterns = [*filters, ">", "a.>", "a.*.>", "*.b.>"]
    literals = [each for each in filters if "*" not in each]
    for subject_filter, pattern in itertools.product(filters, patterns):
        found = candidates(subject_filter, [pattern])
        if found is None:
            continue
        both = {subject for subject in literals if matches(subject_filter, subject) and matches(pattern, subject)}
        assert both <= found, (subject_filter, pattern)
        assert all(is_subset(one, subject_filter) and is_subset(one, pattern) for one in found)
