"""Errors that only Spark's reads and writes raise."""

from __future__ import annotations

from pelton.api import PeltonError


class DataLossError(PeltonError):
    """Messages of the range to read are gone: a limit or a purge removed them, or their stream was deleted.

    ``first`` and ``last`` are the missing sequences, as far as they are known.
    """

    stream: str
    first: int
    last: int

    def __init__(self, stream: str, first: int, last: int, why: str = "") -> None:
        self.stream, self.first, self.last = stream, first, last
        reason = (
            why or f"the sequences {first} to {last} are gone: limits or a purge removed them before they were read"
        )
        super().__init__(
            f"stream {stream!r}: {reason}. To continue without them, set failOnDataLoss=false; "
            "to lose none, keep messages longer or read sooner"
        )


class LateReplayError(PeltonError):
    """A batch is repeated after the stream's deduplication window has passed, so its rows could be stored twice."""

    stream: str
    writer: str
    batch: int

    def __init__(self, stream: str, writer: str, batch: int, begun: str, window_ns: int) -> None:
        self.stream, self.writer, self.batch = stream, writer, batch
        super().__init__(
            f"stream {stream!r}: batch {batch} of {writer} started at {begun} and was not finished, and the stream "
            f"remembers message ids for {window_ns / 1e9:g} s, so rows stored by then would be stored twice. Make its "
            "duplicate_window longer than a restart takes; this time set onLateReplay=write to store the batch again"
        )
