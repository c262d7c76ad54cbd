"""Where tasks put what they write until the driver loads it: a folder beside the store, or where ``stagingPath`` says.

``<folder>/<writer>/<batch>/<name>``: every try of every task writes a file of its own. Whoever has loaded a batch
removes its folder, with all that failed tries and speculative ones have left, and those of earlier batches. What a
driver has left that died before that and never came again is removed by another write, after a day.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from pelton.api import NotAStoreError
from pelton.runtime import system_runtime

if TYPE_CHECKING:
    from pelton.spark.write.options import WriteOptions
    from pelton.spark.write.task_attempt import BatchId

_STALE_NS: Final = 24 * 3600 * 10**9
_NUMBER: Final = re.compile(r"[0-9]+")
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class Staging:
    """The folder of all writes to one store."""

    folder: str

    def new_file(self, batch: BatchId, name: str) -> str:
        """Return the path of a new file of a batch, in a folder that is there."""
        folder = self._of(batch)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        if os.path.islink(self.folder):
            raise NotAStoreError(self.folder, "it is a link, and tasks stage here what they write: remove it")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return os.path.join(folder, name)

    def _of(self, batch: BatchId) -> str:
        return os.path.join(self.folder, file_name(batch.writer), str(batch.number))

    def done(self, batch: BatchId) -> None:
        """Remove a batch's files, earlier ones of its writer, and what drivers that died have left."""
        writer = os.path.dirname(self._of(batch))
        for number in _names(writer):
            if _NUMBER.fullmatch(number) and int(number) <= batch.number:
                shutil.rmtree(os.path.join(writer, number), ignore_errors=True)
        now = system_runtime().clock.now()
        for name in _names(self.folder):
            path = os.path.join(self.folder, name)
            if _is_staged(path) and now - _changed(path, now) > _STALE_NS:
                shutil.rmtree(path, ignore_errors=True)
        for path in (writer, self.folder):
            if not _names(path):
                _remove_empty(path)


def staging_of(options: WriteOptions) -> Staging:
    """Return where a write stages. Raises NotAStoreError where the store is not on this host."""
    path = os.path.realpath(options.store.address)
    if not os.path.exists(path):
        raise NotAStoreError(path, "there is no such file on this host; tasks write beside the store, on its host")
    if options.staging is None:
        return Staging(f"{path}-spark")
    # What lies there belongs to its user: a folder of our own keeps it apart from what is removed after a day.
    return Staging(os.path.join(os.path.abspath(options.staging), "pelton-staging"))


def file_name(text: str) -> str:
    """Return a text as the name of a file, and as a part of a subject or of a message id."""
    if _SAFE.fullmatch(text):
        return text
    return "x" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_staged(folder: str) -> bool:
    """Return whether a folder is one of a writer, with folders of batches in it and nothing else."""
    return not os.path.islink(folder) and all(map(_NUMBER.fullmatch, _names(folder) or ("x",)))


def _changed(folder: str, default: int) -> int:
    """Return when anything in a folder was last written to."""
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
        # Somebody has just begun to write there, or it was never made.
        return
