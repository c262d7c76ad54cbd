"""Direct get in the engine: a lean read where one row says all, else a proper look in a snapshot.

Messages past their age are removed by whoever meets them, so a read that would meet one becomes a transaction.
"""

from __future__ import annotations

from typing import Final

from pelton.api import DirectGet, DirectGetDisabledError, DirectReply
from pelton.engine.session import Session
from pelton.storage import MessageRow
from pelton.streams import DirectReads, StreamLog, stored_message
from pelton.subjects import has_wildcard

# How many reads may follow each other before others on the event loop get their turn.
_IN_A_ROW: Final = 64


class DirectGets:
    """The direct gets of one open store."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._now = session.now
        self._reads = DirectReads(session.db.path)
        self._in_a_row = 0

    def is_greedy(self) -> bool:
        """Whether it is time to let others run: a read waits for nothing, so a loop of them would never."""
        self._in_a_row += 1
        if self._in_a_row < _IN_A_ROW:
            return False
        self._in_a_row = 0
        return True

    def fast_get(self, stream: str, request: DirectGet) -> DirectReply | None:
        """Answer a get of one message by sequence, or of the last of a subject; None: look properly."""
        log = self._session.registry.streams.get(stream)
        if log is None or not log.has_fast_get or request.batch or request.multi_last or request.next_by_subj:
            return None
        row = self._fast_row(log, request)
        if row is None or 0 < log.config.max_age.ns <= self._now() - row.ts:
            return None
        return DirectReply([stored_message(row)])

    def _fast_row(self, log: StreamLog, request: DirectGet) -> MessageRow | None:
        seq, subject = request.seq, request.last_by_subj
        if request.start_time or request.up_to_seq or request.up_to_time:
            return None
        if seq:
            return None if subject else log.fast_get.by_seq(seq, self._session.registry.version)
        if not subject or has_wildcard(subject):
            return None
        return log.fast_get.last_of(subject, self._session.registry.version)

    def look(self, stream: str, request: DirectGet) -> DirectReply | None:
        """Answer inside a snapshot; None where messages past their age must be removed first."""
        log = self._readable(stream)
        if log.state.is_overdue(self._now()):
            return None
        # A whole batch is as much as many single reads.
        self._in_a_row += request.batch or len(request.multi_last)
        return self._reads.read(log, request)

    def clean_and_look(self, stream: str, request: DirectGet) -> DirectReply:
        """Answer inside a write transaction."""
        log = self._readable(stream)
        log.advance(self._now())
        log.flush()
        # This transaction may still be rolled back: what is counted in it holds for nobody else.
        return DirectReads(self._session.db.path).read(log, request)

    def _readable(self, stream: str) -> StreamLog:
        log = self._session.registry.stream(stream)
        if not log.config.allow_direct:
            raise DirectGetDisabledError(stream)
        return log
