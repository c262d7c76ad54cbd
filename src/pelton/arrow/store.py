"""A store's streams as Arrow readers, and Arrow data as messages, for blocking programs.

Each call opens the store and closes it again, so there is nothing to close: a file is read on a connection of its own
while the reader is read, and a cluster is asked page by page until the reader ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Unpack

import pyarrow as pa

from pelton import connect
from pelton.api import ConfigError, NotAStoreError
from pelton.api.arguments import check_known
from pelton.api.keys import Key
from pelton.arrow.exports import PlannedRead, Planner, export_delta, export_parquet
from pelton.arrow.history import HISTORY, history_batches
from pelton.arrow.publishing import MessageRows, reader_of
from pelton.columns.decoder import Decode
from pelton.connect import ClusterOptions
from pelton.jet.arrow_reads import batches_of_rows, plan_read, requested, row_reader
from pelton.queue.model.naming import QueueNames
from pelton.sync.blocking_store import BlockingStore

_MEMORY: Final = "memory:"
_WHOLE: Final[dict[str, Any]] = {
    "columns": None,
    "subjects": ">",
    "start_seq": 1,
    "end_seq": 0,
    "start_time": None,
    "end_time": None,
    "decode": None,
    "schema": None,
}
"""The options of a read, and what they are by default: everything."""


def open(  # the word of every Pelton program
    address: str | os.PathLike[str], *, key: Key | None = None, **cluster: Unpack[ClusterOptions]
) -> ArrowStore:
    """Return a store file or a cluster for Arrow. ``key`` opens an encrypted file; ``cluster`` as in `pelton.open`.

    Raises ConfigError, NotAStoreError.
    """
    text = os.fspath(address)
    _check_address(text)
    return ArrowStore(text, {**({} if key is None else {"key": key}), **cluster})


class ArrowStore:
    """A store file or a cluster, read and written as Arrow data. It holds nothing open."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self._address = address
        self._options = options

    def __repr__(self) -> str:
        """Return the store's address."""
        return f"ArrowStore({self._address!r})"

    def stream(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        subjects: str | Iterable[str] = ">",
        start_seq: int = 1,
        end_seq: int = 0,
        start_time: datetime | str | None = None,
        end_time: datetime | str | None = None,
        decode: Decode | None = None,
        schema: pa.Schema | pa.DataType | None = None,
    ) -> pa.RecordBatchReader:
        """Return the messages that a stream holds now.

        ``columns``, ``subjects``, ``start_seq``, ``end_seq``, ``start_time``, ``end_time``, ``decode`` and ``schema``
        mean what they do in `pelton.Stream.to_arrow`. Raises ConfigError, StreamNotFoundError; the reader raises
        CorruptMessageError.
        """
        options = {
            "columns": columns,
            "subjects": subjects,
            "start_seq": start_seq,
            "end_seq": end_seq,
            "start_time": start_time,
            "end_time": end_time,
            "decode": decode,
            "schema": schema,
        }
        planned = self._plan(name, options)
        return planned.read.reader(planned.batches)

    def queue_history(
        self, queue: str, *, start_time: datetime | str | None = None, end_time: datetime | str | None = None
    ) -> pa.RecordBatchReader:
        """Return the jobs that ended, a row each: id, job, key, state, attempt, worker, times, result (JSON), error.

        ``start_time`` and ``end_time`` (exclusive) bound when they ended. Raises ConfigError, StreamNotFoundError.
        """
        messages = self.stream(QueueNames(queue).history, columns=["data"], start_time=start_time, end_time=end_time)
        return pa.RecordBatchReader.from_batches(HISTORY, history_batches(messages))

    def publish(self, stream: str, data: Any, *, subject: str | None = None) -> int:
        """Store each row of Arrow data as a message, durably; return how many were stored: no duplicates.

        ``data`` is a table, a reader, a frame of Polars or pandas, or whatever has ``__arrow_c_stream__``. Its columns:
        ``subject`` (or the template ``subject``, such as ``orders.{country}``), ``data`` (bytes or text; without it the
        other columns, as JSON), ``headers``, ``msg_id``, ``ttl`` (seconds). Rows are stored in order, some thousand at
        a time: with ``msg_id`` a repeated call stores none twice. Raises ConfigError for a row that cannot be a
        message, LimitError and what `pelton.Jet.publish_batch` raises: the rows before it are stored.
        """
        reader, count = reader_of(data), 0
        with self._opened() as store:
            rows = MessageRows(reader.schema, store.run(store.jet.stream, stream).config, subject)
            for batch in reader:
                for messages in rows.messages(batch):
                    acks = store.run(store.jet.backend.publish_batch, messages)
                    count += sum(not ack.duplicate for ack in acks)
        return count

    def to_parquet(self, stream: str, folder: str | os.PathLike[str], **options: Any) -> int:
        """Write the messages that a folder does not have yet to a new Parquet file in it; return how many.

        A file is named by its first and last sequence and appears when it is whole, so a repeated call goes on where
        the last one ended. ``options`` are those of :meth:`stream`, without ``start_seq``. Raises ConfigError if the
        folder holds another stream of this name, and what :meth:`stream` raises.
        """
        return export_parquet(self._export(options), stream, Path(folder))

    def to_delta(self, stream: str, table: str | os.PathLike[str], **options: Any) -> int:
        """Append the messages that a Delta table does not have yet to it; return how many.

        Needs ``pip install 'pelton[delta]'``. The commit that appends them also records their last sequence, so each
        is in the table once, however often this is called or killed. ``options`` are those of :meth:`stream`, without
        ``start_seq``. Raises what :meth:`stream` raises.
        """
        return export_delta(self._export(options), stream, os.fspath(table))

    def _opened(self) -> BlockingStore:
        return BlockingStore(self._address, lambda: connect.open(self._address, **self._options))

    def _plan(self, name: str, options: dict[str, Any]) -> PlannedRead:
        """Return a read of a stream as it is now. Raises ConfigError, StreamNotFoundError."""
        store = self._opened()
        planned: PlannedRead | None = None
        try:
            stream = store.run(store.jet.stream, name)

            async def plan() -> PlannedRead:
                read, info = await plan_read(stream, **{**_WHOLE, **options})
                rows = row_reader(store.jet.backend, info, read.filters)
                batches = store.each(requested(stream, read)) if rows is None else batches_of_rows(rows, read)
                return PlannedRead(read, info.created, batches, needs_store=rows is None)

            planned = store.run(plan)
            return planned
        finally:
            if planned is None or not planned.needs_store:
                store.close()

    def _export(self, options: dict[str, Any]) -> Planner:
        """Return what plans the reads of an export. Raises ConfigError."""
        if "start_seq" in options:
            raise ConfigError("start_seq: an export goes on where it ended: leave it out")
        check_known("export", options, _WHOLE)
        return lambda name, seq: self._plan(name, {**options, "start_seq": seq})


def _check_address(address: str) -> None:
    """Raise ConfigError, NotAStoreError for what cannot be opened again and again."""
    if address == _MEMORY:
        raise ConfigError("pelton.arrow.open: a store in memory belongs to its program: use its stream.to_arrow()")
    if "://" not in address and not address.startswith("context:") and not os.path.exists(address):
        raise NotAStoreError(address, "there is no such file; pelton.open creates one")
