"""Reading a stream's messages: by sequence, subject and time, and counting them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from pelton.storage import Condition, MessageRow, column, intact, integer, integers, subject_condition, text
from pelton.streams.lookups import ANY, FilterLookup, LastMatches, Spots
from pelton.streams.state import StreamState
from pelton.streams.subject_rows import SubjectRow
from pelton.subjects import has_wildcard

_FEW: Final = 4
# So many rows are read before the rows of subjects are asked.
_NEAR: Final = 4096


class Pair(NamedTuple):
    """The sequences of the two messages of a subject."""

    first: int
    last: int


class Reader:
    """Look-ups in one stream; any that reads message rows first writes those of the open transaction."""

    def __init__(self, state: StreamState) -> None:
        self._state = state
        self._filters = FilterLookup(state)
        # How many subjects there were, and when.
        self._numbered: tuple[tuple[int, int, int], int] = ((-1, 0, 0), 0)
        self._last_matches = LastMatches(state)

    # --- single messages

    def get(self, seq: int) -> MessageRow | None:
        """Return the message with a sequence."""
        self._state.write_rows()
        return self._state.table.get(seq)

    def get_many(self, sequences: Sequence[int]) -> list[MessageRow]:
        """Return those of these messages that exist."""
        self._state.write_rows()
        return self._state.table.get_many(sequences)

    def next_row_of(self, seq: int, subject_filter: str) -> MessageRow | None:
        """Return the first message at or after ``seq`` that matches."""
        state = self._state
        state.write_rows()
        first, last = seq, state.last
        if subject_filter and not has_wildcard(subject_filter):
            known = state.subject_row(subject_filter)
            if known.msgs <= 0:
                return None
            first, last = max(seq, known.first), known.last
        condition = subject_condition([subject_filter] if subject_filter else [])
        near = last if condition is None else min(last, first + _NEAR)
        found = state.table.scan(first, near, 1, condition)
        if not found and near < last:
            found = state.table.scan(self._last_matches.next_possible(near + 1, subject_filter), last, 1, condition)
        return found[0] if found else None

    def last_row_of(self, subject_filter: str) -> MessageRow | None:
        """Return the last message that matches a subject or filter."""
        state = self._state
        state.write_rows()
        if subject_filter in (">", ""):
            return state.table.last_where(state.last, ANY)
        if has_wildcard(subject_filter):
            return self._last_matching(subject_filter)
        known = state.subject_row(subject_filter)
        if known.msgs <= 0:
            return None
        row = state.table.get(known.last)
        if row is not None and (row.subject == subject_filter or not intact(row)):
            # A damaged row is still the last one: an earlier one would be mistaken for the current value.
            return row
        return state.table.last_where(known.last, Condition("subject=?", (subject_filter,)))

    def none_between(self, seq: int, filters: Sequence[str]) -> int:
        """Return up to which sequence nothing after ``seq`` matches, if it is known at once. Flush the stream first."""
        return self._last_matches.none_between(seq, filters)

    def spots_of(self, parent: str) -> Spots | None:
        """Return where subjects may be that a filter matches, from all its tokens but the last; None: unknown."""
        self._state.write_rows()
        return self._filters.spots_of(parent)

    def _last_matching(self, subject_filter: str) -> MessageRow | None:
        subjects = self._filters.subjects_of(subject_filter)
        if subjects is None:
            return self._last_matches.find(subject_filter)
        bounds = self._state.subjects.last_bounds(subjects, self._state.last)
        found: MessageRow | None = None
        for subject in sorted(bounds, key=bounds.__getitem__, reverse=True):
            if found is not None and bounds[subject] < found.seq:
                break
            row = self.last_row_of(subject)
            if row is not None and (found is None or row.seq > found.seq):
                found = row
        return found

    def last_rows(self, condition: Condition | None) -> list[MessageRow]:
        """Return the last message of every subject that meets a condition, in order of sequence."""
        subjects = self.subjects("SELECT CAST(subject AS BLOB) FROM {}", condition)
        found = (self.last_row_of(text(subject)) for (subject,) in subjects)
        return sorted((row for row in found if row is not None), key=attrgetter("seq"))

    # --- sequences

    def last_seq_of(self, subject_filter: str) -> int:
        """Return the sequence of the last message that matches, 0 if there is none."""
        row = self.last_row_of(subject_filter)
        return 0 if row is None else row.seq

    def first_at(self, time: int) -> int:
        """Return the first sequence stored at or after ``time``, by bisection: times grow with sequences."""
        state = self._state
        state.write_rows()
        low, high = state.first, state.last + 1
        while low < high:
            middle = (low + high) // 2
            seq = state.table.next_seq(middle)
            if seq is None or seq >= high:
                high = middle
                continue
            stored = state.table.time_of(seq)
            if stored is not None and stored < time:
                low = seq + 1
            else:
                high = middle
        return low

    def pairs(self, subjects: Sequence[str]) -> dict[str, Pair]:
        """Return the subjects that hold exactly two messages, with both; empty for few subjects: it does not pay."""
        state = self._state
        rows = {subject: state.subject_row(subject) for subject in subjects} if len(subjects) >= _FEW else {}
        bounds = {
            subject: Pair(row.first, row.last)
            for subject, row in rows.items()
            if row.msgs == 2 and row.first < row.last
        }
        # Both are only bounds: check that the messages are there.
        there = state.table.subjects_at(seq for pair in bounds.values() for seq in pair)
        return {
            subject: pair
            for subject, pair in bounds.items()
            if there.get(pair.first) == subject == there.get(pair.last)
        }

    def deleted(self) -> list[int]:
        """Return the sequences missing between first and last."""
        state = self._state
        present = set(column(state.db.execute(f"SELECT seq FROM {state.table.name}")))
        return [seq for seq in range(state.first, state.last + 1) if seq not in present]

    # --- message ids

    def known_id(self, msg_id: str, now: int) -> int | None:
        """Return the sequence stored under a message id within the duplicate window."""
        state = self._state
        return state.ids.find(msg_id, now) if state.config.duplicate_window.ns > 0 else None

    def last_id(self) -> str:
        """Return the message id of the last message, or an empty text."""
        return self._state.ids.last_id(self._state.last)

    # --- counts

    def bounds_of(self, condition: Condition | None) -> SubjectRow:
        """Return the bounds and number of the messages whose subject meets a condition. Flush the stream first."""
        state = self._state
        if condition is None:
            return SubjectRow(state.first, state.last, state.msgs)
        query = state.subjects.parts(condition, state.last)
        sql = f"SELECT ifnull(min(first), 0), ifnull(max(last), 0), ifnull(sum(msgs), 0) FROM {query.sql}"
        [row] = state.db.execute(sql, query.bindings).fetchall()
        return SubjectRow(*integers(row))

    def count_of(self, condition: Condition | None) -> int:
        """Return how many messages have a subject that meets a condition; sums the counts of subjects."""
        state = self._state
        if condition is None:
            return state.msgs
        query = state.subjects.parts(condition, state.last)
        return int(state.db.value(f"SELECT ifnull(sum(msgs), 0) FROM {query.sql}", query.bindings))

    def subject_counts(self, subject_filter: str, offset: int, limit: int) -> tuple[dict[str, int], int]:
        """Return a page of the subjects that match, with their numbers of messages, and how many match."""
        condition = subject_condition([subject_filter])
        # One that is beyond the end asks only how many they are: there may be millions.
        self._state.write_rows()
        total = self._state.subjects.number(self._state.last, condition)
        if offset >= total:
            return {}, total
        page = "SELECT CAST(subject AS BLOB), msgs FROM {} ORDER BY subject LIMIT ? OFFSET ?"
        rows = self.subjects(page, condition, limit, offset)
        return {text(subject): integer(count) for subject, count in rows}, total

    def num_subjects(self) -> int:
        """Return how many subjects hold messages. Flush the stream first."""
        state = self._state
        state.write_rows()
        # Messages are added at the end, and what is undone counts as a reset: with these, the subjects are the same.
        now = (state.resets, state.last, state.msgs)
        if self._numbered[0] != now:
            self._numbered = (now, state.subjects.number(state.last))
        return self._numbered[1]

    def subjects(self, sql: str, condition: Condition | None, *bindings: int | str) -> list[tuple[object, ...]]:
        """Return the rows of a query from ``{}``, which is replaced by the subjects that meet a condition.

        Its columns are ``subject``, ``first``, ``last`` and ``msgs``; the condition's bindings come first.
        """
        state = self._state
        state.write_rows()
        query = state.subjects.each(condition, state.last)
        return state.db.execute(sql.format(query.sql), (*query.bindings, *bindings)).fetchall()
