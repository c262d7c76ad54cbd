"""The bounds and counts of one stream's subjects: rows that count messages up to a sequence, and the messages after it.

Design: A row per subject that is written with each message is a page per subject in the log, which takes whole pages:
with 100,000 subjects, a batch of 1,000 messages wrote 600 of them. So the rows count messages up to ``upto`` only
(``stream_state.subjects_upto``). Those after it are *uncounted*: their own rows tell their subjects. A transaction that
finds many of them counts them all at once, in the order of subjects, so that each page is written once; a message that
is removed before leaves no trace. Whatever reads counts adds the uncounted messages: for a look-up, their subjects are
in memory (``_uncounted``), and only those that came since are read; a query has them beside the rows in one statement.

A stream with a limit per subject looks up the subject of every message: there, every flush leaves nothing uncounted.

Invariants, after a flush: ``msgs`` of a row equals a recount of its messages up to ``upto``, all of which are within
``first..last``; no row has no message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from pelton.api import Outgoing
from pelton.storage import Condition, Database, Removed, integer, integers, text

_UPSERT: Final = (
    "INSERT INTO subjects VALUES(?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET "
    "first=iif(?6, excluded.first, first), last=max(last, excluded.last), msgs=msgs+excluded.msgs"
)
_LOOK_UP: Final = "SELECT first, last, msgs FROM subjects WHERE stream=? AND subject=?"
_LAST_OF_EACH: Final = (
    "SELECT CAST(subject AS BLOB), last FROM json_each(?2) CROSS JOIN subjects ON stream=?1+0 AND subject=value "
    "WHERE msgs>0"
)
_DROP: Final = "DELETE FROM subjects WHERE stream=? AND subject=? AND msgs<=?"
_LESSEN: Final = "UPDATE subjects SET msgs=msgs-?3 WHERE stream=?1 AND subject=?2 AND msgs>?3"
_COUNT: Final = (
    "INSERT INTO subjects SELECT ?, subject, min(seq), max(seq), count(*) FROM {} WHERE seq>? GROUP BY subject "
    "ON CONFLICT DO UPDATE SET last=excluded.last, msgs=msgs+excluded.msgs"
)
_NEWER: Final = "SELECT CAST(subject AS BLOB), min(seq), max(seq), count(*) FROM {} WHERE seq>? GROUP BY subject"
_COUNTED: Final = "SELECT subject, first, last, msgs FROM subjects WHERE stream=? AND msgs>0 AND {}"
_UNCOUNTED: Final = "SELECT subject, seq AS first, seq AS last, 1 AS msgs FROM {} WHERE seq>? AND {}"
_TOGETHER: Final = (
    "SELECT subject, min(first) AS first, max(last) AS last, sum(msgs) AS msgs FROM ({}) GROUP BY subject"
)
_NUMBER: Final = "SELECT count(*) FROM subjects WHERE stream=? AND msgs>0 AND {}"
_NUMBER_NEW: Final = (
    "SELECT count(*) FROM (SELECT DISTINCT subject AS name FROM {} WHERE seq>? AND {}) "
    "WHERE NOT EXISTS(SELECT 1 FROM subjects WHERE stream=? AND subject=name AND msgs>0)"
)

# With more of them, counting is hardly cheaper for each, and holds up others for longer.
MOST_UNCOUNTED: Final = 16_384
# So many subjects of uncounted messages are kept in memory as they come; more of them are read when they are needed.
FEW_SUBJECTS: Final = 2_048
_KNOWN_LIMIT: Final = 50_000
_LARGEST: Final = (1 << 63) - 1
_CROWDED: Final = (
    "SELECT m.seq, CAST(m.subject AS BLOB) FROM {} m CROSS JOIN subjects s ON s.stream=? AND s.subject=m.subject "
    "WHERE m.seq BETWEEN ? AND ? AND s.msgs>? ORDER BY m.seq LIMIT ?+0"
)
_EVERY: Final = Condition("1", ())
# Pulls that wait for some subjects are woken for all if more have arrived: to look for theirs would cost more.
MANY: Final = 64


class StreamEffects:
    """Collected while a stream is written; the owner of the transaction takes them (``engine/session``)."""

    emptied: bool

    def __init__(self) -> None:
        # Subjects that got messages (not each of them, if they are many), and the number of removals, as of the last
        # announcement to others.
        self.arrived: set[str] = set()
        self.known_removals = 0
        # Filters of what was rolled up, and up to which sequence nothing is left of each.
        self.rolled_up: dict[str, int] = {}
        # Messages to republish, in the order in which they were stored.
        self.republished: list[Outgoing] = []
        # Removed messages, if a source or mirror needs them; and whether the stream was emptied at once.
        self.removed: list[Removed] = []
        self.emptied = False

    def clear(self) -> None:
        """Forget everything after a rollback."""
        self.arrived.clear()
        self.rolled_up.clear()
        self.republished.clear()
        self.take_removed()

    def take_removed(self) -> tuple[list[Removed], bool]:
        """Return what was removed since the last call, and whether the stream was emptied."""
        taken = self.removed, self.emptied
        self.removed, self.emptied = [], False
        return taken


class SubjectRow(msgspec.Struct, gc=False):
    """A subject: the bounds of its messages, which may be wider, and their number."""

    first: int
    last: int
    msgs: int


class SubjectQuery(msgspec.Struct, frozen=True):
    """A subquery with the columns ``subject``, ``first``, ``last`` and ``msgs``, and its bindings."""

    sql: str
    bindings: tuple[int | str, ...]


class SubjectRows:
    """The subjects of the stream with row id ``stream``, whose messages are in ``table``.

    Whoever reads has written the appended messages; ``last`` is the stream's last sequence.
    """

    upto: int

    def __init__(self, database: Database, stream: int, table: str, effects: StreamEffects) -> None:
        self._db = database
        self._stream = stream
        self._table = table
        self._effects = effects
        self.upto = 0
        self._is_limited = False
        # Whether messages of the open transaction stay uncounted when they are added.
        self._defers = True
        # What to change in rows (messages more or less); new first sequences of subjects.
        self._deltas: dict[str, SubjectRow] = {}
        self._firsts: dict[str, int] = {}
        # Subjects that were looked up, kept up to date.
        self._known: dict[str, SubjectRow] = {}
        # The subjects of the messages after ``upto`` and up to ``_seen``, if they are few or one was asked for.
        self._uncounted: dict[str, SubjectRow] | None = None
        self._seen = 0
        self._is_asked = False

    # --- transactions

    def configure(self, last: int, *, is_limited: bool, is_dirty: bool) -> None:
        """Apply a (changed) limit per subject; what the open transaction has buffered is written as it began."""
        self._is_limited = is_limited
        if not is_dirty:
            self._defers = not is_limited or self.upto < last

    def load(self, upto: int, last: int, *, only_grew: bool) -> None:
        """Forget what another process may have changed; ``only_grew``: since then, messages were only added."""
        if upto != self.upto or not only_grew:
            self._uncounted = None
        self._known.clear()
        self.upto = upto
        self._defers = not self._is_limited or upto < last

    def reset(self) -> None:
        """Forget everything that was not committed."""
        self._deltas.clear()
        self._firsts.clear()
        self._uncounted = None

    def clear(self, last: int) -> None:
        """Remove all subjects: the stream is empty."""
        self._db.execute("DELETE FROM subjects WHERE stream=?", (self._stream,))
        self._deltas.clear()
        self._firsts.clear()
        self._known.clear()
        self._uncounted = None
        self.upto = last

    def write(self) -> None:
        if not self._deltas:
            return
        self._effects.arrived.update(self._deltas)
        firsts, known, stream = self._firsts, self._known, self._stream
        lessened = self._write_removals() if self._defers else ()
        changed = [
            (stream, subject, firsts.get(subject, d.first), d.last, d.msgs, subject in firsts)
            for subject, d in self._deltas.items()
            if subject not in lessened
        ]
        self._deltas.clear()
        firsts.clear()
        self._run(_UPSERT, changed)
        emptied = [
            (stream, subject, 0)
            for _, subject, _, _, count, _ in changed
            if count <= 0 and (self._defers or not ((row := known.get(subject)) and row.msgs > 0))
        ]
        self._run(_DROP, emptied)
        if len(known) > _KNOWN_LIMIT:
            known.clear()

    def _write_removals(self) -> set[str]:
        """Write what was only removed, and return its subjects: a subject that is gone is a single change of a page."""
        gone = [
            (self._stream, subject, -delta.msgs)
            for subject, delta in self._deltas.items()
            if delta.msgs < 0 and subject not in self._firsts
        ]
        if len(gone) == 1:
            self._db.run(_LESSEN, gone[0])
            if not self._db.connection.changes():
                self._db.run(_DROP, gone[0])
        else:
            self._run(_DROP, gone)
            self._run(_LESSEN, gone)
        return {subject for _, subject, _ in gone}

    def _run(self, sql: str, rows: Sequence[tuple[int | str, ...]]) -> None:
        if len(rows) == 1:
            self._db.run(sql, rows[0])
        elif rows:
            self._db.run_many(sql, rows)

    def flushed(self, last: int) -> None:
        """Count the messages that wait for it, if they are many; everything else is written."""
        if not self._defers:
            self.upto = last
        elif self._is_limited or last - self.upto >= MOST_UNCOUNTED:
            self.count(last)
        self._defers = not self._is_limited

    def count(self, last: int) -> bool:
        """Count all messages now: a limit is applied to some of them, or there are many. Return whether any was not."""
        is_behind = self._defers and self.upto < last
        if is_behind:
            if self._uncounted is not None and self._seen == last and len(self._uncounted) <= FEW_SUBJECTS:
                rows = sorted((self._stream, name, r.first, r.last, r.msgs, 0) for name, r in self._uncounted.items())
                self._run(_UPSERT, rows)
            else:
                self._db.execute(_COUNT.format(self._table), (self._stream, self.upto))
            self.upto = self._seen = last
            self._uncounted, self._is_asked = {}, False
        return is_behind

    @property
    def has_all_adds_uncounted(self) -> bool:
        """Whether all that the open transaction has added is uncounted."""
        return self._defers

    # --- changes

    def add_one(self, subject: str, seq: int) -> None:
        """Do what :meth:`add_all` does, for one message."""
        if self._known:
            self._keep_known((subject,), seq)
        if not self._defers:
            _add_one(self._deltas, subject, seq)
            return
        if len(arrived := self._effects.arrived) <= MANY:
            arrived.add(subject)
        uncounted, before = self._uncounted, seq - 1
        if uncounted is None:
            if self.upto != before:
                return
            uncounted = self._uncounted = {}
            self._seen = before
        if self._seen == before:
            _add_one(uncounted, subject, seq)
            self._seen = seq
            if len(uncounted) > FEW_SUBJECTS and not self._is_asked:
                self._uncounted = None

    def add_all(self, subjects: Sequence[str], first: int) -> None:
        if not subjects:
            return
        if self._defers:
            self._note_arrived(subjects)
            self._add_uncounted(subjects, first)
        else:
            _add_all(self._deltas, subjects, first)
        if self._known:
            self._keep_known(subjects, first)

    def _note_arrived(self, subjects: Sequence[str]) -> None:
        arrived = self._effects.arrived
        for begin in range(0, len(subjects), 2 * MANY):
            # More than these mean the same as all.
            if len(arrived) > MANY:
                return
            arrived.update(subjects[begin : begin + 2 * MANY])

    def _add_uncounted(self, subjects: Sequence[str], first: int) -> None:
        if self._uncounted is None and self.upto == first - 1:
            self._uncounted, self._seen = {}, self.upto
        if self._uncounted is not None and self._seen == first - 1:
            _add_all(self._uncounted, subjects, first)
            self._seen += len(subjects)
            if len(self._uncounted) > FEW_SUBJECTS and not self._is_asked:
                self._uncounted = None

    def _keep_known(self, subjects: Sequence[str], first: int) -> None:
        for seq, subject in enumerate(subjects, first):
            if (row := self._known.get(subject)) is not None:
                if row.msgs == 0:
                    row.first = seq
                row.last = seq
                row.msgs += 1

    def add_spans(self, spans: Iterable[tuple[str, int, int, int]]) -> None:
        """Add many messages by subject: the first and last of each, and their number."""
        self._known.clear()
        if self._defers:
            # A span may have gaps that other subjects fill, and ``_uncounted`` is brought up to date when it is needed.
            self._effects.arrived.update(subject for subject, *_ in spans)
            return
        for subject, first, last, number in spans:
            delta = self._deltas.get(subject)
            if delta is None:
                self._deltas[subject] = SubjectRow(first, last, number)
            else:
                delta.last = last
                delta.msgs += number

    def remove(self, removed: Sequence[Removed]) -> None:
        """Count messages that were removed."""
        deltas, known, upto = self._deltas, self._known, self.upto if self._defers else _LARGEST
        for one in removed:
            seq, subject = one.seq, one.subject
            if seq > upto:
                self._forget_uncounted(subject, seq, 1)
            elif (delta := deltas.get(subject)) is not None:
                delta.msgs -= 1
            else:
                deltas[subject] = SubjectRow(seq, seq, -1)
            if (row := known.get(subject)) is not None:
                row.msgs -= 1

    def remove_alike(self, subject: str, first: int, last: int, number: int) -> None:
        """Count the removal of a range of messages of one subject, which is one of `ranges`."""
        if self._defers and first > self.upto:
            self._forget_uncounted(subject, last, number)
        else:
            self._deltas.setdefault(subject, SubjectRow(first, first, 0)).msgs -= number
        if subject in self._known:
            self._known[subject].msgs -= number

    def ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Return a range of sequences as ranges of which all messages are counted, or none."""
        if self._defers and first <= self.upto < last:
            yield first, self.upto
            first = self.upto + 1
        yield first, last

    def _forget_uncounted(self, subject: str, seq: int, number: int) -> None:
        self._effects.arrived.add(subject)
        if self._uncounted is not None and seq <= self._seen:
            row = self._uncounted.get(subject)
            # A subject that was damaged since is not among them.
            if row is not None:
                row.msgs -= number
                if row.msgs <= 0:
                    del self._uncounted[subject]

    def begin_with(self, subject: str, first: int, last: int) -> None:
        """Set the first sequence of a subject, after `count`."""
        row = self.row(subject, last)
        row.first = self._firsts[subject] = first
        self._deltas.setdefault(subject, SubjectRow(first, row.last, 0))

    def grown(self) -> list[str]:
        """Return the subjects that got messages in the open transaction, if there is a limit for each."""
        return [subject for subject, delta in self._deltas.items() if delta.msgs > 0]

    # --- reading

    def reads_messages(self, subject: str, last: int) -> bool:
        return self._defers and subject not in self._known and (self._uncounted is None or self._seen < last)

    def row(self, subject: str, last: int) -> SubjectRow:
        """Return the bounds and number of messages of a literal subject."""
        known = self._known.get(subject)
        if known is None:
            found = self._db.run(_LOOK_UP, (self._stream, subject)).fetchall()
            known = SubjectRow(*integers(found[0])) if found else SubjectRow(0, 0, 0)
            for more in (self._deltas.get(subject), self.newer(last).get(subject)):
                if more is not None:
                    known = SubjectRow(known.first or more.first, max(known.last, more.last), known.msgs + more.msgs)
            self._known[subject] = known
        return known

    def last_bounds(self, subjects: Collection[str], last: int) -> dict[str, int]:
        """Return bounds of the last sequences of those of many subjects that may have messages."""
        bounds = self.counted_lasts(subjects)
        for more in (self._deltas, self.newer(last)):
            if more:
                bounds |= {name: max(more[name].last, bounds.get(name, 0)) for name in subjects if name in more}
        return bounds

    def counted_lasts(self, subjects: Collection[str]) -> dict[str, int]:
        """Return the bounds of the last sequences of those of many subjects that have rows, in one statement."""
        if not subjects:
            return {}
        listed = msgspec.json.encode(subjects).decode()
        rows = self._db.run(_LAST_OF_EACH, (self._stream, listed)).fetchall()
        return {text(name): integer(seq) for name, seq in rows}

    def newer(self, last: int) -> dict[str, SubjectRow]:
        """Return the subjects of the uncounted messages."""
        if not self._defers or self.upto >= last:
            return {}
        if self._uncounted is None:
            self._uncounted, self._seen = {}, self.upto
        self._is_asked = True
        if self._seen < last:
            for name, *numbers in self._db.execute(_NEWER.format(self._table), (self._seen,)):
                subject, (low, high, number) = text(name), map(integer, numbers)
                row = self._uncounted.get(subject)
                if row is None:
                    self._uncounted[subject] = SubjectRow(low, high, number)
                else:
                    row.last = high
                    row.msgs += number
            self._seen = last
        return self._uncounted

    def last_uncounted(self, subject: str) -> tuple[int, int | None]:
        """Return up to which sequence the uncounted messages are known, and the last of a subject among them.

        Only outside of a transaction, after which nothing is buffered.
        """
        if self._uncounted is None:
            return -1, None
        row = self._uncounted.get(subject)
        return self._seen, None if row is None else row.last

    def number(self, last: int, condition: Condition | None = None) -> int:
        """Return how many subjects hold messages, and meet a condition."""
        where = condition or _EVERY
        counted = int(self._db.value(_NUMBER.format(where.sql), (self._stream, *where.bindings)))
        if self.upto >= last:
            return counted
        new = _NUMBER_NEW.format(self._table, where.sql)
        return counted + int(self._db.value(new, (self.upto, *where.bindings, self._stream)))

    def each(self, condition: Condition | None, last: int) -> SubjectQuery:
        query = self.parts(condition, last)
        return query if self.upto >= last else SubjectQuery(f"({_TOGETHER.format(query.sql)})", query.bindings)

    def in_crowded(self, first: int, last: int, limit: int, most: int) -> list[tuple[int, str]]:
        """Return the first messages of subjects with rows that say they have more than ``limit``, ``most`` of them."""
        bindings = (self._stream, first, last, limit, most)
        return [(integer(seq), text(name)) for seq, name in self._db.execute(_CROWDED.format(self._table), bindings)]

    def parts(self, condition: Condition | None, last: int) -> SubjectQuery:
        """Return a query for the same with several rows for some subjects, which is cheaper to sum up."""
        where = condition or _EVERY
        sql = _COUNTED.format(where.sql)
        bindings: tuple[int | str, ...] = (self._stream, *where.bindings)
        if self.upto < last:
            sql = f"{sql} UNION ALL {_UNCOUNTED.format(self._table, where.sql)}"
            bindings = (*bindings, self.upto, *where.bindings)
        return SubjectQuery(f"({sql})", bindings)


def _add_one(rows: dict[str, SubjectRow], subject: str, seq: int) -> None:
    row = rows.get(subject)
    if row is None:
        rows[subject] = SubjectRow(seq, seq, 1)
    else:
        row.last = seq
        row.msgs += 1


def _add_all(rows: dict[str, SubjectRow], subjects: Sequence[str], first: int) -> None:
    subject, number = subjects[0], len(subjects)
    if subject in rows and subjects.count(subject) == number:
        rows[subject].last = first + number - 1
        rows[subject].msgs += number
        return
    for seq, subject in enumerate(subjects, first):
        row = rows.get(subject)
        if row is None:
            rows[subject] = SubjectRow(seq, seq, 1)
        else:
            row.last = seq
            row.msgs += 1
