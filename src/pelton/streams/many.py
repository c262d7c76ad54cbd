"""Many messages of a stream at once, where nothing has to be asked about any of them: stored, and removed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pelton.storage import PlacedSums, placed_sums
from pelton.streams.bulk import Bulk, Packed, Span, spans_of
from pelton.streams.stored import StoredMessages

# Of rows each of which has a subject of its own.
_COUNT_ROWS: Final = (
    "INSERT INTO subjects SELECT ?1, subject, seq, seq, 1 FROM {table} WHERE seq BETWEEN ?2 AND ?3 "
    "ON CONFLICT DO UPDATE SET last=excluded.last, msgs=msgs+1"
)


class ManyMessages(StoredMessages):
    """What a stream holds, where many messages may come and go at once."""

    def store_bulk(self, bulk: Bulk, now: int) -> None:
        """Store messages that nothing has to be asked about; the caller has seen that ``takes_bulk`` holds."""
        self._write_rows()
        first, count = self.last + 1, len(bulk.subjects)
        self.table.insert_columns(first, now, bulk.subjects, bulk.payloads, bulk.contents)
        if bulk.spans is None and not self._deltas:
            self._db.execute(_COUNT_ROWS.format(table=self.table.name), (self.id, first, first + count - 1))
            self.arrived.update(bulk.subjects)
        else:
            self._count_spans(first, spans_of(bulk))
        self._count_bulk(count, bulk.size, now)

    def store_packed(self, packed: Packed, now: int, sums: PlacedSums = placed_sums) -> None:
        """Do the same with messages that are packed."""
        self._write_rows()
        first = self.last + 1
        self.table.insert_packed(first, now, packed.columns, sums)
        self._count_spans(first, zip(packed.subjects, packed.firsts, packed.lasts, packed.counts, strict=True))
        self._count_bulk(packed.columns.count, packed.size, now)

    def _count_spans(self, first: int, spans: Iterable[Span]) -> None:
        deltas = self._deltas
        for subject, begins, ends, number in spans:
            delta = deltas.get(subject)
            if delta is None:
                deltas[subject] = [first + begins, first + ends, number]
            else:
                delta[1] = first + ends
                delta[2] += number

    def _count_bulk(self, count: int, size: int, now: int) -> None:
        self._known.clear()
        if not self.msgs:
            self.first = self.last + 1
        self.msgs += count
        self.bytes += size + count * self.cost.message
        self.last, self.last_ts, self.dirty = self.last + count, now, True

    def _remove_alike(self, first: int, last: int) -> bool:
        """Remove the messages of a range at once where all have the same subject, and nobody asks which they were."""
        if self.gone is not None or self.lasts or self.is_timed:
            return False
        removed = self.table.remove_alike(first, last)
        if removed is None:
            return False
        subject, count, data, hdr, blocks = removed
        self.msgs -= count
        self.bytes -= count * self.cost.size(len(subject.encode()), 0, -1) + data + hdr + blocks * self.cost.header
        self._deltas.setdefault(subject, [first, first, 0])[2] -= count
        if subject in self._known:
            self._known[subject][2] -= count
        if first <= self.first:
            self.first = (self.table.next_seq(self.first) if self.msgs else None) or self.last + 1
            self._oldest_ts = None
        self.dirty = True
        return True
