"""The messages of a stream as they lie in the store, and what can be asked of them.

A :class:`StoredMessages` keeps a copy of the small rows (counts, bounds) and the rows that the open transaction has
appended and not written yet; whatever reads message rows writes those first. When another process has written
(``stale``) the copy is read again. What changes a stream is in ``log.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pelton.api import Outgoing, StreamConfig
from pelton.api.config import Storage
from pelton.storage import Condition, Database, LeanReads, MessageTable, Removed, Row, intact, subject_condition
from pelton.streams.dedupe import DuplicateWindow
from pelton.streams.timers import Timers
from pelton.streams.wishes import NEVER
from pelton.subjects import Draw, has_wildcard

ANY: Final = Condition("1", ())
_UPSERT_SUBJECT: Final = (
    "INSERT INTO subjects VALUES(?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET "
    "first=iif(?6, excluded.first, first), last=max(last, excluded.last), msgs=msgs+excluded.msgs"
)
_FEW: Final = 4
_KNOWN_LIMIT: Final = 50_000
_LOAD_STATE: Final = "SELECT msgs, bytes, first, last, last_ts, removals FROM stream_state WHERE id=?"


class Cost(NamedTuple):
    """The bytes that a message counts for beside its own: for itself, and for having headers."""

    message: int
    header: int

    def size(self, subject: int, data: int, hdr: int) -> int:
        """Return what a message with parts of these lengths counts for; ``hdr`` -1 for no header block."""
        return self.message + subject + data + (self.header + hdr if hdr >= 0 else 0)


# As NATS's two kinds of store count; how a message really lies in the file is another matter.
COSTS: Final = {"file": Cost(30, 4), "memory": Cost(16, 0)}


class StoredMessages:
    """What the stream with row id ``stream`` holds."""

    def __init__(self, database: Database, stream: int, config: StreamConfig, created: int) -> None:
        self._db = database
        self.id = stream
        self.name = config.name
        self.created = created
        self.table = MessageTable(database, stream)
        self.lean = LeanReads(database, stream)
        self.ids = DuplicateWindow(database, stream, config.duplicate_window)
        self.timers = Timers(database, stream)
        self.stale = True
        self.dirty = False
        self.msgs = self.bytes = self.last = self.last_ts = self.removals = 0
        self.first = 1
        self._rows: list[Row] = []
        self._deltas: dict[str, list[int]] = {}
        # Subjects of the open transaction that begin later now.
        self._firsts: dict[str, int] = {}
        self._known: dict[str, list[int]] = {}
        self._oldest_ts: int | None = None
        # What this transaction says to others: republished messages, advisories; told when it commits.
        self.outbox: list[Outgoing] = []
        # Which subjects got messages, and how many removals there had been, since somebody was last told.
        self.arrived: set[str] = set()
        self.told_removals = 0
        # What was rolled up since consumers were told: subjects, and an empty text for all of them.
        self.rolled: set[str] = set()
        # Where streams take from one another (``sourcing``): called when messages were written, before limits are
        # applied; what was removed since somebody looked, None where nobody does; whether all was.
        self.on_stored: Callable[[], None] | None = None
        self.gone: list[Removed] | None = None
        self.is_emptied = False
        # Whether anybody wants to be delivered a subject; None where it is stored in any case.
        self.is_wanted: Callable[[str], bool] | None = None
        # Refuses a message where all streams together have no room for its bytes; None where there is no such limit.
        self.quota: Callable[[Storage, int], None] | None = None
        # The last sequences of republished subjects, exact while they are here (``mappings.py``).
        self.lasts: dict[str, int] = {}
        # Whether anybody would get what is said under a subject, or any subject of a filter; the owner knows.
        self.is_heard: Callable[[str], bool] = lambda subject: True
        self.is_any_heard: Callable[[str], bool] = lambda subjects: True
        # Chance, for transforms that ask for it.
        self.draw: Draw = lambda below: 0
        self.configure(config)

    def configure(self, config: StreamConfig) -> None:
        """Take a (changed) configuration."""
        self.config = config
        self.cost = COSTS[config.storage]
        self.ids.window = config.duplicate_window
        # Whether single messages have deadlines, and whether time does anything to the stream at all.
        self.is_timed = config.allow_msg_ttl or config.allow_msg_schedules
        self._ages = self.is_timed or config.max_age > 0
        # Whether time makes messages that others wait for, so that somebody has to look at the clock for them.
        self.is_ticking = config.allow_msg_schedules or config.subject_delete_marker_ttl > 0
        # Whether one row, its time, and the configuration are all that a read of one message goes by.
        self.is_lean = config.allow_direct and not self.is_timed

    @property
    def has_news(self) -> bool:
        """Whether messages came or went since somebody was last told."""
        return bool(self.arrived) or self.removals != self.told_removals

    def load(self) -> None:
        """Read the small rows again where another process may have changed them."""
        row = self._db.execute(_LOAD_STATE, (self.id,)).fetchone()
        assert row is not None, f"stream {self.name} has no state row"
        self.msgs, self.bytes, self.first, self.last, self.last_ts, self.removals = (int(str(v)) for v in row)
        # Of what others have done, others tell.
        self.told_removals = self.removals
        self._known.clear()
        self.lasts.clear()
        self._oldest_ts = None
        self.ids.invalidate()
        self.timers.invalidate()
        self.stale = False

    def reset(self) -> None:
        """Forget everything that was not committed."""
        self._rows.clear()
        self._deltas.clear()
        self._firsts.clear()
        self.arrived.clear()
        self.rolled.clear()
        self.outbox.clear()
        if self.gone is not None:
            self.gone.clear()
        self.is_emptied = False
        self.ids.reset()
        self.timers.reset()
        self.dirty = False
        self.stale = True

    def _write_rows(self) -> None:
        if self._rows:
            self.table.insert(self._rows, packed=self.config.compression != "none")
            if self.msgs == len(self._rows):
                self.first = self._rows[0][0]
            self._rows.clear()

    # --- time

    def next_deadline(self) -> int:
        """Return when time next does something to the stream, or an earlier time; ``NEVER`` if nothing ever."""
        due = self.timers.nearest() if self.is_timed else NEVER
        if self.config.max_age > 0 and (oldest := self.oldest_ts()) is not None:
            due = min(due, oldest + self.config.max_age)
        return due

    def is_overdue(self, now: int) -> bool:
        """Whether something should have happened to the stream by now, or may have to."""
        return self._ages and self.next_deadline() <= now

    def oldest_ts(self) -> int | None:
        """Return the time of the oldest message that the stream's age may remove."""
        if self._oldest_ts is None and self.msgs:
            self._write_rows()
            self._oldest_ts = self.timers.oldest(self.table.name, self.last) if self.is_timed else self._first_time()
        return self._oldest_ts

    def _first_time(self) -> int | None:
        return self.table.time_of(self.first)

    def is_schedule(self, subject: str) -> bool | None:
        """Whether a subject holds a schedule; None when it holds no message."""
        if self.subject_row(subject)[2] <= 0:
            return None
        return self.timers.schedule(subject) is not None

    def size_of(self, subject: str, hdr: bytes | None, data: bytes) -> int:
        """Return the bytes that a message counts for."""
        return self.cost.size(len(subject.encode()), len(data), -1 if hdr is None else len(hdr))

    def _count_subject(self, subject: str, seq: int) -> None:
        delta = self._deltas.get(subject)
        if delta is None:
            self._deltas[subject] = [seq, seq, 1]
        else:
            delta[1] = seq
            delta[2] += 1
        known = self._known.get(subject)
        if known is not None:
            if known[2] == 0:
                known[0] = seq
            known[1] = seq
            known[2] += 1

    def _write_subjects(self) -> None:
        if not self._deltas:
            return
        firsts, known = self._firsts, self._known
        changed = [
            (self.id, subject, firsts.get(subject, d[0]), d[1], d[2], subject in firsts)
            for subject, d in self._deltas.items()
        ]
        self.arrived.update(self._deltas)
        self._deltas.clear()
        firsts.clear()
        if len(changed) == 1:
            self._db.execute(_UPSERT_SUBJECT, changed[0])
        else:
            self._db.executemany(_UPSERT_SUBJECT, changed)
        shrunk = (subject for _, subject, _, _, count, _ in changed if count <= 0)
        emptied = [(self.id, subject) for subject in shrunk if not ((row := known.get(subject)) and row[2] > 0)]
        if emptied:
            self._db.executemany("DELETE FROM subjects WHERE stream=? AND subject=? AND msgs<=0", emptied)
        if len(self._known) > _KNOWN_LIMIT:
            self._known.clear()

    # --- look-up

    def get(self, seq: int) -> Row | None:
        self._write_rows()
        return self.table.get(seq)

    def subject_row(self, subject: str) -> list[int]:
        """Return ``[first, last, msgs]`` of a literal subject (bounds, see the module's invariants)."""
        known = self._known.get(subject)
        if known is None:
            sql = "SELECT first, last, msgs FROM subjects WHERE stream=? AND subject=?"
            row = self._db.execute(sql, (self.id, subject)).fetchone()
            known = [0, 0, 0] if row is None else [int(str(value)) for value in row]
            delta = self._deltas.get(subject)
            if delta is not None:
                known = [known[0] or delta[0], max(known[1], delta[1]), known[2] + delta[2]]
            self._known[subject] = known
        return known

    def pairs(self, subjects: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return ``(first, last)`` of the subjects that hold just these two; of few subjects none, it does not pay."""
        rows = {subject: self.subject_row(subject) for subject in subjects} if len(subjects) >= _FEW else {}
        bounds = {subject: (row[0], row[1]) for subject, row in rows.items() if row[2] == 2 and row[0] < row[1]}
        # Both are bounds: that the messages lie there is to be seen.
        there = self.table.subjects_at(seq for pair in bounds.values() for seq in pair)
        return {
            subject: pair for subject, pair in bounds.items() if there.get(pair[0]) == subject == there.get(pair[1])
        }

    def begin_with(self, subject: str, first: int) -> None:
        """Note the sequence with which a subject begins now."""
        row = self.subject_row(subject)
        row[0] = self._firsts[subject] = first
        self._deltas.setdefault(subject, [first, row[1], 0])

    def last_row_of(self, subject_filter: str) -> Row | None:
        """Return the last message that matches a subject or filter."""
        self._write_rows()
        if subject_filter in (">", ""):
            return self.table.last_where(self.last, ANY)
        if has_wildcard(subject_filter):
            return self.table.last_where(self.last, subject_condition([subject_filter]) or ANY)
        _, upto, count = self.subject_row(subject_filter)
        if count <= 0:
            return None
        row = self.table.get(upto)
        if row is not None and (row[2] == subject_filter or not intact(row)):
            # A damaged one is still the last: one before it would be taken for what holds now.
            return row
        return self.table.last_where(upto, Condition("subject=?", (subject_filter,)))

    def last_rows(self, condition: Condition | None) -> list[Row]:
        """Return the last message of every subject that meets a condition, in order of sequence."""
        where = condition or ANY
        sql = f"SELECT subject FROM subjects WHERE stream=? AND msgs>0 AND {where.sql}"
        subjects = self._db.execute(sql, (self.id, *where.bindings)).fetchall()
        found = (self.last_row_of(str(subject)) for (subject,) in subjects)
        return sorted((row for row in found if row is not None), key=lambda row: row[0])

    def first_at(self, time: int) -> int:
        """Return the first sequence stored at or after ``time``, by bisection: times grow with sequences."""
        self._write_rows()
        low, high = self.first, self.last + 1
        while low < high:
            middle = (low + high) // 2
            seq = self.table.next_seq(middle)
            if seq is None or seq >= high:
                high = middle
                continue
            stored = self.table.time_of(seq)
            if stored is not None and stored < time:
                low = seq + 1
            else:
                high = middle
        return low

    def last_seq_of(self, subject_filter: str) -> int:
        """Return the sequence of the last message that matches, 0 if there is none."""
        row = self.last_row_of(subject_filter)
        return 0 if row is None else row[0]

    def known_id(self, msg_id: str, now: int) -> int | None:
        """Return the sequence stored under a message id within the duplicate window."""
        return self.ids.find(msg_id, now) if self.config.duplicate_window > 0 else None

    def last_id(self) -> str:
        """Return the message id of the last message, or an empty text."""
        return self.ids.last_id(self.last)

    def next_row_of(self, seq: int, subject_filter: str) -> Row | None:
        """Return the first message at or after ``seq`` that matches."""
        self._write_rows()
        first, last = seq, self.last
        if subject_filter and not has_wildcard(subject_filter):
            lowest, last, count = self.subject_row(subject_filter)
            if count <= 0:
                return None
            first = max(seq, lowest)
        found = self.table.scan(first, last, 1, subject_condition([subject_filter] if subject_filter else []))
        return found[0] if found else None

    def bounds_of(self, condition: Condition | None) -> tuple[int, int, int]:
        """Return bounds and number of the messages whose subject meets a condition: nothing must be unwritten."""
        if condition is None:
            return self.first, self.last, self.msgs
        sql = (
            "SELECT ifnull(min(first), 0), ifnull(max(last), 0), ifnull(sum(msgs), 0) FROM subjects "
            f"WHERE stream=? AND msgs>0 AND {condition.sql}"
        )
        first, last, total = self._db.execute(sql, (self.id, *condition.bindings)).fetchall()[0]
        return int(str(first)), int(str(last)), int(str(total))

    def subject_counts(self, subject_filter: str) -> dict[str, int]:
        """Return the number of messages of each subject that matches."""
        condition = subject_condition([subject_filter]) or ANY
        sql = f"SELECT subject, msgs FROM subjects WHERE stream=? AND msgs>0 AND {condition.sql} ORDER BY subject"
        rows = self._db.execute(sql, (self.id, *condition.bindings)).fetchall()
        return {str(subject): int(str(count)) for subject, count in rows}

    def rows(self, sql: str, *bindings: int | str) -> list[tuple[object, ...]]:
        """Return the rows of a question about what is known per subject."""
        return self._db.execute(sql, bindings).fetchall()

    def count_of(self, condition: Condition | None) -> int:
        """Return how many messages meet a condition about their subject; sums subjects, not messages."""
        if condition is None:
            return self.msgs
        sql = f"SELECT ifnull(sum(msgs), 0) FROM subjects WHERE stream=? AND {condition.sql}"
        return int(self._db.value(sql, (self.id, *condition.bindings)))

    @property
    def is_gapless(self) -> bool:
        return self.msgs == self.last - self.first + 1

    def num_subjects(self) -> int:
        return int(self._db.value("SELECT count(*) FROM subjects WHERE stream=? AND msgs>0", (self.id,)))

    def deleted(self) -> list[int]:
        """Return the sequences missing between first and last."""
        present = {int(str(row[0])) for row in self._db.execute(f"SELECT seq FROM {self.table.name}")}
        return [seq for seq in range(self.first, self.last + 1) if seq not in present]
