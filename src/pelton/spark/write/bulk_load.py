"""Loads staged rows into a store, on the driver: one transaction that stores them and commits the batch.

No other process writes to the store during the load; readers continue, and see all of the batch or nothing. Memory
holds one portion of the staged rows (8 MiB) at a time.

Once the transaction is committed and its WAL is on disk, durability is complete. Checkpointing a long WAL into the file
(half as much work again) is left to a thread that closes the store, while Spark continues. The next load of this
process waits for it, so that the WAL does not grow faster than it is checkpointed. If the process is killed before
that, the next writer checkpoints the WAL, as after any crash.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from pelton import engine
from pelton.api import PeltonError, WrongLastSequenceError
from pelton.columns.checksums import placed_sums
from pelton.jet import Savepoint
from pelton.spark.store_handle import StoreHandle, encryption_key
from pelton.spark.stream_names import COMMIT_STREAM
from pelton.spark.write.commit_log import CommitLog

if TYPE_CHECKING:
    from pelton.api import Outgoing
    from pelton.jet import Streams
    from pelton.spark.options import StoreOptions
    from pelton.spark.write.task_attempt import BatchId

_LONGEST_S: Final = 24 * 3600.0
_LARGE: Final = 16 * 1024 * 1024
_closing: Final = ThreadPoolExecutor(1, thread_name_prefix="pelton-closing")
_log: Final = logging.getLogger("pelton.spark")


def load(options: StoreOptions, target: str, files: Sequence[str], batch: BatchId | None) -> bool:
    """Store the staged rows for the stream ``target``; False if the ``batch`` is already stored.

    ``batch`` None: a batch that is never repeated. Raises what publishing raises; then nothing is stored.
    """
    is_large = sum(map(_size, files)) >= _LARGE
    # Wait for the closing of earlier loads.
    _closing.submit(_nothing).result()
    store = StoreHandle(options)
    try:
        if batch is None:
            store.run(_store, store.jet, options, files, None)
            return True
        return store.run(_store_once, store.jet, options, files, CommitLog(store.jet, target), batch)
    finally:
        if is_large:
            _closing.submit(_close, store)
        else:
            store.close()


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _close(store: StoreHandle) -> None:
    try:
        store.close()
    except PeltonError as error:
        _log.warning("closing %s after a batch was stored: %s", store.options.address, error)


def _nothing() -> None:
    return None


async def _store_once(
    jet: Streams, options: StoreOptions, files: Sequence[str], commit_log: CommitLog, batch: BatchId
) -> bool:
    await commit_log.prepare()
    while True:
        entry = await commit_log.lookup(batch)
        if entry.is_done(batch):
            return False
        try:
            await _store(jet, options, files, commit_log.message(batch, entry, done=True))
        except WrongLastSequenceError as error:
            if error.stream != COMMIT_STREAM:
                raise
            # Another process has just committed to the log: check again.
            continue
        return True


async def _store(jet: Streams, options: StoreOptions, files: Sequence[str], note: Outgoing | None) -> None:
    transaction = jet.backend.transaction(_LONGEST_S)
    async with Savepoint(transaction):
        if note is not None:
            await transaction.publish([note])
        for path in files:
            await engine.load(transaction, path, encryption_key(options), placed_sums)
