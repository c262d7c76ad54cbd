"""Writes an archive's rows to Parquet files in tasks, at least one for each date and stream that a task has.

Runs in Spark's Python workers. Every attempt uses new file names, so attempts never conflict.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from pelton.runtime import system_runtime

PARTITIONS: Final = ("date", "stream")
PART_DDL: Final = "path STRING, size BIGINT, date STRING, stream STRING, rows BIGINT, stats STRING"
_GROUP_ROWS: Final = 131_072
_GROUP_BYTES: Final = 32 << 20
_OPEN: Final = 32
_UNSAFE: Final = frozenset("\"#%'*/:=?\\{[]^<>|") | {chr(code) for code in range(0x20)} | {chr(0x7F)}


class ParquetFile(NamedTuple):
    """A written file: its path in the table, and what Delta records of it."""

    path: str
    size: int
    date: str
    stream: str
    rows: int
    stats: str


@dataclass
class _OpenFile:
    """A file that is being written."""

    path: str
    writer: Any
    rows: int = 0
    held: list[pa.Table] = field(default_factory=list)
    held_rows: int = 0
    held_bytes: int = 0
    low: int | None = None
    high: int | None = None

    def add(self, table: pa.Table) -> None:
        """Add rows, and write a row group when there are enough."""
        self.held.append(table)
        self.held_rows += table.num_rows
        self.held_bytes += table.nbytes
        if "sequence" in table.column_names:
            ends = pc.min_max(table["sequence"]).as_py()
            known = [end for end in (self.low, self.high, ends["min"], ends["max"]) if end is not None]
            self.low, self.high = (min(known), max(known)) if known else (None, None)
        if self.held_rows >= _GROUP_ROWS or self.held_bytes >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.held:
            self.writer.write_table(pa.concat_tables(self.held), row_group_size=self.held_rows)
            self.rows += self.held_rows
            self.held, self.held_rows, self.held_bytes = [], 0, 0

    def stats(self) -> str:
        """Return Delta's statistics, with which readers skip files."""
        if self.low is None:
            return json.dumps({"numRecords": self.rows})
        ends = {"minValues": {"sequence": self.low}, "maxValues": {"sequence": self.high}}
        return json.dumps({"numRecords": self.rows, **ends, "nullCount": {"sequence": 0}})


@dataclass(frozen=True)
class PartitionWriter:
    """Writes the rows of one task under ``root``; the ``schema`` is the table's. For ``mapInArrow``."""

    root: str
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows; yield one row for each file."""
        done: list[ParquetFile] = []
        system, root = fs.FileSystem.from_uri(self.root)
        inside = pa.schema([column for column in self.schema if column.name not in PARTITIONS])
        opened: dict[tuple[str, str], _OpenFile] = {}
        for batch in batches:
            table = pa.Table.from_batches([batch]).select(self.schema.names).cast(self.schema)
            for pair, rows in _by_partition(table):
                if pair not in opened:
                    if len(opened) >= _OPEN:
                        oldest = next(iter(opened))
                        done.append(_close(oldest, opened.pop(oldest), system, root))
                    opened[pair] = _new(pair, system, root, inside)
                opened[pair].add(rows.drop_columns(list(PARTITIONS)))
        done += [_close(pair, file, system, root) for pair, file in opened.items()]
        if done:
            columns = [list(column) for column in zip(*done, strict=True)]
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=list(ParquetFile._fields))


def absolute_path(folder: str) -> str:
    """Return a folder as an absolute path, because Spark's processes have other working directories; a URI as is."""
    return folder if "://" in folder else os.path.abspath(folder)


def folder_of(date: str, stream: str) -> str:
    """Return a partition's folder as Hive, and so Spark, names it."""
    escaped = "".join(f"%{ord(sign):02X}" if sign in _UNSAFE else sign for sign in stream)
    return f"date={date}/stream={escaped}"


def _by_partition(table: pa.Table) -> Iterator[tuple[tuple[str, str], pa.Table]]:
    """Yield the rows of each date and stream, in their order."""
    pairs = table.group_by(list(PARTITIONS), use_threads=False).aggregate([]).to_pylist()
    for pair in pairs:
        key = (pair["date"].isoformat(), pair["stream"])
        if len(pairs) == 1:
            yield key, table
            continue
        mask = pc.and_(pc.equal(table["date"], pair["date"]), pc.equal(table["stream"], pair["stream"]))
        yield key, table.filter(mask)


def _new(pair: tuple[str, str], system: Any, root: str, schema: pa.Schema) -> _OpenFile:
    folder = folder_of(*pair)
    system.create_dir(f"{root}/{folder}", recursive=True)
    path = f"{folder}/part-{system_runtime().ids.new()}.parquet"
    return _OpenFile(path, pq.ParquetWriter(f"{root}/{path}", schema, filesystem=system, compression="zstd"))


def _close(pair: tuple[str, str], file: _OpenFile, system: Any, root: str) -> ParquetFile:
    file.flush()
    file.writer.close()
    size = system.get_file_info(f"{root}/{file.path}").size
    return ParquetFile(file.path, size, *pair, file.rows, file.stats())
