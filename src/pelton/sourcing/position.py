"""The position of a source, as rows: the last sequence taken, and the parked messages.

A copy of the row is kept in memory while ``is_fresh``; a change is saved in the same transaction as the
messages that it describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pelton.storage import Database, column, integers, text

_LOAD: Final = (
    "SELECT id, origin, seq, parked, taken, active, stalled, problem FROM sourcing WHERE stream=? AND source=?"
)
_SAVE: Final = "UPDATE sourcing SET origin=?, seq=?, parked=?, taken=?, active=?, stalled=?, problem=? WHERE id=?"
_MAKE: Final = "INSERT INTO sourcing VALUES(NULL, ?, ?, ?, ?, 0, 0, 0, 0, '')"


class Position:
    """The position of the source ``key`` of the stream with row id ``stream``.

    ``origin`` is the row id of the stream that ``seq`` refers to, ``taken`` the last sequence that was actually taken,
    and ``active`` when; 0 for none. ``stalled``: the stream has no space for the next message. ``problem``: the error,
    as JSON, why a message cannot be taken, other than a lack of space.
    """

    is_fresh: bool
    id: int
    origin: int
    seq: int
    parked: int
    taken: int
    active: int
    stalled: bool
    problem: str

    def __init__(self, database: Database, stream: int, key: str) -> None:
        self._db = database
        self._stream = stream
        self.key = key
        self.is_fresh = False
        self.id = self.origin = self.seq = self.parked = self.taken = self.active = 0
        self.stalled = False
        self.problem = ""

    def load(self) -> bool:
        """Read the row if it may have changed; return whether there is one."""
        if self.is_fresh:
            return bool(self.id)
        row = self._db.execute(_LOAD, (self._stream, self.key)).fetchone()
        self.is_fresh = True
        if row is None:
            self.id = self.origin = self.seq = self.parked = self.taken = self.active = 0
            self.stalled, self.problem = False, ""
            return False
        *numbers, stalled, problem = row
        self.id, self.origin, self.seq, self.parked, self.taken, self.active = integers(numbers)
        self.stalled, self.problem = bool(stalled), text(problem)
        return True

    def begin(self, origin: int, seq: int) -> None:
        """Start after ``seq`` of an origin; forget the state of an earlier stream of its name."""
        if self.load():
            self.forget_parked()
            self.origin, self.seq, self.taken, self.stalled, self.problem = origin, seq, 0, False, ""
            self.save()
            return
        self._db.execute(_MAKE, (self._stream, self.key, origin, seq))
        self.is_fresh = False
        self.load()

    def save(self) -> None:
        state = (self.origin, self.seq, self.parked, self.taken, self.active, int(self.stalled), self.problem, self.id)
        self._db.execute(_SAVE, state)

    def took(self, sequences: Sequence[int], now: int) -> None:
        """Note that messages were taken."""
        self.taken = max(self.taken, *sequences)
        self.active = now

    # --- parked messages

    def park(self, subject: str, seq: int) -> None:
        self._db.execute("INSERT INTO parked VALUES(?, ?, ?)", (self.id, subject, seq))
        self.parked += 1

    def is_parked(self, subject: str) -> bool:
        """Whether a message is parked for a subject."""
        if not self.parked:
            return False
        sql = "SELECT 1 FROM parked WHERE source=? AND subject=? LIMIT 1"
        return self._db.value(sql, (self.id, subject)) is not None

    def parked_of(self, subject: str, limit: int) -> list[int]:
        """Return the sequences parked for a subject, in order."""
        sql = "SELECT seq FROM parked WHERE source=? AND subject=? ORDER BY seq LIMIT ?"
        return column(self._db.execute(sql, (self.id, subject, limit)))

    def parked_subjects(self) -> list[str]:
        sql = "SELECT DISTINCT subject FROM parked WHERE source=?"
        return [text(subject) for (subject,) in self._db.execute(sql, (self.id,)).fetchall()]

    def all_parked(self) -> list[int]:
        """Return all parked sequences."""
        return column(self._db.execute("SELECT seq FROM parked WHERE source=?", (self.id,)))

    def unpark(self, subject: str, seq: int) -> None:
        """Remove a message from the parked ones, if it is one."""
        self._db.execute("DELETE FROM parked WHERE source=? AND subject=? AND seq=?", (self.id, subject, seq))
        self.parked -= self._db.connection.changes()

    def forget_parked(self) -> None:
        if self.parked:
            self._db.execute("DELETE FROM parked WHERE source=?", (self.id,))
            self.parked = 0
