"""Reading a stream's messages: by sequence, subject and time, and counting them.

**Look-ups by a filter, without a scan of the whole stream each time: the last and the next message that it matches.** A
filter with many subjects is looked for from the last message backwards. If nothing matches, that would read the whole
stream, and again at the next call: a worker that asks whether there are jobs of a priority, beside millions of others,
asks often. So what a search has found is remembered: nothing matches between two sequences. Messages are only added at
the end, and one that is removed matches no more, so that stays true until a rollback. For the first search, the rows of
subjects tell where the last match may be, if they can be listed at once and are few.

A condition such as ``jobs.*.u1`` stands for a few literal subjects, each of which costs one look-up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, product
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from pelton.api import StreamConfig
from pelton.storage import (
    Condition,
    Database,
    MessageRow,
    column,
    intact,
    integer,
    integers,
    of_subject,
    subject_condition,
    text,
)
from pelton.streams.state import StreamState
from pelton.streams.subject_rows import SubjectRow
from pelton.subjects import candidates, has_wildcard, is_filter

_WITHIN: Final = "SELECT 1 FROM subjects WHERE stream=? AND subject>=? AND subject<=? LIMIT 1"
_OF_ALL: Final = (
    "SELECT count(*), ifnull(max(last), 0) FROM (SELECT last FROM subjects WHERE stream=? AND msgs>0 AND {} LIMIT ?+0)"
)
_FROM: Final = (
    "SELECT count(*), ifnull(min(first), 0) FROM "
    "(SELECT first FROM subjects WHERE stream=? AND msgs>0 AND last>=? AND {} LIMIT ?+0)"
)


class SubjectBounds:
    """Bounds in the stream with row id ``stream``."""

    def __init__(self, database: Database, stream: int) -> None:
        self._db = database
        self._stream = stream

    def has_within(self, first: str, last: str) -> bool:
        """Whether a subject from ``first`` to ``last``, both included, has a row."""
        return self._db.value(_WITHIN, (self._stream, first, last)) is not None

    def of_few(self, condition: Condition, most: int) -> int | None:
        """Return the bound of the last sequence of all subjects that meet a condition, 0 if none has a row.

        None if they are ``most`` or more.
        """
        sql = _OF_ALL.format(condition.sql)
        [row] = self._db.execute(sql, (self._stream, *condition.bindings, most)).fetchall()
        number, last = integers(row)
        return last if number < most else None

    def first_from(self, seq: int, condition: Condition, most: int) -> int | None:
        """Return the bound of the first sequence of all subjects that meet a condition and may have some from ``seq``.

        0 if there is no such subject; None if they are ``most`` or more.
        """
        sql = _FROM.format(condition.sql)
        [row] = self._db.execute(sql, (self._stream, seq, *condition.bindings, most)).fetchall()
        number, first = integers(row)
        return first if number < most else None


ANY: Final = Condition("1", ())
_FEW_ROWS: Final = 1_000
_FILTERS: Final = 64


class SearchedRange(msgspec.Struct, frozen=True):
    """No message matches after ``bound``, up to ``upto``."""

    bound: int
    upto: int


class LastMatches:
    """The last matches of filters in one stream; whoever asks has written the appended messages."""

    def __init__(self, state: StreamState) -> None:
        self._state = state
        self.bounds: SubjectBounds = SubjectBounds(state.db, state.id)
        self._searched: dict[str, SearchedRange] = {}
        self._resets = -1

    def find(self, subject_filter: str) -> MessageRow | None:
        state = self._state
        if self._resets != state.resets or len(self._searched) >= _FILTERS:
            # Sequences that were rolled back are given again.
            self._searched.clear()
            self._resets = state.resets
        condition = subject_condition([subject_filter]) or ANY
        searched = self._searched.get(subject_filter) or self._first_range(subject_filter, condition)
        found = state.table.last_where(state.last, condition, after=searched.upto)
        if found is None and searched.bound:
            found = state.table.last_where(searched.bound, condition)
        self._searched[subject_filter] = SearchedRange(0 if found is None else found.seq, state.last)
        return found

    def _first_range(self, subject_filter: str, condition: Condition) -> SearchedRange:
        """Return what the rows of subjects tell, which count messages up to a sequence."""
        upto = self._state.subjects.upto
        bound = self.bounds.of_few(condition, _FEW_ROWS) if _is_range(subject_filter) else None
        return SearchedRange(upto if bound is None else bound, upto)

    def none_between(self, seq: int, filters: Sequence[str]) -> int:
        """Return up to which sequence nothing after ``seq`` matches any of some filters, if it is known at once.

        Flush the stream first.
        """
        for subject_filter in filters:
            condition = subject_condition([subject_filter])
            if condition is None or not _is_range(subject_filter):
                return seq
            bound = self.bounds.of_few(condition, _FEW_ROWS)
            if bound is None or bound > seq:
                return seq
        return max(seq, self._state.subjects.upto) if filters else seq

    def next_possible(self, seq: int, subject_filter: str) -> int:
        """Return the first sequence from ``seq`` on whose message may match, as far as the rows of subjects tell."""
        condition = subject_condition([subject_filter]) if _is_range(subject_filter) else None
        if condition is None:
            return seq
        first = self.bounds.first_from(seq, condition, _FEW_ROWS)
        if first is None:
            return seq
        return max(seq, first or self._state.subjects.upto + 1)


def _is_range(subject_filter: str) -> bool:
    """Whether the subjects that a filter matches follow each other: it is a subject, or a beginning of subjects."""
    return not {"*", ">"} & set(subject_filter.removesuffix(".>").split("."))


Spots = tuple[str, ...]
"""The beginnings of subjects, each with its last dot: with one token more, the subjects that a filter matches."""

_MOST: Final = 16
_KNOWN_LIMIT: Final = 10_000
WILD: Final = ("*", ">")


class FilterLookup:
    """Lists the subjects of one stream that a filter can match.

    A stream's subjects say which exist, unless a transform or a source brings others, or an earlier configuration took
    them: the latter is checked once for each configuration.
    """

    def __init__(self, state: StreamState) -> None:
        self._state = state
        # What is known of the filters' parents, as long as the configuration is this one.
        self._config: StreamConfig | None = None
        self._is_complete = False
        self._spots: dict[str, Spots | None] = {}

    def subjects_of(self, subject_filter: str) -> Collection[str] | None:
        """Return the literal subjects of a filter; None if they cannot be listed, or are many."""
        parent, _, token = subject_filter.rpartition(".")
        spots = None if token in WILD else self.spots_of(parent)
        return self._listed(subject_filter) if spots is None else [spot + token for spot in spots]

    def spots_of(self, parent: str) -> Spots | None:
        """Return where subjects may be that a filter matches, from all its tokens but the last; None: unknown."""
        self._know_config()
        if len(self._spots) > _KNOWN_LIMIT:
            self._spots.clear()
        if parent not in self._spots:
            self._spots[parent] = self._found_spots(parent)
        return self._spots[parent]

    def _found_spots(self, parent: str) -> Spots | None:
        if not has_wildcard(parent):
            return (f"{parent}." if parent else "",)
        position, example = parent.count(".") + 1, f"{parent}.0"
        if not is_filter(example) or any(_names(subject, position) for subject in self._state.config.subjects):
            return None
        found = self._listed(example)
        return None if found is None else tuple(sorted(subject[:-1] for subject in found))

    def _listed(self, subject_filter: str) -> set[str] | None:
        self._know_config()
        if not self._is_complete:
            return None
        found = candidates(subject_filter, self._state.config.subjects)
        return None if found is None or len(found) > _MOST else found

    def _know_config(self) -> None:
        config = self._state.config
        if self._config is not config:
            self._config = config
            self._spots.clear()
            maps = config.sources or config.mirror is not None or config.subject_transform is not None
            self._is_complete = bool(config.subjects) and not maps and self._has_no_others(config)

    def _has_no_others(self, config: StreamConfig) -> bool:
        state = self._state
        taken = subject_condition(config.subjects)
        if taken is None:
            return True
        query = state.subjects.each(Condition(f"NOT {taken.sql}", taken.bindings), state.last)
        return state.db.execute(f"SELECT 1 FROM {query.sql} LIMIT 1", query.bindings).fetchone() is None


def _names(pattern: str, position: int) -> bool:
    """Whether a pattern names the token at a position, so that what it matches depends on that token."""
    tokens = pattern.split(".")
    return len(tokens) > position and tokens[position] not in WILD


# With fewer subjects below the same beginnings, each is looked up: to ask first whether there are any costs as much.
_FEW_TOKENS: Final = 8
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
        self._state.write_rows()
        return self._state.table.get(seq)

    def get_many(self, sequences: Sequence[int]) -> list[MessageRow]:
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
        return state.table.last_where(known.last, of_subject(subject_filter))

    def next_possible(self, seq: int, subject_filter: str) -> int | None:
        """Return a sequence from ``seq`` on, before which nothing matches; None if there is nothing."""
        self._state.write_rows()
        return self._state.table.next_seq(self._last_matches.next_possible(seq, subject_filter))

    def none_between(self, seq: int, filters: Sequence[str]) -> int:
        """Return up to which sequence nothing after ``seq`` matches, if it is known at once. Flush the stream first."""
        return self._last_matches.none_between(seq, filters)

    def spots_of(self, parent: str) -> Spots | None:
        """Return where subjects may be that a filter matches, from all its tokens but the last; None: unknown."""
        self._state.write_rows()
        return self._filters.spots_of(parent)

    def lasts_of(self, wanted: Mapping[Spots, list[str]]) -> dict[str, int]:
        """Return the last sequences of those subjects that have messages: every token at each of its spots.

        There may be others among them.
        """
        if not wanted:
            return {}
        state = self._state
        state.write_rows()
        bounds = state.subjects.counted_lasts(self._likely(wanted))
        newer = state.subjects.newer(state.last)
        for subject in _present(wanted, newer):
            bounds[subject] = max(bounds.get(subject, 0), newer[subject].last)
        if not bounds:
            return {}
        # A subject's last message may have been removed since.
        there = state.table.subjects_at(bounds.values())
        exact = (
            (subject, seq if there.get(seq) == subject else self.last_seq_of(subject))
            for subject, seq in bounds.items()
        )
        return {subject: seq for subject, seq in exact if seq}

    def _likely(self, wanted: Mapping[Spots, list[str]]) -> list[str]:
        """Return the subjects that may be counted: at most spots there is nothing between the first and the last."""
        likely: list[str] = []
        for spots, tokens in wanted.items():
            first, last = min(tokens), max(tokens)
            for spot in spots:
                if len(tokens) < _FEW_TOKENS or self._last_matches.bounds.has_within(spot + first, spot + last):
                    likely += map(spot.__add__, tokens)
        return likely

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
        """Return the subjects that hold exactly two messages, with both."""
        state = self._state
        rows = {subject: state.subject_row(subject) for subject in subjects}
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
        page = "SELECT CAST(subject AS BLOB), msgs FROM {} ORDER BY subject LIMIT ?+0 OFFSET ?"
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


def _present(wanted: Mapping[Spots, list[str]], newer: Mapping[str, object]) -> Iterable[str]:
    """Return those of the uncounted subjects that are wanted, and maybe others: by the shorter of two ways."""
    if not newer:
        return ()
    if sum(len(spots) * len(tokens) for spots, tokens in wanted.items()) <= len(newer):
        pairs = chain.from_iterable(product(spots, tokens) for spots, tokens in wanted.items())
        return [subject for spot, token in pairs if (subject := spot + token) in newer]
    tokens = set(chain.from_iterable(wanted.values()))
    return [subject for subject in newer if subject[subject.rfind(".") + 1 :] in tokens]
