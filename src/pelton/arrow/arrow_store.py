"""A store's streams as Arrow readers, and Arrow data as messages, for blocking programs.

Each call opens the store and closes it again, so there is nothing to close: a file is read on a connection of its own
while the reader is read, and a cluster is asked page by page until the reader ends.

**Copies a stream into Parquet files or a Delta table, without Spark, and goes on where it ended.** What was exported is
known by sequence, and by when the stream was created: a later stream of the same name is read from its beginning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Unpack

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pelton import connect
from pelton.api import ConfigError, NotAStoreError, Outgoing, StreamConfig, parse_rfc3339
from pelton.api.arguments import check_known
from pelton.api.keys import Key
from pelton.columns.arrow_batches import ColumnRead, Decode
from pelton.columns.row_encoder import StreamEncoder, types_of
from pelton.connect import ClusterOptions
from pelton.engine.upkeep import is_outdated
from pelton.jet.stream import batches_of_rows, plan_read, requested_batches, row_reader
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.states import Outcome
from pelton.sync.portal import BlockingStore

_FILE: Final = re.compile(r"(.+)\.(\d+)\.(\d+)-(\d+)\.parquet")


@dataclass(frozen=True)
class PlannedRead:
    """A read of a stream that was created at ``created`` (RFC 3339). ``needs_store``: the batches close it."""

    read: ColumnRead
    created: str
    batches: Iterator[pa.RecordBatch]
    needs_store: bool

    @property
    def is_empty(self) -> bool:
        """Whether there is no sequence to read."""
        return self.read.window.first > self.read.window.last

    @property
    def born(self) -> int:
        """When the stream was created, in nanoseconds since the epoch."""
        return parse_rfc3339(self.created)

    def drop(self) -> None:
        """Close what it would read from."""
        next(self.batches, None)
        self.batches.close()  # type: ignore[attr-defined]  # a generator


Planner = Callable[[str, int], PlannedRead]
"""Plans the read of a stream from a sequence on."""


def export_parquet(plan: Planner, stream: str, folder: Path) -> int:
    """Write what the folder lacks to a new file; return the number of messages."""
    folder.mkdir(parents=True, exist_ok=True)
    planned = plan(stream, 1)
    done = _last_in(folder, stream, planned.born)
    if done:
        planned.drop()
        planned = plan(stream, done + 1)
    if planned.is_empty:
        planned.drop()
        return 0
    window = planned.read.window
    name = f"{stream}.{planned.born}.{window.first}-{window.last}.parquet"
    draft = folder / f".{name}.{os.getpid()}"
    try:
        count = _write(draft, planned)
        if count:
            os.replace(draft, folder / name)
    finally:
        draft.unlink(missing_ok=True)
    return count


def _last_in(folder: Path, stream: str, born: int) -> int:
    """Return the last sequence in the files of a stream; 0 if there are none."""
    found = (_FILE.fullmatch(path.name) for path in folder.iterdir())
    return max((int(file[4]) for file in found if file and file[1] == stream and int(file[2]) == born), default=0)


def _write(path: Path, planned: PlannedRead) -> int:
    count = 0
    with path.open("wb") as file:
        with pq.ParquetWriter(file, planned.read.schema, compression="zstd") as writer:
            for batch in planned.batches:
                writer.write_batch(batch)
                count += batch.num_rows
        file.flush()
        os.fsync(file.fileno())
    return count


def export_delta(plan: Planner, stream: str, table: str) -> int:
    """Append what the table lacks; return the number of messages."""
    try:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
        from deltalake.exceptions import TableNotFoundError
    except ModuleNotFoundError as error:
        raise ImportError("to_delta needs deltalake: pip install 'pelton[delta]'", name=error.name) from None
    planned = plan(stream, 1)
    writer = f"pelton:{stream}:{planned.born}"
    try:
        done = DeltaTable(table).transaction_version(writer) or 0
    except TableNotFoundError:
        done = 0
    if done:
        planned.drop()
        planned = plan(stream, done + 1)
    if planned.is_empty:
        planned.drop()
        return 0
    count = 0

    def count_rows() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in planned.batches:
            count += batch.num_rows
            # Rounded down: a table has microseconds.
            yield batch.cast(schema, safe=False)

    schema = _in_microseconds(planned.read.schema)
    noted = CommitProperties(app_transactions=[Transaction(writer, planned.read.window.last)])
    rows = pa.RecordBatchReader.from_batches(schema, count_rows())
    write_deltalake(table, rows, mode="append", commit_properties=noted)
    return count


def _in_microseconds(schema: pa.Schema) -> pa.Schema:
    """Return the schema with times as Delta has them."""
    if any(pa.types.is_nested(field.type) and "timestamp[ns" in str(field.type) for field in schema):
        raise ConfigError(
            "to_delta: a Delta table has times of microseconds: give schema with pa.timestamp('us', 'UTC')"
        )
    return pa.schema(
        [
            field.with_type(pa.timestamp("us", field.type.tz))
            if pa.types.is_timestamp(field.type) and field.type.unit == "ns"
            else field
            for field in schema
        ]
    )


# --- a queue's history as Arrow columns: a row for each job that ended

_TIME: Final = pa.timestamp("ns", "UTC")
HISTORY: Final = pa.schema(
    [
        ("id", pa.string()),
        ("job", pa.string()),
        ("key", pa.string()),
        ("state", pa.string()),
        ("attempt", pa.int32()),
        ("worker", pa.string()),
        ("enqueued_at", _TIME),
        ("started_at", _TIME),
        ("finished_at", _TIME),
        ("result", pa.string()),
        ("error", pa.string()),
    ]
)
"""The columns of a history; ``result`` is JSON, null unless the job completed; ``started_at`` is null if it did not."""
_outcomes: Final = msgspec.json.Decoder(list[Outcome]).decode


def history_batches(messages: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the outcomes of a history's messages, which have the column ``data``."""
    for batch in messages:
        outcomes = _outcomes(b"[" + b",".join(batch.column("data").to_pylist()) + b"]")
        yield pa.RecordBatch.from_arrays([_column(field, outcomes) for field in HISTORY], schema=HISTORY)


def _column(field: pa.Field, outcomes: list[Outcome]) -> pa.Array:
    values: Iterable[Any] = map(attrgetter(field.name), outcomes)
    if field.name == "result":
        values = (bytes(one.result).decode() if one.state == "completed" else None for one in outcomes)
    elif field.type == _TIME:
        # 0 is no time: a job that was cancelled, or had expired, before it started.
        values = (value or None for value in values)
    return pa.array(list(values), field.type)


# --- arrow data as messages: the columns that a write takes, and how each row becomes a message

_ROWS: Final = 4096


def reader_of(data: Any) -> pa.RecordBatchReader:
    """Return anything that Arrow can read as a reader: a table, a reader, a frame of Polars or pandas, a relation.

    Raises ConfigError.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    raise ConfigError(f"publish: {type(data).__name__} is no Arrow data: give a table, a reader, or a data frame")


class MessageRows:
    """Encodes rows as messages of one stream. ``subject``: a template such as ``orders.{country}``."""

    def __init__(self, schema: pa.Schema, config: StreamConfig, subject: str | None) -> None:
        self._schema = pa.schema([field.with_type(_plain(field.type)) for field in schema])
        self._encoder = StreamEncoder(types_of(self._schema), config, subject)

    def messages(self, batch: pa.RecordBatch) -> Iterator[list[Outgoing]]:
        """Yield the messages of a batch, some thousand at a time. Raises ConfigError for a row that cannot be one."""
        for start in range(0, batch.num_rows, _ROWS):
            rows = pa.Table.from_batches([batch.slice(start, _ROWS)]).cast(self._schema).combine_chunks().to_batches()
            for part in rows:
                encoded = self._encoder.messages(part)
                blocks = encoded.blocks or [None] * part.num_rows
                columns = encoded.subjects.to_pylist(), encoded.payloads.to_pylist(), blocks
                yield list(map(Outgoing, *columns))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the plain type of a text or of bytes: Polars has its own views, dictionaries hold repeated values."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_large_list(kind) or types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


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
        with self._open() as store:
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

    def _open(self, *, looks: bool = False) -> BlockingStore:
        options = dict(self._options)
        if looks and not _is_cluster(self._address) and is_outdated(self._address, options.get("key")):
            # Looking migrates nothing (ADR 0037).
            options["read_only"] = True
        return BlockingStore(self._address, lambda: connect.open(self._address, **options))

    def _plan(self, name: str, options: dict[str, Any]) -> PlannedRead:
        """Return a read of a stream as it is now. Raises ConfigError, StreamNotFoundError."""
        store = self._open(looks=True)
        planned: PlannedRead | None = None
        try:
            stream = store.run(store.jet.stream, name)

            async def plan() -> PlannedRead:
                read, info = await plan_read(stream, **{**_WHOLE, **options})
                rows = row_reader(store.jet.backend, info, read.filters)
                batches = store.each(requested_batches(stream, read)) if rows is None else batches_of_rows(rows, read)
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


def _is_cluster(address: str) -> bool:
    return "://" in address or address.startswith("context:")


def _check_address(address: str) -> None:
    """Raise ConfigError, NotAStoreError for what cannot be opened again and again."""
    if address == _MEMORY:
        raise ConfigError("pelton.arrow.open: a store in memory belongs to its program: use its stream.to_arrow()")
    if not _is_cluster(address) and not os.path.exists(address):
        raise NotAStoreError(address, "there is no such file; pelton.open creates one")
