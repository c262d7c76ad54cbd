"""The deadlines of a stream's messages: rows, of which the nearest is cached.

- ``timers``: when a message expires by its own TTL; :data:`NEVER` for one that not even ``max_age`` removes. Written
  with the messages, once per group.
- ``schedules``: for a subject that holds a schedule, the message that defines it, and when it fires next.

A row is removed with its message. The cached deadline may be too early, never too late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from pelton.api.times import NEVER
from pelton.storage import Database, Removed, column, decoded, integer


class Firing(msgspec.Struct, frozen=True):
    """A schedule: the message that holds it, and when it fires."""

    seq: int
    subject: str
    due: int


class Aged(msgspec.Struct, frozen=True):
    """A message that ages, and when it was stored."""

    seq: int
    ts: int


_NEAREST: Final = (
    "SELECT min(due) FROM (SELECT min(due) AS due FROM timers WHERE stream=?1 "
    "UNION ALL SELECT min(due) FROM schedules WHERE stream=?1)"
)
# In the order of sequences, as nats-server removes what expired while it was away; in portions, as sorting costs.
_EXPIRED: Final = (
    "SELECT seq FROM (SELECT seq FROM timers WHERE stream=? AND due<=? ORDER BY due, seq LIMIT 4096) "
    "ORDER BY seq LIMIT ?+0"
)
_NEAREST_OF_EACH: Final = (
    "WITH RECURSIVE t(id) AS (SELECT min(stream) FROM {0} UNION ALL "
    "SELECT (SELECT min(stream) FROM {0} WHERE stream>id) FROM t WHERE id NOT NULL) "
    "SELECT id, (SELECT min(due) FROM {0} WHERE stream=id) FROM t WHERE id NOT NULL"
)


def nearest_deadlines(database: Database) -> Iterator[tuple[int, int]]:
    """Return streams that have deadlines or schedules by row id, each with the first; one may come twice."""
    for table in ("timers", "schedules"):
        for row_id, due in database.execute(_NEAREST_OF_EACH.format(table)).fetchall():
            yield integer(row_id), integer(due)


class Timers:
    """The deadlines of the stream with row id ``stream``."""

    def __init__(self, database: Database, stream: int) -> None:
        self._db = database
        self._stream = stream
        # Deadlines to write.
        self.fresh: list[tuple[int, int, int]] = []
        self._nearest: int | None = None
        # Known while the nearest deadline is: some messages have one that never comes.
        self._has_any = False
        # Messages before this one are never removed because of their age.
        self._ageless = 0

    def invalidate(self) -> None:
        """Forget the cached deadline: other processes may have written."""
        self._nearest = None

    def reset(self) -> None:
        """Forget everything that was not committed."""
        self.fresh.clear()
        self._nearest = None
        self._ageless = 0

    def flush(self) -> None:
        """Write the deadlines that were added."""
        if self.fresh:
            self._db.executemany("INSERT INTO timers VALUES(?, ?, ?)", self.fresh)
            self.fresh.clear()

    # --- look-ups

    def nearest(self) -> int:
        """Return the first deadline, or an earlier time; :data:`NEVER` if there is none."""
        if self._nearest is None:
            self.flush()
            found = self._db.value(_NEAREST, (self._stream,))
            self._nearest = NEVER if found is None else integer(found)
            self._has_any = found is not None
        return self._nearest

    def has_any(self) -> bool:
        """Whether any message has, or may have had, a deadline or a schedule."""
        self.nearest()
        return self._has_any

    def met(self) -> None:
        """Forget the cached deadline: everything due was applied."""
        self._nearest = None

    def expired(self, now: int, limit: int) -> list[int]:
        """Return the sequences of expired messages, at most ``limit``: the lowest, unless very many are."""
        self.flush()
        return column(self._db.execute(_EXPIRED, (self._stream, min(now, NEVER - 1), limit)))

    def oldest(self, table: str, last: int) -> Aged | None:
        """Return the oldest message up to ``last`` that ages."""
        found = self.ageing(table, 1)
        self._ageless = found[0].seq if found else last + 1
        return found[0] if found else None

    def ageing(self, table: str, limit: int) -> list[Aged]:
        """Return the oldest messages that age, at most ``limit``."""
        self.flush()
        sql = (
            f"SELECT seq, ts FROM {table} m WHERE seq>=? AND NOT EXISTS(SELECT 1 FROM timers t "
            f"WHERE t.stream=? AND t.seq=m.seq AND t.due={NEVER}) ORDER BY seq LIMIT ?+0"
        )
        return decoded(Aged, self._db.execute(sql, (self._ageless, self._stream, limit)).fetchall())

    def due_of(self, seq: int) -> int | None:
        """Return when a message expires by its own TTL; None without one."""
        found = self._db.value("SELECT due FROM timers WHERE stream=? AND seq=?", (self._stream, seq))
        return None if found is None else integer(found)

    def fired(self, now: int) -> list[Firing]:
        """Return the schedules that are due, in the order in which they were stored."""
        sql = "SELECT seq, subject, due FROM schedules WHERE stream=? AND due<=? ORDER BY seq"
        return decoded(Firing, self._db.execute(sql, (self._stream, now)).fetchall())

    def schedule(self, subject: str) -> Firing | None:
        sql = "SELECT seq, subject, due FROM schedules WHERE stream=? AND subject=?"
        row = self._db.execute(sql, (self._stream, subject)).fetchone()
        return None if row is None else Firing(*row)

    # --- changes

    def add(self, seq: int, due: int) -> None:
        """Let a message expire at ``due``."""
        self.fresh.append((self._stream, seq, due))
        self._earlier(due)

    def put(self, firing: Firing) -> None:
        """Set the schedule of a subject, replacing the one it held."""
        row = (self._stream, firing.subject, firing.seq, firing.due)
        self._db.execute("INSERT OR REPLACE INTO schedules VALUES(?, ?, ?, ?)", row)
        self._earlier(firing.due)

    def put_all(self, firings: Sequence[Firing]) -> None:
        """Set the schedules of many subjects."""
        rows = [(self._stream, firing.subject, firing.seq, firing.due) for firing in firings]
        self._db.executemany("INSERT OR REPLACE INTO schedules VALUES(?, ?, ?, ?)", rows)
        self._earlier(min(firing.due for firing in firings))

    def stop_all(self, subjects: Sequence[str]) -> None:
        if subjects and self.has_any():
            listed = msgspec.json.encode(subjects).decode()
            sql = "DELETE FROM schedules WHERE stream=? AND subject IN (SELECT value FROM json_each(?))"
            self._db.execute(sql, (self._stream, listed))

    def stop(self, subject: str) -> None:
        if self.has_any():
            self._db.execute("DELETE FROM schedules WHERE stream=? AND subject=?", (self._stream, subject))

    def drop(self, sequences: Sequence[int]) -> None:
        """Remove the expiry of messages."""
        rows = [(self._stream, seq) for seq in sequences]
        self._db.executemany("DELETE FROM timers WHERE stream=? AND seq=?", rows)

    def forget(self, removed: Sequence[Removed], *, scheduled: bool) -> None:
        """Remove the deadlines of removed messages, which may have been schedules if ``scheduled``."""
        self.flush()
        self.drop([one.seq for one in removed])
        if not scheduled:
            return
        held = [(self._stream, one.subject, one.seq) for one in removed]
        self._db.executemany("DELETE FROM schedules WHERE stream=? AND subject=? AND seq=?", held)

    def clear(self) -> None:
        """Remove all deadlines: the stream is empty."""
        self.fresh.clear()
        self._db.execute("DELETE FROM timers WHERE stream=?", (self._stream,))
        self._db.execute("DELETE FROM schedules WHERE stream=?", (self._stream,))
        self._nearest = None

    def _earlier(self, due: int) -> None:
        self._has_any = True
        if self._nearest is not None and due < self._nearest:
            self._nearest = due
