"""What a read into Arrow selects, and how rows and messages become its batches. No input, no output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pelton.api import StoredMessage
from pelton.api.backend import RowPortion
from pelton.columns.arrow_batches import BatchBuilder, MessageColumns, columns_of_messages, columns_of_rows
from pelton.columns.decoder import Decode
from pelton.subjects import compile_filter

_FIRST_NS: Final = -(1 << 63)
_LAST_NS: Final = (1 << 63) - 1


class ReadWindow(NamedTuple):
    """The messages to read: sequences ``first`` to ``last``, times from ``from_ns`` on and before ``before_ns``."""

    first: int
    last: int
    from_ns: int = _FIRST_NS
    before_ns: int = _LAST_NS

    @property
    def has_times(self) -> bool:
        """Whether times bound it."""
        return self.from_ns != _FIRST_NS or self.before_ns != _LAST_NS


class ColumnRead:
    """Makes the batches of one read. ``filters``: none reads every subject."""

    def __init__(
        self, stream: str, schema: pa.Schema, decode: Decode | None, window: ReadWindow, filters: Sequence[str]
    ) -> None:
        self.schema = schema
        self.window = window
        self.filters = filters
        self._builder = BatchBuilder(stream, schema, decode)
        self._tests = [compile_filter(text) for text in filters]

    def reader(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        """Return batches of this read as what Arrow's libraries read."""
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def of_rows(self, found: RowPortion) -> pa.RecordBatch | None:
        """Return the batch of a portion, which has the right subjects; None without messages."""
        return self._batch(columns_of_rows(found)) if found.messages else None

    def of_messages(self, messages: Sequence[StoredMessage]) -> pa.RecordBatch | None:
        """Return the batch of messages, of any subjects and beyond the last sequence; None if none is left."""
        last, tests = self.window.last, self._tests
        wanted = [
            message
            for message in messages
            if message.seq <= last and (not tests or any(test(message.subject) for test in tests))
        ]
        return self._batch(columns_of_messages(wanted)) if wanted else None

    def _batch(self, columns: MessageColumns) -> pa.RecordBatch | None:
        batch = self._builder.of(columns)
        if not self.window.has_times:
            return batch
        # Clocks can be set back, so sequences alone do not bound times.
        kept = (columns.time_ns >= self.window.from_ns) & (columns.time_ns < self.window.before_ns)
        return batch if np.all(kept) else batch.filter(pa.array(kept)) if np.any(kept) else None
