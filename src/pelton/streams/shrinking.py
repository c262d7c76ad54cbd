"""How a stream shrinks: its limits, and what is removed from it; a part of ``log.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pelton.api import StreamConfig
from pelton.storage import Removed, runs, subject_condition
from pelton.streams.many import ManyMessages
from pelton.streams.stored import ANY

_CHUNK: Final = 4096
_FEW: Final = 8


class ShrinkingLog(ManyMessages):
    """What a stream holds, and which of it has to go."""

    def configure(self, config: StreamConfig) -> None:
        """Take a (changed) configuration."""
        super().configure(config)
        self._discards_new = config.discard == "new"
        self._per_subject = config.max_msgs_per_subject > 0
        self.is_trimmed = config.max_msgs > 0 or config.max_bytes > 0 or self._per_subject

    def _forget_totals(self) -> None:
        """Forget what is remembered of messages that may be gone."""

    # --- limits

    def _trim(self) -> None:
        config = self.config
        if self._per_subject:
            grown = [subject for subject, delta in self._deltas.items() if delta[2] > 0]
            for subject in self._succeed(grown) if config.max_msgs_per_subject == 1 else grown:
                self._trim_subject(subject, config.max_msgs_per_subject)
        if self._discards_new:
            # A limit that was lowered below what is there removes nothing: only new messages are discarded.
            return
        if config.max_msgs > 0 and self.msgs > config.max_msgs:
            self._evict(self.table.remove_front(self.msgs - config.max_msgs))
        while config.max_bytes > 0 and self.bytes > config.max_bytes and self.msgs:
            self._evict(self.table.remove_front(self._front_over(config.max_bytes)))

    def _trim_subject(self, subject: str, limit: int) -> None:
        row = self.subject_row(subject)
        excess = row[2] - limit
        if excess > 0:
            # Where one is damaged fewer are found than there are: the newest must not go in its place.
            upto = row[1] - 1 if limit else row[1]
            removed = self.table.remove_oldest_of(subject, row[0], upto, excess)
            self._evict(removed)
            first = row[0]
            if limit == 1 and self.table.subject_of(row[1]) == subject:
                first = row[1]
            elif removed:
                first = removed[-1][0] + 1
            self.begin_with(subject, first)

    def _succeed(self, subjects: Sequence[str]) -> Sequence[str]:
        """Remove at once what was replaced one for one, and return the subjects that are left to look at."""
        exact = self.pairs(subjects)
        if not exact:
            return subjects
        self._evict(self.table.remove_each(first for first, _ in exact.values()))
        for subject, (_, last) in exact.items():
            self.begin_with(subject, last)
        return [subject for subject in subjects if subject not in exact]

    def _front_over(self, limit: int) -> int:
        """Return how many of the oldest messages must go for ``bytes`` to meet the limit (bounded by a chunk)."""
        excess, count = self.bytes - limit, 0
        for _, _, subject, data, hdr in self.table.oldest(_CHUNK):
            if excess <= 0:
                break
            excess -= self.cost.size(subject, data, hdr)
            count += 1
        return count

    # --- removal

    def _forget(self, removed: Sequence[Removed]) -> None:
        """Account for rows that are gone."""
        if not removed:
            return
        self.dirty = True
        self._forget_totals()
        if self.gone is not None:
            self.gone += removed
        touched_first = False
        for seq, subject, data, hdr in removed:
            self.bytes -= self.cost.size(len(subject.encode()), data, hdr)
            delta = self._deltas.get(subject)
            if delta is None:
                self._deltas[subject] = [seq, seq, -1]
            else:
                delta[2] -= 1
            known = self._known.get(subject)
            if known is not None:
                known[2] -= 1
            if self.lasts and self.lasts.get(subject) == seq:
                del self.lasts[subject]
            touched_first = touched_first or seq <= self.first
        self.msgs -= len(removed)
        if touched_first:
            self.first = (self.table.next_seq(self.first) if self.msgs else None) or self.last + 1
        if touched_first or self.is_timed:
            self._oldest_ts = None
        if self.is_timed:
            self.timers.forget(removed, scheduled=self.config.allow_msg_schedules)

    def _evict(self, removed: Sequence[Removed]) -> None:
        """Account for rows that are gone though consumers may not have seen them."""
        self._forget(removed)
        self.removals += len(removed)

    def remove_settled(self, sequences: Iterable[int]) -> None:
        """Remove messages that no consumer wants any more (work-queue and interest retention)."""
        self._write_rows()
        for first, last in runs(sequences):
            if last - first < _FEW or not self._remove_alike(first, last):
                self._forget(self.table.remove_range(first, last))

    def remove(self, sequences: Iterable[int]) -> int:
        """Remove messages whoever may still want them; return how many there were."""
        self._write_rows()
        removed = self.table.remove(sequences)
        self._evict(removed)
        return len(removed)

    def remove_subject(self, subject: str) -> None:
        """Remove all messages of a subject."""
        self._write_rows()
        self._trim_subject(subject, 0)

    def purge(self, filter_subject: str, upto: int, keep: int) -> int:
        """Remove messages: of one filter or all, below a sequence or all, all but the newest ``keep`` (ADR-10).

        ``upto`` 0 means no bound by sequence, else messages with a lower sequence go. Returns the number
        removed.
        """
        self._write_rows()
        filter_subject = "" if filter_subject == ">" else filter_subject
        last = upto - 1 if upto > 0 else self.last
        if filter_subject in ("", ">") and not keep and last >= self.last:
            return self._purge_all(last)
        condition = subject_condition([filter_subject] if filter_subject else [])
        removed = self.table.remove_where(last, condition or ANY, keep)
        self._evict(sorted(removed))
        return len(removed)

    def _purge_all(self, last: int) -> int:
        """Empty the stream without looking at each message; sequences go on after ``last``."""
        count = self.msgs
        self.last, self.is_emptied = last, True
        self._db.execute(f"DELETE FROM {self.table.name}")
        self._db.execute("DELETE FROM subjects WHERE stream=?", (self.id,))
        self._deltas.clear()
        self._firsts.clear()
        self._known.clear()
        self.lasts.clear()
        self._forget_totals()
        self.msgs = self.bytes = 0
        self.first, self._oldest_ts = self.last + 1, None
        if self.is_timed:
            self.timers.clear()
        # At least one: to a consumer that counts what lies ahead, a jump of ``last`` is a removal.
        self.removals += max(count, 1)
        self.dirty = True
        return count
