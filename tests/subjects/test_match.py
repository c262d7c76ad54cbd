"""Relations between filters, compared with the enumeration of a small universe."""

import pytest
from hypothesis import given

from pelton.subjects import compile_filter, is_filter, is_subject, is_subset, matches, overlaps

from . import reference


def test_reference_universe_is_valid() -> None:
    assert all(map(is_subject, reference.UNIVERSE))


@pytest.mark.parametrize(
    ("filter", "subject", "expected"),
    [
        ("foo", "foo", True),
        ("foo", "foo.bar", False),
        ("foo.*", "foo", False),
        ("foo.*", "foo.bar", True),
        ("foo.*", "foo.bar.baz", False),
        ("foo.>", "foo", False),
        ("foo.>", "foo.bar.baz", True),
        ("*.>", "foo", False),
        (">", "foo.bar", True),
        ("foo*.bar", "foox.bar", False),
        ("foo*.bar", "foo*.bar", True),
        ("a.*.c", "a.new\u2028line.c", True),
        ("a+.*", "aa.b", False),
    ],
)
def test_known_pairs(filter: str, subject: str, expected: bool) -> None:
    assert matches(filter, subject) is expected
    assert compile_filter(filter)(subject) is expected


@given(reference.filters, reference.subjects)
def test_matches(filter: str, subject: str) -> None:
    assert is_filter(filter)
    assert matches(filter, subject) is reference.matches(filter, subject)


@given(reference.filters, reference.subjects)
def test_compiled_filter(filter: str, subject: str) -> None:
    assert compile_filter(filter)(subject) is reference.matches(filter, subject)


@given(reference.filters, reference.filters)
def test_overlaps(a: str, b: str) -> None:
    assert overlaps(a, b) is bool(reference.named(a) & reference.named(b))


@given(reference.filters, reference.filters)
def test_is_subset(a: str, b: str) -> None:
    assert is_subset(a, b) is (reference.named(a) <= reference.named(b))
