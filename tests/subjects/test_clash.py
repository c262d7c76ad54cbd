"""Overlaps among many filters, compared with each against each; and that many take no quadratic time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.subjects import clash_between, clash_within, first_match

from . import reference


def overlap(one: str, other: str) -> bool:
    return bool(reference.named(one) & reference.named(other))


@given(st.lists(reference.filters, max_size=6))
def test_the_first_clash_of_a_list(filters: list[str]) -> None:
    later = next((index for index, one in enumerate(filters) if any(overlap(one, each) for each in filters[:index])), 0)
    expected = (filters[later], next(each for each in filters if overlap(each, filters[later]))) if later else None
    assert clash_within(filters) == expected


@given(st.lists(reference.filters, max_size=4), st.lists(reference.filters, max_size=4))
def test_clashes_of_two_lists(filters: list[str], others: list[str]) -> None:
    assert clash_between(filters, others) == any(overlap(one, other) for one in filters for other in others)


@given(st.lists(reference.filters, max_size=6))
def test_the_first_that_matches(filters: list[str]) -> None:
    first = first_match(filters)
    for subject in reference.UNIVERSE:
        expected = next((index for index, one in enumerate(filters) if reference.matches(one, subject)), None)
        assert first(subject) == expected


def test_few_are_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr("pelton.subjects.match.overlaps", lambda one, other: compared.append(one))
    literal, wild = [f"a.{number}.x" for number in range(4000)], [f"a.*.{number}.>" for number in range(4000)]
    assert clash_within([*literal, *wild]) is None
    assert not clash_between(literal, wild)
    assert compared == []
