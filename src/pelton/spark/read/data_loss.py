"""Messages missing from a range: an error, or logged and skipped (``failOnDataLoss``)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pelton.spark.errors import DataLossError

if TYPE_CHECKING:
    from pelton.api import CorruptMessageError
    from pelton.spark.read.ranges import SequenceRange

_log: Final = logging.getLogger("pelton.spark")


class DataLossPolicy:
    """Raises the errors of missing and corrupted messages (``fail``), or logs them and continues."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def check(self, part: SequenceRange, position: int, first_seq: int) -> None:
        """Compare the position of a read with the stream's first sequence. Raises DataLossError.

        A range that begins at the front of its stream takes the front at the time it is read: old messages expire
        all the time.
        """
        if part.at_front and position == part.first:
            return
        if part.fails_on_loss and first_seq > position:
            self.report(DataLossError(part.stream, position, min(first_seq - 1, part.last)))

    def report(self, error: DataLossError | CorruptMessageError) -> None:
        """Raise an error, or log it."""
        if self._fail:
            raise error
        _log.warning("skipped: %s", error)
