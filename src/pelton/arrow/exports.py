"""Copies a stream into Parquet files or a Delta table, without Spark, and goes on where it ended.

What was exported is known by sequence, and by when the stream was created: a later stream of the same name begins anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pelton.api import ConfigError, parse_rfc3339
from pelton.columns.column_read import ColumnRead

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

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in planned.batches:
            count += batch.num_rows
            # Rounded down: a table has microseconds.
            yield batch.cast(schema, safe=False)

    schema = _in_microseconds(planned.read.schema)
    noted = CommitProperties(app_transactions=[Transaction(writer, planned.read.window.last)])
    rows = pa.RecordBatchReader.from_batches(schema, counted())
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
