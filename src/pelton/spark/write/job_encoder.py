"""Encodes rows as jobs: each column is an argument by its name, except ``key`` and ``idempotency_key``.

The job's function is not available here, so the queue's workers check the arguments: a job whose arguments do not fit
becomes a dead letter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from pelton.api import ConfigError
from pelton.columns import row_encoder as rows
from pelton.columns.row_encoder import EncodedRows, InputColumns, RowEncoder
from pelton.columns.row_json import json_rows
from pelton.queue.enqueue.job_message import JobMessage
from pelton.queue.model.options import JobOptions
from pelton.spark.columns.read_schema import sql_types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class JobEncoder(RowEncoder):
    """Encodes rows as messages that enqueue jobs."""

    def __init__(self, schema: StructType, form: JobMessage) -> None:
        columns = InputColumns(sql_types(schema))
        self._has_key = columns.take("key", rows.TEXT)
        self._has_id = columns.take("idempotency_key", rows.TEXT)
        self._arguments = columns.rest()
        self._form = form

    def messages(self, batch: pa.RecordBatch) -> EncodedRows:
        """Return one job for each row, without a key if that is null."""
        count = batch.num_rows
        arguments = json_rows(batch, self._arguments) if self._arguments else [b"{}"] * count
        keys = rows.optional(batch, "key", self._has_key) or [None] * count
        ids = rows.optional(batch, "idempotency_key", self._has_id) or [None] * count
        try:
            jobs = [
                self._form.message(args, JobOptions(key=key or "", idempotency_key=job_id or ""))
                for args, key, job_id in zip(arguments, keys, ids, strict=True)
            ]
        except ConfigError as error:
            raise ConfigError(f"column key: {error}") from None
        has_blocks = any(job.headers is not None for job in jobs)
        blocks = [job.headers for job in jobs] if has_blocks else None
        subjects, payloads = [job.subject for job in jobs], [job.data for job in jobs]
        return EncodedRows(pa.array(subjects, pa.string()), pa.array(payloads, pa.binary()), blocks)
