"""A Delta table: files that executors have written become part of it in one transaction that records the batch.

Files that tasks wrote but no driver committed (a failed attempt, a driver that died) are in the folder, but not in the
table; Delta's ``vacuum`` removes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from pelton.api import ConfigError, PeltonError
from pelton.runtime import system_runtime
from pelton.spark.pipelines.parquet_files import PARTITIONS, absolute_path

if TYPE_CHECKING:
    import pyarrow as pa

    from pelton.spark.pipelines.parquet_files import ParquetFile
    from pelton.spark.write.staging import BatchId

_TRIES: Final = 5


class LakeTable:
    """A Delta table at ``target``: a folder, or a URI that ``deltalake`` supports."""

    def __init__(self, target: str) -> None:
        self.target: str = absolute_path(target)

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table if it is missing. Raises ConfigError if it has other columns."""
        DeltaTable.create(self.target, schema=schema, mode="ignore", partition_by=list(PARTITIONS))
        table = DeltaTable(self.target)
        there, wanted = _columns(table.schema()), _columns(Schema.from_arrow(schema))
        if there != wanted:
            raise ConfigError(
                f"{self.target} is a table of {_text(there)}, and this archive has {_text(wanted)}: select the same "
                "columns, or archive to another folder"
            )
        if table.metadata().partition_columns != list(PARTITIONS):
            raise ConfigError(f"{self.target} is not partitioned by {', '.join(PARTITIONS)}: archive to another folder")

    def has(self, batch: BatchId) -> bool:
        """Whether the batch, or a later one of its writer, is in the table."""
        return self._has(DeltaTable(self.target), batch)

    def _has(self, table: DeltaTable, batch: BatchId) -> bool:
        noted = table.transaction_version(batch.writer)
        return noted is not None and noted >= batch.number

    def commit(self, parts: Sequence[ParquetFile], schema: pa.Schema, batch: BatchId | None) -> bool:
        """Add files to the table; False, without adding any, if the ``batch`` is in it already."""
        for _ in range(_TRIES):
            table = DeltaTable(self.target)
            if batch is not None and self._has(table, batch):
                return False
            try:
                self._add(table, parts, schema, batch)
            except CommitFailedError:
                # Another writer has committed in the meantime: possibly the same batch.
                continue
            return True
        raise PeltonError(f"{self.target}: other writers keep committing; the files are written, but not added")

    def _add(self, table: DeltaTable, parts: Sequence[ParquetFile], schema: pa.Schema, batch: BatchId | None) -> None:
        now_ms = system_runtime().clock.now() // 1_000_000
        actions = [
            AddAction(part.path, part.size, {"date": part.date, "stream": part.stream}, now_ms, True, part.stats)
            for part in parts
        ]
        noted = [] if batch is None else [Transaction(batch.writer, batch.number)]
        table.create_write_transaction(
            actions,  # type: ignore[arg-type]  # a list that is only read
            "append",
            schema,
            list(PARTITIONS),
            commit_properties=CommitProperties(app_transactions=noted),
        )


def files(target: str, version: int | None) -> tuple[str, list[str], str]:
    """Return a table's root, its files, and its schema as JSON, which Spark reads too. Raises ConfigError."""
    root = LakeTable(target).target
    try:
        table = DeltaTable(root, version=version)
    except TableNotFoundError:
        raise ConfigError(f"{root} is not a Delta table: archive something there first") from None
    return root, table.file_uris(), table.schema().to_json()


def _columns(schema: Schema) -> dict[str, str]:
    return {field["name"]: json.dumps(field["type"]) for field in json.loads(schema.to_json())["fields"]}


def _text(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {json.loads(kind) if kind[0] == chr(34) else kind}" for name, kind in columns.items())
