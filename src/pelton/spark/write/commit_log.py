"""Which batches are written: one small message a writer in the stream ``SPARK_COMMITS`` of the same store or cluster.

Embedded it is stored in the transaction that stores the batch, on the condition that nobody has written it since it was
looked at; so a batch is stored once whatever fails, and whoever repeats it.

A cluster has no such transaction. Tasks store rows as they come, each with a message id made of its batch, partition
and store, so that what a repeated batch stores again is dropped while its stream remembers ids
(``duplicate_window``). The commit_log says here when a batch was begun, and that it is done: one that is done is passed
over, however late, and one that was begun longer ago than ids are remembered is refused rather than stored twice.
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
from pelton.spark.stream_names import COMMIT_STREAM
from pelton.spark.write.staging import file_name

if TYPE_CHECKING:
    from pelton.jet import Streams
    from pelton.spark.write.task_attempt import BatchId

_ROOT: Final = "$SPARK.commits"


class CommitRecord(msgspec.Struct, frozen=True):
    """The last batch of a writer: its number, whether it is done, and who (one planning of it) began it."""

    number: int
    done: bool
    run: str = ""


class CommitEntry(msgspec.Struct, frozen=True):
    """What the commit_log holds of a writer, and under which sequence and time; nothing under 0."""

    record: CommitRecord | None
    seq: int
    time_ns: int = 0

    def is_done(self, batch: BatchId) -> bool:
        """Whether a batch, or a later one, is written."""
        record = self.record
        return record is not None and (record.number > batch.number or (record.number == batch.number and record.done))


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(CommitRecord).decode


class CommitLog:
    """The entries of the writers to one ``target`` (a stream, also that of a bucket or a queue)."""

    def __init__(self, jet: Streams, target: str) -> None:
        self._jet = jet
        self._target = target

    async def prepare(self, replicas: int = 1) -> None:
        """Make the stream where it is missing."""
        config: dict[str, Any] = {"subjects": [f"{_ROOT}.>"], "max_msgs_per_subject": 1, "allow_direct": False}
        names = await self._jet.stream_names(f"{_ROOT}.{self._target}.x")
        if not names:
            await self._jet.create_stream(COMMIT_STREAM, num_replicas=replicas, **config)

    def _subject(self, batch: BatchId) -> str:
        return f"{_ROOT}.{self._target}.{file_name(batch.writer)}"

    async def look(self, batch: BatchId) -> CommitEntry:
        """Return what is known of a batch's writer."""
        stream = await self._jet.stream(COMMIT_STREAM)
        try:
            stored = await stream.get_last_message(self._subject(batch))
        except MessageNotFoundError:
            return CommitEntry(None, 0)
        return CommitEntry(_decode(stored.data), stored.seq, stored.time_ns)

    def message(self, batch: BatchId, entry: CommitEntry, *, done: bool, run: str = "") -> Outgoing:
        """Return the message that writes a batch down, if nobody has written since ``entry`` was looked at."""
        block = headers.encode({headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(entry.seq)})
        return self._subject(batch), _encode(CommitRecord(batch.number, done, run)), block

    # --- on a cluster

    async def begin(self, batch: BatchId, run: str, *, first: bool, window_ns: int, late: bool) -> bool:
        """Note that a batch is being written; False when it is written already. Raises LateReplayError.

        ``first``: this is a task's first try in the ``run``.
        """
        while True:
            entry = await self.look(batch)
            if entry.is_done(batch):
                return False
            if entry.record is not None and entry.record.number == batch.number:
                is_fresh = first and entry.record.run == run
                if not (is_fresh or late):
                    await self._check_time(entry, batch, window_ns)
                return True
            if await self._said(self.message(batch, entry, done=False, run=run)):
                return True

    async def _check_time(self, entry: CommitEntry, batch: BatchId, window_ns: int) -> None:
        # By the clock that forgets ids: a task's own may be set to anything.
        told = (await (await self._jet.stream(COMMIT_STREAM)).info()).ts
        now = parse_rfc3339(told) if told else self._jet.runtime.clock.now()
        if now - entry.time_ns >= window_ns:
            raise LateReplayError(self._target, batch.writer, batch.number, rfc3339(entry.time_ns), window_ns)

    async def finish(self, batch: BatchId) -> None:
        """Note that a batch is written."""
        while True:
            entry = await self.look(batch)
            if entry.is_done(batch) or await self._said(self.message(batch, entry, done=True)):
                return

    async def _said(self, message: Outgoing) -> bool:
        try:
            await self._jet.backend.publish(*message)
        except WrongLastSequenceError:
            return False
        return True


def check_duplicate_window(target: str, window_ns: int, *, late: bool) -> None:
    """Raise ConfigError for a stream that does not remember ids at all."""
    if window_ns <= 0 and not late:
        raise ConfigError(
            f"stream {target!r} has no duplicate_window, so a task that is tried again would store its rows twice: "
            "set one (two minutes or more), or say onLateReplay=write"
        )
