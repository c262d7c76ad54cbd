"""The index compared with a linear scan, through any history of insertions and removals."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pelton.subjects import SubjectIndex
from pelton.subjects import match as index

from . import reference


class IndexAgainstScan(RuleBasedStateMachine):
    """Every match is queried twice, so that the cached result is compared too."""

    def __init__(self) -> None:
        super().__init__()
        self.index: SubjectIndex[int] = SubjectIndex()
        self.pairs: dict[tuple[str, int], None] = {}

    @rule(filter=reference.filters, value=st.integers(0, 3))
    def insert(self, filter: str, value: int) -> None:
        self.index.insert(filter, value)
        self.pairs.setdefault((filter, value))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.pairs:
            pair = data.draw(st.sampled_from(list(self.pairs)))
            self.index.remove(*pair)
            del self.pairs[pair]

    @rule(filter=reference.filters, value=st.integers(0, 3))
    def remove_unknown(self, filter: str, value: int) -> None:
        if (filter, value) not in self.pairs:
            with pytest.raises(KeyError):
                self.index.remove(filter, value)

    @rule(subject=reference.subjects)
    def match(self, subject: str) -> None:
        scan = tuple(value for filter, value in self.pairs if reference.matches(filter, subject))
        assert self.index.match(subject) == scan
        assert self.index.match(subject) == scan

        parent = subject[: subject.rfind(".") + 1]
        below = self.index.match_below(parent)
        assert below is None or below == self.index.match(f"{parent}in-no-filter")
        assert below is None or below == self.index.match(subject)

    @rule(filter=reference.filters)
    def overlapping(self, filter: str) -> None:
        named = reference.named(filter)
        scan = {value for other, value in self.pairs if named & reference.named(other)}
        assert self.index.overlapping(filter) == scan

    @invariant()
    def size(self) -> None:
        assert len(self.index) == len(self.pairs)


TestIndexAgainstScan = IndexAgainstScan.TestCase


@given(st.lists(reference.filters, min_size=1, unique=True))
def test_removing_everything_leaves_an_empty_trie(filters: list[str]) -> None:
    subjects: SubjectIndex[int] = SubjectIndex()
    for filter in filters:
        subjects.insert(filter, 1)
    for filter in filters:
        subjects.remove(filter, 1)
    assert not subjects._root.children


def test_a_value_comes_once_for_each_matching_filter() -> None:
    subjects: SubjectIndex[str] = SubjectIndex()
    for filter in ("a.>", "a.*", "a.b"):
        subjects.insert(filter, "x")
    subjects.insert("a.b", "x")
    assert subjects.match("a.b") == ("x", "x", "x")


def test_changes_are_seen_after_an_answer_was_remembered() -> None:
    subjects: SubjectIndex[str] = SubjectIndex()
    assert subjects.match("a.b") == ()
    subjects.insert("a.*", "x")
    assert subjects.match("a.b") == ("x",)
    subjects.remove("a.*", "x")
    assert subjects.match("a.b") == ()


def test_memory_of_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_CACHE_LIMIT", 10)
    monkeypatch.setattr(index, "_MOST_FAMILIES", 10)
    subjects: SubjectIndex[str] = SubjectIndex()
    subjects.insert("a.*", "x")
    for number in range(100):
        assert subjects.match(f"a.{number}") == ("x",)
        assert len(subjects._cache) <= 10


def test_many_subjects_that_match_alike_take_little_memory() -> None:
    tracemalloc.start()
    try:
        index: SubjectIndex[int] = SubjectIndex()
        index.insert("a.>", 1)
        for number in range(66_000):
            assert index.match(f"a.{number}.x") == (1,)
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()
