"""The duplicate window: message ids remembered for a time (``Nats-Msg-Id``).

Ids are stored as rows by sequence and looked up in memory. The memory is filled from the rows on first use, and from
newer rows whenever another process has published; ids older than the window are dropped from the front. A message that
is deleted or acknowledged keeps its id in the window.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from pelton.storage import Database, integer, text

_FORGET_EVERY: Final = 512


class _KnownId(msgspec.Struct, frozen=True, gc=False):
    """An id within the window, and the message that was stored under it."""

    seq: int
    ts: int
    msg_id: str


class DuplicateWindow:
    """The ids of one stream; ``window`` in nanoseconds."""

    def __init__(self, database: Database, stream: int, window: int) -> None:
        self._db = database
        self._stream = stream
        self.window = window
        self._loaded = 0
        self._stale = True
        self._ids: dict[str, int] = {}
        self._order: deque[_KnownId] = deque()
        self._fresh: list[tuple[int, int, int, str]] = []
        self._forgotten = 0

    def invalidate(self) -> None:
        """Mark the ids in memory as stale: other processes may have published."""
        self._stale = True

    def reset(self) -> None:
        """Forget everything after a rollback: the ids are read from the rows again."""
        self._loaded = 0
        self._stale = True
        self._forgotten = 0
        self._ids.clear()
        self._order.clear()
        self._fresh.clear()

    def find(self, msg_id: str, now: int) -> int | None:
        """Return the sequence stored under ``msg_id`` within the window, or None."""
        if self._stale:
            self._load(now)
        self._forget(now)
        return self._ids.get(msg_id)

    def last_id(self, seq: int) -> str:
        """Return the id of the message at the last sequence, even outside the window, or an empty text."""
        if self._fresh:
            _, last, _, msg_id = self._fresh[-1]
            if last == seq:
                return msg_id
        return str(self._db.value("SELECT id FROM ids WHERE stream=? AND seq=?", (self._stream, seq)) or "")

    def add(self, seq: int, now: int, msg_id: str) -> None:
        if self._stale:
            self._load(now)
        self._remember(seq, now, msg_id)
        self._fresh.append((self._stream, seq, now, msg_id))

    def flush(self) -> None:
        """Write new ids, and from time to time delete the rows of those that have left the window."""
        if self._fresh:
            self._db.executemany("INSERT INTO ids VALUES(?, ?, ?, ?)", self._fresh)
            self._fresh.clear()
        if self._forgotten and (len(self._order) < _FORGET_EVERY or self._forgotten % _FORGET_EVERY == 0):
            # The newest id stays, however old: a publisher may expect it (``Nats-Expected-Last-Msg-Id``).
            first = self._order[0].seq if self._order else self._loaded
            self._db.execute("DELETE FROM ids WHERE stream=? AND seq<?", (self._stream, first))
            self._forgotten = 0

    def _load(self, now: int) -> None:
        sql = "SELECT seq, ts, id FROM ids WHERE stream=? AND seq>? AND ts>? ORDER BY seq"
        for seq, ts, msg_id in self._db.execute(sql, (self._stream, self._loaded, now - self.window)):
            self._remember(integer(seq), integer(ts), text(msg_id))
        self._stale = False

    def _remember(self, seq: int, ts: int, msg_id: str) -> None:
        self._ids[msg_id] = seq
        self._order.append(_KnownId(seq, ts, msg_id))
        self._loaded = seq

    def _forget(self, now: int) -> None:
        limit = now - self.window
        order = self._order
        while order and order[0].ts <= limit:
            known = order.popleft()
            if self._ids.get(known.msg_id) == known.seq:
                del self._ids[known.msg_id]
            self._forgotten += 1
