"""Appending many messages at once, if none of them needs a check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pelton.storage import PlacedSums, placed_sums
from pelton.streams.bulk import Bulk, Packed, Span, spans_of
from pelton.streams.state import StreamState, SubjectRow

# For rows that each have a different subject.
_COUNT_ROWS: Final = (
    "INSERT INTO subjects SELECT ?1, subject, seq, seq, 1 FROM {table} WHERE seq BETWEEN ?2 AND ?3 "
    "ON CONFLICT DO UPDATE SET last=excluded.last, msgs=msgs+1"
)


class BulkAppender:
    """Stores bulks in one stream; the caller has checked ``Appender.takes_bulk``."""

    def __init__(self, state: StreamState) -> None:
        self._state = state

    def append(self, bulk: Bulk, now: int) -> range:
        """Store messages by columns; return their sequences."""
        state = self._state
        state.write_rows()
        first, count = state.last + 1, len(bulk.subjects)
        state.table.insert_columns(first, now, bulk.subjects, bulk.payloads, bulk.contents)
        if bulk.spans is None and not state.deltas:
            state.db.execute(_COUNT_ROWS.format(table=state.table.name), (state.id, first, first + count - 1))
            state.effects.arrived.update(bulk.subjects)
        else:
            self._count_spans(first, spans_of(bulk))
        self._count(count, bulk.size, now)
        return range(first, first + count)

    def append_packed(self, packed: Packed, now: int, sums: PlacedSums = placed_sums) -> None:
        """Store packed messages."""
        state = self._state
        state.write_rows()
        first = state.last + 1
        state.table.insert_packed(first, now, packed.columns, sums)
        self._count_spans(first, zip(packed.subjects, packed.firsts, packed.lasts, packed.counts, strict=True))
        self._count(packed.columns.count, packed.size, now)

    def _count_spans(self, first: int, spans: Iterable[Span]) -> None:
        deltas = self._state.deltas
        for subject, begins, ends, number in spans:
            delta = deltas.get(subject)
            if delta is None:
                deltas[subject] = SubjectRow(first + begins, first + ends, number)
            else:
                delta.last = first + ends
                delta.msgs += number

    def _count(self, count: int, size: int, now: int) -> None:
        state = self._state
        state.known.clear()
        if not state.msgs:
            state.first = state.last + 1
        state.msgs += count
        state.bytes += size + count * state.cost.message
        state.last, state.last_ts, state.dirty = state.last + count, now, True
