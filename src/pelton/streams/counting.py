"""Where the counters of one stream stand inside a transaction; what an increment makes of them is in ``counters.py``.

A total is that of the subject's last message. It is read once a transaction and kept in memory until anything is
removed or written out.
"""

from __future__ import annotations

from typing import Protocol

from pelton.api import StreamConfig, api_error
from pelton.storage import Row, intact
from pelton.streams.counters import Counted, Total, contributed, counted, total_of


class Stream(Protocol):
    """What is asked of the stream that counts."""

    config: StreamConfig

    def last_row_of(self, subject_filter: str) -> Row | None: ...
    def flush(self) -> None: ...


class Counting:
    """The counters of a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._totals: dict[str, Total] = {}

    def forget(self) -> None:
        """What was met may be gone, or has changed."""
        self._totals.clear()

    def add(self, subject: str, hdr: bytes | None, increment: str) -> Counted:
        """Return what is stored for an increment, and count on from there; raises ApiError 10169, 10171, 10172."""
        return self._count_on(subject, counted(self._total(subject), hdr, increment))

    def add_sourced(self, subject: str, hdr: bytes, data: bytes, origin: tuple[str, str]) -> Counted:
        """Return what is stored for a message of another counter, and count on from there; raises as `add`."""
        return self._count_on(subject, contributed(self._total(subject), hdr, data, origin))

    def _count_on(self, subject: str, after: Counted) -> Counted:
        if 0 <= self._stream.config.max_msg_size < len(after.headers) + len(after.data):
            raise api_error("JSStreamMessageExceedsMaximumErr")
        self._totals[subject] = after.total
        return after

    def _total(self, subject: str) -> Total:
        config = self._stream.config
        if config.max_msgs > 0 or config.max_bytes > 0:
            # What these limits remove takes the total of its subject along.
            self._stream.flush()
        return self._totals.get(subject) or self._last(subject)

    def _last(self, subject: str) -> Total:
        row = self._stream.last_row_of(subject)
        if row is None:
            return Total()
        if not intact(row):
            raise api_error("JSMessageCounterBrokenErr")
        return total_of(row[3], row[4])
