"""The commit log: each writer's last batch, as one message in the stream ``SPARK_COMMITS`` of the target's store.

In a store file, the message is part of the transaction that stores the batch, on the condition that no other process
has written to the log since it was read. So a batch is stored once, whatever fails, and whichever process repeats it.

A cluster has no such transaction. Tasks store rows as they come, each with a message id made of batch, partition and
row number, so that the stream drops the duplicates of a repeated batch within its ``duplicate_window``. The commit log
records when a batch began, and that it is done: a batch that is done is skipped, however late, and one that began
longer ago than the window is refused rather than stored twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import (
    ConfigError,
    MessageNotFoundError,
    Outgoing,
    WrongLastSequenceError,
    headers,
    parse_rfc3339,
    rfc3339,
)
from pelton.spark.errors import LateReplayError
from pelton.spark.options import COMMIT_STREAM
from pelton.spark.write.staging import file_name

if TYPE_CHECKING:
    from pelton.jet import Streams
    from pelton.spark.write.staging import BatchId

# The servers' clocks, each from the others: any may be the leader.
_CLOCKS_DIFFER_NS: Final = 2 * 10**9
_ROOT: Final = "$SPARK.commits"


class CommitRecord(msgspec.Struct, frozen=True):
    """A writer's last batch: its number, whether it is done, and the ``run`` (planning of the write) that began it."""

    number: int
    done: bool
    run: str = ""


class CommitEntry(msgspec.Struct, frozen=True):
    """A writer's record in the commit log, with its sequence and time; sequence 0 if there is none."""

    record: CommitRecord | None
    seq: int
    time_ns: int = 0

    def is_done(self, batch: BatchId) -> bool:
        """Whether the batch, or a later one, is written."""
        record = self.record
        return record is not None and (record.number > batch.number or (record.number == batch.number and record.done))


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(CommitRecord).decode


class CommitLog:
    """The commits of all writers to one ``target``: a stream, also that of a bucket or a queue."""

    def __init__(self, jet: Streams, target: str) -> None:
        self._jet = jet
        self._target = target

    async def prepare(self, replicas: int = 1) -> None:
        """Create the log's stream if it is missing."""
        config: dict[str, Any] = {"subjects": [f"{_ROOT}.>"], "max_msgs_per_subject": 1, "allow_direct": False}
        names = await self._jet.stream_names(f"{_ROOT}.{self._target}.x")
        if not names:
            await self._jet.create_stream(COMMIT_STREAM, num_replicas=replicas, **config)

    def _subject(self, batch: BatchId) -> str:
        return f"{_ROOT}.{self._target}.{file_name(batch.writer)}"

    async def lookup(self, batch: BatchId) -> CommitEntry:
        """Return the entry of a batch's writer."""
        stream = await self._jet.stream(COMMIT_STREAM)
        try:
            stored = await stream.get_last_message(self._subject(batch))
        except MessageNotFoundError:
            return CommitEntry(None, 0)
        return CommitEntry(_decode(stored.data), stored.seq, stored.time_ns)

    def message(self, batch: BatchId, entry: CommitEntry, *, done: bool, run: str = "") -> Outgoing:
        """Return the message that records a batch; it is refused if the log has changed since ``entry`` was read."""
        block = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(entry.seq)})
        return Outgoing(self._subject(batch), _encode(CommitRecord(batch.number, done, run)), block)

    # --- on a cluster

    async def begin(self, batch: BatchId, run: str, *, first: bool, window_ns: int, late: bool) -> bool:
        """Record that a batch is being written; False if it is written already. Raises LateReplayError.

        ``first``: this is the task's first attempt in the ``run``.
        """
        while True:
            entry = await self.lookup(batch)
            if entry.is_done(batch):
                return False
            if entry.record is not None and entry.record.number == batch.number:
                is_fresh = first and entry.record.run == run
                if not (is_fresh or late):
                    await self._check_time(entry, batch, window_ns)
                return True
            if await self._append(self.message(batch, entry, done=False, run=run)):
                return True

    async def _check_time(self, entry: CommitEntry, batch: BatchId, window_ns: int) -> None:
        # By the server's clock, which also expires message ids: a task's own may be wrong.
        server_time = (await (await self._jet.stream(COMMIT_STREAM)).info()).ts
        now = parse_rfc3339(server_time) if server_time else self._jet.runtime.clock.now()
        # If the server's clock was set back, nobody knows how long ago it began.
        if not -_CLOCKS_DIFFER_NS <= now - entry.time_ns < window_ns:
            raise LateReplayError(self._target, batch.writer, batch.number, rfc3339(entry.time_ns), window_ns)

    async def finish(self, batch: BatchId) -> None:
        """Record that a batch is written."""
        while True:
            entry = await self.lookup(batch)
            if entry.is_done(batch) or await self._append(self.message(batch, entry, done=True)):
                return

    async def _append(self, message: Outgoing) -> bool:
        try:
            await self._jet.backend.publish(message.subject, message.data, message.headers)
        except WrongLastSequenceError:
            return False
        return True


def check_duplicate_window(target: str, window_ns: int, *, late: bool) -> None:
    """Raise ConfigError for a stream that does not deduplicate messages."""
    if window_ns <= 0 and not late:
        raise ConfigError(
            f"stream {target!r} has no duplicate_window, so a retried task would store its rows twice: "
            "set one (two minutes or more), or set onLateReplay=write"
        )
