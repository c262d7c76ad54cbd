"""StagingFolder: tasks write files into a folder beside the store, and batches and attempts are told apart.

**StagingFolder: tasks write files into a folder beside the store, or in ``stagingPath``, until the driver loads them.**
``<folder>/<writer>/<batch>/<name>``: every attempt of every task writes its own file. The driver that has loaded a
batch removes its folder, including files of failed and speculative attempts, and the folders of earlier batches. Files
of a driver that died before that and never restarts are removed by another write, after two days: marked, then removed.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import TaskContext

from pelton.api import NotAStoreError, PeltonError
from pelton.runtime import system_runtime

if TYPE_CHECKING:
    from pelton.spark.write.options import WriteOptions

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
    """Return the attempt that this task is."""
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

    def done(self, batch: BatchId) -> None:
        """Remove a batch's files, those of its writer's earlier batches, and stale ones of drivers that died."""
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
    changed, mark = _changed(folder, now), f"{folder}{_MARK}"
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


def _changed(folder: str, default: int) -> int:
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
