"""Conditions on subjects in SQL: those of very many filters find what each of them does."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.storage import subject_condition
from pelton.storage.schema import add_functions
from pelton.subjects import matches
from tests.subjects import reference

MATCHED = ["other.7", "a.3.a.x", "é.4.é.x"]
LITERAL = [f"other.{number}" for number in range(70)]
STARS = [f"*.{number}.*.x" for number in range(5)]
TAILS = [f"tail.{number}.>" for number in range(70)]


@pytest.fixture(scope="module")
def subjects() -> Iterator[apsw.Connection]:
    connection = apsw.Connection(":memory:")
    add_functions(connection)
    connection.execute("CREATE TABLE subjects(subject TEXT PRIMARY KEY)")
    named = [*reference.UNIVERSE, *MATCHED, "tail.9.x", "tail.9", "a.9.a.x", "other.70"]
    connection.executemany("INSERT INTO subjects VALUES(?)", [(subject,) for subject in named])
    yield connection
    connection.close()


def found(subjects: apsw.Connection, filters: list[str]) -> set[str]:
    condition = subject_condition(filters)
    assert condition is not None
    return {
        each for (each,) in subjects.execute(f"SELECT subject FROM subjects WHERE {condition.sql}", condition.bindings)
    }


@given(st.lists(reference.filters.filter(lambda one: one != ">"), min_size=1, max_size=4))
def test_many_find_what_each_finds(subjects: apsw.Connection, filters: list[str]) -> None:
    few = set().union(*(found(subjects, [one]) for one in filters))
    for many, there in ((LITERAL, {"other.7"}), (STARS, {"a.3.a.x", "é.4.é.x"}), (TAILS, {"tail.9.x"})):
        assert found(subjects, many) == there
        assert found(subjects, [*filters, *many]) == few | there


tokens = st.sampled_from(["a", "é", "7", "a\0b", "ab", "x"])
wild = st.one_of(tokens, st.just("*"))


@given(
    st.lists(st.lists(tokens, min_size=1, max_size=5).map(".".join), min_size=1),
    st.lists(wild, min_size=1, max_size=4).map(".".join),
    st.sampled_from(["", ".>"]),
)
def test_one_finds_what_it_matches(stored: list[str], beginning: str, end: str) -> None:
    connection = apsw.Connection(":memory:")
    add_functions(connection)
    connection.execute("CREATE TABLE subjects(subject TEXT)")
    connection.executemany("INSERT INTO subjects VALUES(?)", [(subject,) for subject in {*stored, "7.7", "a.7.7.é"}])
    wanted = {subject for subject in {*stored, "7.7", "a.7.7.é"} if matches(beginning + end, subject)}
    assert found(connection, [beginning + end]) == wanted
    connection.close()
