"""The line of a consumer with a limit per subject: which subject is next.

Design: A subject joins the end of the line when its first message is read, and again when a message of it is settled
and more wait behind it. So a subject with thousands of messages has one turn, as one with a single message has: what is
at the end of the line waits for each other subject once. With ranks, there is a line for each (``rank_bypass.py``), and
a subject stands in that of its next message.

Whoever is behind messages that were not read is not in line yet. So each pull first reads ahead, until
:data:`LONGEST` subjects stand in line: then the others join as these leave it, in the order of their oldest messages.
One pull reads :data:`READ_AT_MOST` messages, so that it does not take long; the next one goes on. Beyond the longest
line, it reads on only if a message with a rank is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pelton.consumers.log import ConsumerLog
from pelton.runtime import RankBypass
from pelton.storage import decoded, integer

LONGEST: Final = 512
READ_AT_MOST: Final = 16_384
_READ_AT_LEAST: Final = 256
_FIRST: Final = "SELECT turn FROM ready WHERE consumer=? AND rank=0 ORDER BY turn LIMIT 1"
_NEXT: Final = "SELECT seq, subject, rank FROM ready WHERE consumer=? ORDER BY rank DESC, turn LIMIT ?"
_NEXT_OF: Final = "SELECT seq, subject, rank FROM ready WHERE consumer=? AND rank=? ORDER BY turn LIMIT ?"


class ReadyRow(NamedTuple):
    """A row of ``ready``: a message that can be delivered, its subject without its rank, its rank."""

    seq: int
    subject: str
    rank: int


class SubjectLine:
    """The line of one consumer in a write transaction."""

    def __init__(self, consumer: ConsumerLog) -> None:
        self._c = consumer
        # How many of each rank were there, as far as anybody asked, when the rows were returned that are delivered now.
        self._waiting: dict[int, int] = {}

    # --- joining

    def read_ahead(self) -> None:
        """Let subjects join the line whose messages were not read yet."""
        c, budget = self._c, READ_AT_MOST
        room = self._room()
        while budget > 0 and c.cursor < c.log.state.last and (room > 0 or self._has_ranked_ahead()):
            limit = min(budget, max(room, _READ_AT_LEAST))
            found = c.log.table.scan_subjects(c.cursor + 1, c.log.state.last, limit, c.condition)
            room -= self.join(found)
            budget -= limit
            if len(found) < limit:
                # The caller passes the rest.
                return

    def join(self, messages: Sequence[tuple[int, str]]) -> int:
        """Read messages (sequence, subject); return how many subjects joined."""
        c = self._c
        if not messages:
            return 0
        rank_of = c.rank_of if c.ranks else _no_rank
        joined = c.claims.join([(seq, c.claim_of(subject), rank_of(subject)) for seq, subject in messages])
        c.cursor = messages[-1][0]
        c.ahead -= len(messages)
        c.waiting += len(messages)
        c.dirty = True
        return joined

    def _room(self) -> int:
        """Return how many more may join; turns that nobody has any more count as if they were still there."""
        first = self._c.db.value(_FIRST, (self._c.id,))
        return LONGEST if first is None else LONGEST - (self._c.claims.turns - integer(first) + 1)

    def _has_ranked_ahead(self) -> bool:
        c = self._c
        return any(c.log.reader.last_seq_of(f"{prefix}>") > c.cursor for prefix in c.ranks[1:])

    # --- being served

    def next(self, limit: int) -> list[ReadyRow]:
        """Return the messages that are next, in order."""
        c = self._c
        rows = decoded(ReadyRow, c.db.execute(_NEXT, (c.id, limit)).fetchall())
        if not rows or not rows[0].rank:
            self._waiting = {}
            return rows
        by_rank = {rows[0].rank: [row for row in rows if row.rank == rows[0].rank]}
        for rank in range(rows[0].rank):
            by_rank[rank] = decoded(ReadyRow, c.db.execute(_NEXT_OF, (c.id, rank, limit)).fetchall())
        self._waiting = {rank: len(of_rank) for rank, of_rank in by_rank.items()}
        bypass, left, order = RankBypass.of_number(c.bypassed), dict(self._waiting), list[ReadyRow]()
        while any(left.values()) and len(order) < limit:
            rank = bypass.next(left)
            bypass = bypass.after(rank, left)
            order.append(by_rank[rank][-left[rank]])
            left[rank] -= 1
        return order

    def served(self, rows: Sequence[ReadyRow]) -> None:
        """Note that the first of the messages of :meth:`next` were delivered."""
        c, left = self._c, self._waiting
        if not left:
            c.bypassed = 0
            return
        bypass = RankBypass.of_number(c.bypassed)
        for row in rows:
            bypass = bypass.after(row.rank, left)
            left[row.rank] -= 1
        c.bypassed = bypass.number


def _no_rank(_subject: str) -> int:
    return 0
