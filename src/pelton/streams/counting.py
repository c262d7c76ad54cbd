"""The totals of one stream's counters inside a transaction; the arithmetic is in ``counters.py``.

A total is that of the subject's last message. It is read once per transaction and cached (``StreamState.totals``)
until anything is removed or flushed.
"""

from __future__ import annotations

from collections.abc import Callable

from pelton.api import api_error
from pelton.storage import intact
from pelton.streams.counters import Counted, CounterOrigin, Total, contributed, counted, total_of
from pelton.streams.reader import Reader
from pelton.streams.state import StreamState


class Counting:
    """The counters of a stream; ``flush`` applies its limits to what was appended."""

    def __init__(self, state: StreamState, reader: Reader, flush: Callable[[], None]) -> None:
        self._state = state
        self._reader = reader
        self._flush = flush

    def add(self, subject: str, hdr: bytes | None, increment: str) -> Counted:
        """Return the message to store for an increment, and keep its total; raises ApiError 10169, 10171, 10172."""
        return self._count_on(subject, counted(self._total(subject), hdr, increment))

    def add_sourced(self, subject: str, hdr: bytes, data: bytes, origin: CounterOrigin) -> Counted:
        """Return the message to store for a message of another counter, and keep its total; raises as `add`."""
        return self._count_on(subject, contributed(self._total(subject), hdr, data, origin))

    def _count_on(self, subject: str, after: Counted) -> Counted:
        if 0 <= self._state.config.max_msg_size < len(after.headers) + len(after.data):
            raise api_error("JSStreamMessageExceedsMaximumErr")
        self._state.totals[subject] = after.total
        return after

    def _total(self, subject: str) -> Total:
        config = self._state.config
        if config.max_msgs > 0 or config.max_bytes > 0:
            # These limits may remove a subject's last message, and its total with it.
            self._flush()
        return self._state.totals.get(subject) or self._last(subject)

    def _last(self, subject: str) -> Total:
        row = self._reader.last_row_of(subject)
        if row is None:
            return Total()
        if not intact(row):
            raise api_error("JSMessageCounterBrokenErr")
        return total_of(row.hdr, row.data)
