"""The last and the next message that a filter matches, without a scan of the whole stream each time.

Design: a filter with many subjects is looked for from the last message backwards. If nothing matches, that would read
the whole stream, and again at the next call: a worker that asks whether there are jobs of a priority, beside millions
of others, asks often. So what a search has found is remembered: nothing matches between two sequences. Messages are
only added at the end, and one that is removed matches no more, so that stays true until a rollback. For the first
search, the rows of subjects tell where the last match may be, if they can be listed at once and are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pelton.storage import Condition, MessageRow, subject_condition
from pelton.streams.state import StreamState
from pelton.streams.subject_bounds import SubjectBounds

_ANY: Final = Condition("1", ())
_FEW_ROWS: Final = 1_000
_FILTERS: Final = 64


class SearchedRange(NamedTuple):
    """No message matches after ``bound``, up to ``upto``."""

    bound: int
    upto: int


class LastMatches:
    """The last matches of filters in one stream; whoever asks has written the appended messages."""

    def __init__(self, state: StreamState) -> None:
        self._state = state
        self._bounds = SubjectBounds(state.db, state.id)
        self._searched: dict[str, SearchedRange] = {}
        self._resets = -1

    def find(self, subject_filter: str) -> MessageRow | None:
        """Return the last message that matches."""
        state = self._state
        if self._resets != state.resets or len(self._searched) >= _FILTERS:
            # Sequences that were rolled back are given again.
            self._searched.clear()
            self._resets = state.resets
        condition = subject_condition([subject_filter]) or _ANY
        searched = self._searched.get(subject_filter) or self._first_range(subject_filter, condition)
        found = state.table.last_where(state.last, condition, after=searched.upto)
        if found is None and searched.bound:
            found = state.table.last_where(searched.bound, condition)
        self._searched[subject_filter] = SearchedRange(0 if found is None else found.seq, state.last)
        return found

    def _first_range(self, subject_filter: str, condition: Condition) -> SearchedRange:
        """Return what the rows of subjects tell, which count messages up to a sequence."""
        upto = self._state.subjects.upto
        bound = self._bounds.of_few(condition, _FEW_ROWS) if _is_range(subject_filter) else None
        return SearchedRange(upto if bound is None else bound, upto)

    def none_between(self, seq: int, filters: Sequence[str]) -> int:
        """Return up to which sequence nothing after ``seq`` matches any of some filters, if it is known at once.

        Flush the stream first.
        """
        for subject_filter in filters:
            condition = subject_condition([subject_filter])
            if condition is None or not _is_range(subject_filter):
                return seq
            bound = self._bounds.of_few(condition, _FEW_ROWS)
            if bound is None or bound > seq:
                return seq
        return max(seq, self._state.subjects.upto) if filters else seq

    def next_possible(self, seq: int, subject_filter: str) -> int:
        """Return the first sequence from ``seq`` on whose message may match, as far as the rows of subjects tell."""
        condition = subject_condition([subject_filter]) if _is_range(subject_filter) else None
        if condition is None:
            return seq
        first = self._bounds.first_from(seq, condition, _FEW_ROWS)
        if first is None:
            return seq
        return max(seq, first or self._state.subjects.upto + 1)


def _is_range(subject_filter: str) -> bool:
    """Whether the subjects that a filter matches follow each other: it is a subject, or a beginning of subjects."""
    return not {"*", ">"} & set(subject_filter.removesuffix(".>").split("."))
