"""What is missing from a range: an error, or noted and passed by (``failOnDataLoss``)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pelton.spark.errors import DataLossError

if TYPE_CHECKING:
    from pelton.api import CorruptMessageError
    from pelton.spark.read.ranges import SequenceRange

_log: Final = logging.getLogger("pelton.spark")


class DataLossPolicy:
    """Judges what is missing; ``fail``: whether it is an error."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def look(self, part: SequenceRange, position: int, first_seq: int) -> None:
        """Compare where reading has come with the stream's first sequence. Raises DataLossError.

        Who asked for what there is, from the front, is promised the front that is met: old messages go all the time.
        """
        if part.at_front and position == part.first:
            return
        if part.fails_on_loss and first_seq > position:
            self.lost(DataLossError(part.stream, position, min(first_seq - 1, part.last)))

    def lost(self, error: DataLossError) -> None:
        """Raise an error, or note it."""
        self._meet(error)

    def damaged(self, error: CorruptMessageError) -> None:
        """Raise an error, or note it."""
        self._meet(error)

    def _meet(self, error: Exception) -> None:
        if self._fail:
            raise error
        _log.warning("passed by: %s", error)
