"""What makes a write take effect once: files that tasks stage beside the store, and the log of each writer's batches.

**StagingFolder: tasks write files into a folder beside the store, by batch and by attempt.**
**StagingFolder: tasks write files into a folder beside the store, or in ``stagingPath``, until the driver loads them.**
``<folder>/<writer>/<batch>/<name>``: every attempt of every task writes its own file. The driver that has loaded a
batch removes its folder, including files of failed and speculative attempts, and the folders of earlier batches. Files
of a driver that died before that and never restarts are removed by another write, after two days: marked, then removed.

**The commit log: each writer's last batch, as one message in the stream ``SPARK_COMMITS`` of the target's store.** In a
store file, the message is part of the transaction that stores the batch, on the condition that no other process has
written to the log since it was read. So a batch is stored once, whatever fails, and whichever process repeats it.

A cluster has no such transaction. Tasks store rows as they come, each with a message id made of batch, partition and
row number, so that the stream drops the duplicates of a repeated batch within its ``duplicate_window``. The commit log
records when a batch began, and that it is done: a batch that is done is skipped, however late, and one that began
longer ago than the window is refused rather than stored twice.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from pyspark import TaskContext

from pelton.api import (
    ConfigError,
    MessageNotFoundError,
    NotAStoreError,
    Outgoing,
    PeltonError,
    WrongLastSequenceError,
    headers,
    parse_rfc3339,
    rfc3339,
)
from pelton.runtime import system_runtime
from pelton.spark.options import COMMIT_STREAM, LateReplayError

if TYPE_CHECKING:
    from pelton.jet import Streams
    from pelton.spark.write.write_options import WriteOptions

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class BatchId(NamedTuple):
    """A batch, the same in every attempt: a ``writer`` (a query's id, or a writeId) and an increasing ``number``."""

    writer: str
    number: int


class TaskAttempt(NamedTuple):
    """One attempt of one task. ``number`` is 0 for the task's first in this run of the batch; ``task`` is unique."""

    partition: int
    number: int
    task: int


def current_attempt() -> TaskAttempt:
    context = _context()
    return TaskAttempt(context.partitionId(), context.attemptNumber(), context.taskAttemptId())


def streaming_batch_id() -> BatchId:
    """Return the batch of this task's streaming query. Raises PeltonError if Spark does not provide it.

    The property names are internal to Spark and may change, so their values are validated.
    """
    context = _context()
    query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    if not query or number is None or not number.isdigit():
        raise PeltonError(
            f"this Spark does not tell its tasks which batch they write ({_QUERY}, {_BATCH}), and without that, a "
            "repeated batch would be stored twice: use foreachBatch, and in it write with writeId and writeVersion"
        )
    return BatchId(query, int(number))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PeltonError("a write runs in Spark's tasks only")
    return context


_STALE_NS: Final = 24 * 3600 * 10**9
_MARK: Final = ".stale"
_NUMBER: Final = re.compile(r"[0-9]+")
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class StagingFolder:
    """The staging folder of all writes to one store."""

    folder: str

    def new_file(self, batch: BatchId, name: str) -> str:
        """Return the path of a new file of a batch; creates its folder."""
        folder = self._of(batch)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        if os.path.islink(self.folder):
            raise NotAStoreError(self.folder, "it is a link, and tasks stage their files here: remove it")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return os.path.join(folder, name)

    def _of(self, batch: BatchId) -> str:
        return os.path.join(self.folder, file_name(batch.writer), str(batch.number))

    def remove_batch(self, batch: BatchId) -> None:
        """Remove a batch's files, the files of its writer's earlier batches, and stale files of drivers that died."""
        writer = os.path.dirname(self._of(batch))
        for number in _names(writer):
            if _NUMBER.fullmatch(number) and int(number) <= batch.number:
                shutil.rmtree(os.path.join(writer, number), ignore_errors=True)
        now = system_runtime().clock.now()
        for name in _names(self.folder):
            path = os.path.join(self.folder, name)
            if _is_staged(path) and _is_stale(path, now):
                shutil.rmtree(path, ignore_errors=True)
                _remove_mark(path)
            elif name.endswith(_MARK) and not os.path.exists(folder := path.removesuffix(_MARK)):
                _remove_mark(folder)
        for path in (writer, self.folder):
            if not _names(path):
                _remove_empty(path)


def staging_of(options: WriteOptions) -> StagingFolder:
    """Return the staging folder of a write. Raises NotAStoreError if the store is not on this host."""
    path = os.path.realpath(options.store.address)
    if not os.path.exists(path):
        raise NotAStoreError(path, "there is no such file on this host; tasks write beside the store, on its host")
    if options.staging is None:
        return StagingFolder(f"{path}-spark")
    # The user's own files may be there: our own folder keeps them apart from those that are removed after a day.
    return StagingFolder(os.path.join(os.path.abspath(options.staging), "pelton-staging"))


def file_name(text: str) -> str:
    """Return a text as a file name that is also valid as a subject token and in a message id."""
    if _SAFE.fullmatch(text):
        return text
    return "x" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_staged(folder: str) -> bool:
    """Return whether a folder is a writer's: it holds folders of batches and nothing else."""
    return not os.path.islink(folder) and all(map(_NUMBER.fullmatch, _names(folder) or ("x",)))


def _is_stale(folder: str, now: int) -> bool:
    """Return whether a folder was seen twice, a day apart, to be a day old: once, only the clock may be ahead."""
    changed, mark = _modified_at(folder, now), f"{folder}{_MARK}"
    if now - changed <= _STALE_NS:
        _remove_mark(folder)
        return False
    try:
        marked = os.stat(mark).st_mtime_ns
    except OSError:
        marked = 0
    if changed < marked <= now:
        return now - marked > _STALE_NS
    with suppress(OSError), open(mark, "wb"):
        os.utime(mark, ns=(now, now))
    return False


def _remove_mark(folder: str) -> None:
    with suppress(OSError):
        os.remove(f"{folder}{_MARK}")


def _modified_at(folder: str, default: int) -> int:
    """Return when anything in a folder was last modified."""
    times = [default] if not os.path.isdir(folder) else [0]
    for parent, _, names in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            try:
                times.append(os.stat(path).st_mtime_ns)
            except OSError:
                continue
    return max(times)


def _remove_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        # Another write has just started there, or the folder was never made.
        return


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
    """The commits of all writers to one ``target``: a stream, also a bucket's or a queue's."""

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
