"""Removing messages from a stream: limits, settled messages, deletions and purges."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from pelton.api import StreamConfig
from pelton.storage import Removed, runs, subject_condition
from pelton.streams.reader import ANY, Reader
from pelton.streams.state import RollUp, StreamState

_CHUNK: Final = 4096
_FEW: Final = 8
# So many messages are removed by one step of many, and so many are looked at for them.
_AT_ONCE: Final = 128
_LOOKED_AT: Final = 4096
# A roll-up that replaces more messages, or has to look for them among more, removes them in portions of some steps.
_MOST_REPLACED: Final = 1024
_MOST_BETWEEN: Final = 1 << 16
_STEPS: Final = 8


class Remover:
    """Removes messages of one stream."""

    def __init__(self, state: StreamState, reader: Reader) -> None:
        self._state = state
        self._reader = reader

    # --- limits

    def trim(self, grown: Sequence[str], written: int) -> None:
        """Apply the limits; ``grown`` are the subjects that got messages, if there is a limit for each.

        ``written`` is the number of messages that were written just now.
        """
        config = self._state.config
        if config.max_msgs_per_subject == 1 and len(grown) >= _FEW:
            # For fewer, a statement for all does not pay.
            grown = self._replace(grown)
        fresh = self._state.last if written == 1 else 0
        for subject in grown:
            self.trim_subject(subject, config.max_msgs_per_subject, fresh)
        if config.discard == "new":
            # Lowering a limit below the current size removes nothing: only new messages are discarded.
            return
        while self._trim_front(config, _CHUNK):
            pass

    def shrink(self, config: StreamConfig, after: int, last: int) -> Iterator[int]:
        """Remove step by step what the limits of ``config`` do not allow; flush the stream first, and after each step.

        The limit per subject is applied to the messages from ``after`` to ``last``; yield where to go on with that.
        """
        while config.max_msgs_per_subject > 0 and after < last:
            after = self._trim_subjects(config.max_msgs_per_subject, after, last)
            yield after
        while config.discard == "old" and self._trim_front(config, _AT_ONCE):
            yield last

    def _trim_front(self, config: StreamConfig, most: int) -> bool:
        """Remove ``most`` of the oldest messages that are beyond the limits; return whether there were any."""
        state = self._state
        excess = state.msgs - config.max_msgs if config.max_msgs > 0 else 0
        if excess <= 0 and state.bytes > config.max_bytes > 0:
            excess = self._front_over(config.max_bytes, most)
        removed = state.table.remove_front(min(excess, most)) if excess > 0 else ()
        self._evict(removed)
        return bool(removed)

    def _trim_subjects(self, limit: int, after: int, last: int) -> int:
        """Remove some of the oldest messages of crowded subjects: to look for those of each would read all others."""
        state = self._state
        state.count_subjects()
        first = state.table.next_seq(after + 1)
        if first is None or first > last:
            return last
        upto, excess, doomed = min(first + _LOOKED_AT - 1, last), dict[str, int](), list[int]()
        found = state.subjects.in_crowded(first, upto, limit, _AT_ONCE)
        for seq, subject in found:
            row = state.subject_row(subject)
            left = excess.get(subject, row.msgs - limit)
            # If one is damaged, fewer are found than counted: the newest must not be removed in its place.
            if left > 0 and seq < row.last:
                excess[subject] = left - 1
                doomed.append(seq)
        self._evict(state.table.remove_each(doomed))
        return found[-1][0] if len(found) == _AT_ONCE else upto

    def trim_subject(self, subject: str, limit: int, fresh: int = 0) -> None:
        """Remove the oldest messages of a subject beyond ``limit``; ``fresh`` is one that is surely there."""
        state = self._state
        state.count_subjects()
        row = state.subject_row(subject)
        excess = row.msgs - limit
        if excess > 0:
            # If one is damaged, fewer are found than counted: the newest must not be removed in its place.
            upto = row.last - 1 if limit else row.last
            removed = state.table.remove_oldest_of(subject, row.first, upto, excess)
            self._evict(removed)
            first = row.first
            if limit == 1 and ((excess == 1 and row.last == fresh) or state.table.subject_of(row.last) == subject):
                first = row.last
            elif removed:
                first = removed[-1].seq + 1
            state.subjects.begin_with(subject, first, state.last)

    def _replace(self, subjects: Sequence[str]) -> Sequence[str]:
        """Remove at once the messages that were replaced one for one, and return the subjects left to trim."""
        exact = self._reader.pairs(subjects)
        if not exact:
            return subjects
        self._evict(self._state.table.remove_each(pair.first for pair in exact.values()))
        for subject, pair in exact.items():
            self._state.subjects.begin_with(subject, pair.last, self._state.last)
        return [subject for subject in subjects if subject not in exact]

    def _front_over(self, limit: int, most: int) -> int:
        """Return how many of the oldest messages to remove for ``bytes`` to meet the limit, ``most`` at most."""
        excess, count = self._state.bytes - limit, 0
        for one in self._state.table.oldest(most):
            if excess <= 0:
                break
            excess -= self._state.cost.size(one.subject, one.data, one.hdr)
            count += 1
        return count

    # --- accounting

    def _forget(self, removed: Sequence[Removed]) -> None:
        """Update the state for rows that were removed."""
        if not removed:
            return
        state = self._state
        state.dirty = True
        state.totals.clear()
        if state.is_watched:
            state.effects.removed += removed
        state.subjects.remove(removed)
        touched_first, lasts = False, state.lasts
        for one in removed:
            seq, subject = one.seq, one.subject
            state.bytes -= state.cost.size(len(subject.encode()), one.data, one.hdr)
            if lasts and lasts.get(subject) == seq:
                del lasts[subject]
            touched_first = touched_first or seq <= state.first
        was_gapless = touched_first and state.is_gapless
        state.msgs -= len(removed)
        if was_gapless and len(removed) == 1:
            state.first += 1
        elif touched_first:
            self._find_first()
        has_timers = state.has_timers
        if touched_first or has_timers:
            state.forget_oldest()
        if has_timers:
            state.timers.forget(removed, scheduled=state.config.allow_msg_schedules)

    def _find_first(self) -> None:
        state = self._state
        state.first = (state.table.next_seq(state.first) if state.msgs else None) or state.last + 1

    def _evict(self, removed: Sequence[Removed]) -> None:
        """Update the state for rows that were removed although consumers may not have seen them."""
        self._forget(removed)
        self._state.removals += len(removed)

    # --- removal

    def remove_settled(self, sequences: Collection[int], *, may_be_alike: bool = True) -> None:
        """Remove messages that no consumer wants any more (work-queue and interest retention).

        ``may_be_alike``: whether it is worth to look whether all of them have the same subject.
        """
        self._state.write_rows()
        found = runs(sequences)
        if len(found) >= _FEW and not may_be_alike:
            self._forget(self._state.table.remove_each(sequences))
            return
        for run in found:
            for first, last in self._state.subjects.ranges(*run):
                if not may_be_alike or last - first < _FEW or not self._remove_alike(first, last):
                    self._forget(self._state.table.remove_range(first, last))

    def _remove_alike(self, first: int, last: int) -> bool:
        """Remove a range at once if all its messages have one subject, and nothing needs to know which they were."""
        state = self._state
        if state.is_watched or state.lasts or state.has_timers:
            return False
        removed = state.table.remove_alike(first, last)
        if removed is None:
            return False
        subject, count, cost = removed.subject, removed.count, state.cost
        was_gapless = state.is_gapless
        state.msgs -= count
        state.bytes -= count * cost.size(len(subject.encode()), 0, -1)
        state.bytes -= removed.data + removed.hdr + removed.with_headers * cost.header
        state.subjects.remove_alike(subject, first, last, count)
        if first <= state.first:
            if was_gapless:
                state.first = last + 1
            else:
                self._find_first()
            state.forget_oldest()
        state.dirty = True
        return True

    def remove(self, sequences: Iterable[int]) -> int:
        """Remove messages, whether consumers still want them or not; return how many there were."""
        self._state.write_rows()
        removed = self._state.table.remove(sequences)
        self._evict(removed)
        return len(removed)

    def remove_subject(self, subject: str) -> None:
        self._state.write_rows()
        self.trim_subject(subject, 0)

    def remove_some(self, subject_filter: str, after: int, last: int) -> tuple[int, int]:
        """Remove some of the messages that match: the oldest of those after a sequence, and up to ``last``.

        Return how many were removed, and up to which sequence none is left.
        """
        state = self._state
        first = self._reader.next_possible(after + 1, subject_filter)
        if first is None or first > last:
            return 0, last
        upto = min(first + _LOOKED_AT - 1, last)
        condition = subject_condition([subject_filter]) or ANY
        removed = sorted(state.table.remove_oldest_where(first, upto, condition, _AT_ONCE), key=attrgetter("seq"))
        self._evict(removed)
        return len(removed), removed[-1].seq if len(removed) == _AT_ONCE else upto

    def pass_newest(self, subject_filter: str, last: int, keep: int) -> tuple[int, int]:
        """Pass the newest ``keep`` messages that match up to ``last``, or those among the newest that are looked at.

        Return the sequence before them, and how many are left to pass.
        """
        state = self._state
        state.write_rows()
        if subject_filter == ">" and state.is_gapless:
            return max(last - keep, 0), 0
        low = max(last - _LOOKED_AT, state.first - 1)
        if low >= last:
            return 0, 0
        condition = subject_condition([subject_filter]) or ANY
        number, first = state.table.newest_where(low + 1, last, condition, keep)
        return (first - 1, 0) if number == keep else (low, keep - number)

    def roll_up(self, subject: str, seq: int, *, everything: bool) -> None:
        """Remove what the last message replaces, or leave that to `roll_on` if it is much; all rows are written."""
        state = self._state
        if everything:
            state.effects.rolled_up[">"], state.rolling = 0, ()
            if state.msgs <= _MOST_REPLACED or state.is_watched or state.has_timers:
                self._evict(state.table.remove_range(0, seq - 1))
            else:
                self._remove_others(seq)
            return
        state.effects.rolled_up[subject] = 0
        row = state.subject_row(subject)
        replaced = row.msgs - 1
        is_much = replaced > _MOST_REPLACED or (replaced > 1 and seq - row.first > _MOST_BETWEEN)
        if not is_much or state.is_watched or state.is_trimmed:
            self.trim_subject(subject, 1)
        elif row.msgs == state.msgs and not state.has_timers:
            self._remove_others(seq)
        else:
            others = [each for each in state.rolling if each.subject != subject]
            state.rolling, state.dirty = (*others, RollUp(subject, row.first - 1, seq)), True

    def roll_on(self) -> None:
        """Remove a portion of what a roll-up has left."""
        state = self._state
        (subject, after, before), *others = state.rolling
        state.write_rows()
        for _ in range(_STEPS):
            if after >= before - 1:
                break
            _, after = self.remove_some(subject, after, before - 1)
        state.effects.rolled_up[subject] = after
        state.dirty = True
        if after < before - 1:
            state.rolling = (RollUp(subject, after, before), *others)
            return
        state.rolling = tuple(others)
        state.count_subjects()
        state.subjects.begin_with(subject, before, state.last)

    def _remove_others(self, seq: int) -> None:
        """Remove all messages but the last, without reading each."""
        state, row = self._state, self._state.table.get(seq)
        if row is None:
            return
        self.remove_all(state.last)
        state.table.insert([row], packed=state.config.compression != "none")
        state.msgs, state.bytes, state.first = 1, state.size_of(row.subject, row.hdr, row.data), seq
        state.subjects.upto = seq - 1
        state.subjects.add_one(row.subject, seq)

    def remove_all(self, last: int) -> int:
        """Empty the stream without reading each message; sequences continue after ``last``. Return how many it had."""
        state = self._state
        state.write_rows()
        count = state.msgs
        state.last, state.effects.emptied = last, True
        state.db.execute(f"DELETE FROM {state.table.name}")
        state.forget_subjects()
        state.rolling = ()
        state.msgs = state.bytes = 0
        state.first = state.last + 1
        state.forget_oldest()
        if state.is_timed:
            state.timers.clear()
        # At least one: for the pending count of a consumer, a jump of ``last`` is a removal.
        state.removals += max(count, 1)
        state.dirty = True
        return count
