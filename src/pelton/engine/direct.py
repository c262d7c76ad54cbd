"""Direct get in the engine: a fast get if one row is enough, else a read in a snapshot.

Expired messages are removed when they are met, so a read that would meet one becomes a transaction.
"""

from __future__ import annotations

from typing import Final

from pelton.api import DirectGet, DirectReply, MsgGet, MsgGetReply
from pelton.engine.session import Session
from pelton.storage import MessageRow
from pelton.streams import DirectReads, StreamLog, stored_message, wire_message
from pelton.subjects import has_wildcard

# The number of reads in a row before other tasks on the event loop may run.
_IN_A_ROW: Final = 64


class DirectGets:
    """The direct gets of one open store."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._now = session.now
        self._reads = DirectReads(session.db.path)
        self._in_a_row = 0

    def is_greedy(self) -> bool:
        """Whether to let other tasks run now: reads never wait, so a loop of reads would block the event loop."""
        self._in_a_row += 1
        if self._in_a_row < _IN_A_ROW:
            return False
        self._in_a_row = 0
        return True

    def fast_get(self, stream: str, request: DirectGet) -> DirectReply | None:
        """Return the message of a sequence, or the last of a subject; None if it needs a read in a snapshot."""
        log = self._session.registry.streams.get(stream)
        if log is None or not log.config.allow_direct or request.batch or request.multi_last:
            return None
        if request.next_by_subj or request.start_time or request.up_to_seq or request.up_to_time:
            return None
        row = self._fast_row(log, request.seq, request.last_by_subj)
        return None if row is None else DirectReply([stored_message(row)])

    def fast_message(self, request: MsgGet) -> MsgGetReply | None:
        """Return the same for a request that any stream answers."""
        log = self._session.registry.streams.get(request.stream)
        if log is None or request.next_by_subj or request.start_time or request.no_hdr:
            return None
        row = self._fast_row(log, request.seq, request.last_by_subj)
        return None if row is None else MsgGetReply(message=wire_message(row))

    def _fast_row(self, log: StreamLog, seq: int, subject: str) -> MessageRow | None:
        if log.state.is_timed or bool(seq) == bool(subject):
            return None
        version = self._session.registry.version
        if seq:
            row = log.fast_get.by_seq(seq, version)
        elif has_wildcard(subject):
            return None
        else:
            seen, last = log.state.subjects.last_uncounted(subject)
            row = log.fast_get.last_of(subject, last, seen, version)
        age = log.config.max_age.ns
        if row is not None and 0 < age <= self._now() - log.state.counts_from(row.seq, row.ts):
            return None
        return row

    def look(self, stream: str, request: DirectGet) -> DirectReply | None:
        """Answer inside a snapshot; return None if expired messages must be removed first."""
        log = self._session.registry.direct(stream)
        if log.state.is_overdue(self._now()):
            return None
        # A batch counts as many single reads.
        self._in_a_row += request.batch or len(request.multi_last)
        return self._reads.read(log, request)

    def clean_and_look(self, stream: str, request: DirectGet) -> DirectReply:
        """Answer inside a write transaction."""
        log = self._session.registry.direct(stream)
        log.advance(self._now())
        log.appender.flush()
        # This transaction may still be rolled back, so its counts are not shared with other reads.
        return DirectReads(self._session.db.path).read(log, request)
