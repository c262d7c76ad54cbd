"""Appending many messages at once, if none of them needs a check."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.storage import PlacedSums, checksums_with_headers, placed_sums
from pelton.streams.bulk import Bulk, Packed
from pelton.streams.state import StreamState


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
        state.subjects.add_all(bulk.subjects, first)
        self._count(count, bulk.size, now)
        return range(first, first + count)

    def append_with_headers(
        self, subjects: Sequence[str], blocks: Sequence[bytes | None], payloads: Sequence[bytes], now: int
    ) -> None:
        """Store messages by columns, of which some have headers. The caller has checked what these ask for."""
        state = self._state
        first = state.last + 1
        contents = checksums_with_headers(subjects, blocks, payloads)
        state.table.insert_columns(first, now, subjects, payloads, contents, blocks)
        state.subjects.add_all(subjects, first)
        lengths = map(len, subjects if all(map(str.isascii, subjects)) else map(str.encode, subjects))
        size = sum(map(len, payloads)) + sum(lengths)
        size += sum(state.cost.header + len(block) for block in blocks if block is not None)
        self._count(len(subjects), size, now)

    def append_packed(self, packed: Packed, now: int, sums: PlacedSums = placed_sums) -> None:
        """Store packed messages."""
        state = self._state
        state.write_rows()
        first = state.last + 1
        state.table.insert_packed(first, now, packed.columns, sums)
        spans = zip(packed.subjects, packed.firsts, packed.lasts, packed.counts, strict=True)
        placed = ((subject, first + begins, first + ends, number) for subject, begins, ends, number in spans)
        state.subjects.add_spans(placed)
        self._count(packed.columns.count, packed.size, now)

    def _count(self, count: int, size: int, now: int) -> None:
        state = self._state
        if not state.msgs:
            state.first = state.last + 1
        state.msgs += count
        state.bytes += size + count * state.cost.message
        state.last, state.last_ts, state.dirty = state.last + count, now, True
