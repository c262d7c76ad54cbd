"""How many messages match a filter, and their bounds: counted once, then kept up to date.

Each batch reports how many more messages match. To recount them for each batch would make a long read quadratic, so a
:class:`FilterCount` remembers its counts. They are valid as long as nothing was removed from the stream, which
``last - msgs`` shows: every removal increases it, nothing decreases it. Messages appended since are counted separately.
"""

from __future__ import annotations

from pelton.storage import Condition, subject_condition
from pelton.streams.log import StreamLog


class FilterCount:
    """The messages of a stream that match a filter ("" for all): bounds, total, and how many follow a mark."""

    first: int
    last: int
    total: int

    def __init__(self, subject_filter: str) -> None:
        self.condition: Condition | None = subject_condition([subject_filter] if subject_filter else [])
        self.first = self.last = self.total = 0
        self._gaps = self._seen = -1
        self._mark = self._after_mark = 0

    def refresh(self, log: StreamLog) -> None:
        """Bring the counts up to date with the stream."""
        gaps = log.state.last - log.state.msgs
        if gaps != self._gaps:
            bounds = log.reader.bounds_of(self.condition)
            self.first, self.last, self.total = bounds.first, bounds.last, bounds.msgs
            self._mark, self._after_mark = self.first, self.total
        elif log.state.last > self._seen:
            self._append(log)
        self._gaps, self._seen = gaps, log.state.last

    def _append(self, log: StreamLog) -> None:
        added = log.table.count(self._seen + 1, log.state.last, self.condition)
        if added:
            self.first = self.first if self.total else self._seen + 1
            self.last = log.state.last
            self.total += added
            self._after_mark += added

    def pending(self, log: StreamLog, seq: int) -> int:
        """Return how many match at or after ``seq``, and remember it."""
        if self.condition is None and log.state.is_gapless:
            return min(max(log.state.last - seq + 1, 0), self.total)
        if seq <= self.first:
            return self.total
        if seq > self.last:
            return 0
        if seq != self._mark:
            self._after_mark, self._mark = self._counted(log, seq), seq
        return self._after_mark

    def passed(self, seq: int, pending: int) -> None:
        """Remember that ``pending`` match after ``seq``, where the next batch is likely to begin."""
        self._mark, self._after_mark = seq + 1, pending

    def _counted(self, log: StreamLog, seq: int) -> int:
        """Count the shortest way: from the mark, from the first, or to the last."""
        count, condition = log.table.count, self.condition
        from_mark, from_first, to_last = abs(seq - self._mark), seq - self.first, self.last - seq
        if from_mark <= min(from_first, to_last):
            if seq > self._mark:
                return self._after_mark - count(self._mark, seq - 1, condition)
            return self._after_mark + count(seq, self._mark - 1, condition)
        if from_first < to_last:
            return self.total - count(self.first, seq - 1, condition)
        return count(seq, self.last, condition)
