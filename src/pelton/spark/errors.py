"""What only a read by Spark can meet."""

from __future__ import annotations

from pelton.api import PeltonError


class DataLossError(PeltonError):
    """Messages that were to be read are gone: a limit or a purge removed them, or their stream was deleted.

    ``first`` and ``last`` are the range of sequences, as far as it is known.
    """

    def __init__(self, stream: str, first: int, last: int, why: str = "") -> None:
        self.stream, self.first, self.last = stream, first, last
        reason = (
            why or f"the sequences {first} to {last} are gone: limits or a purge removed them before they were read"
        )
        super().__init__(
            f"stream {stream!r}: {reason}. To go on without them, say failOnDataLoss=false; "
            "to lose none, keep messages longer or read sooner"
        )
