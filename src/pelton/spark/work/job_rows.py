"""Converts claimed jobs to rows, and the rows that a function returned to job outcomes.

The contract. Rows in: ``id``, ``job``, ``key``, ``attempt`` (from 1), ``last_error``, ``enqueued_at``, and the
arguments: as JSON in ``args``, or as columns if their types are given. Rows out are matched by ``id``, in any order. If
``error`` is null or absent, the job is completed; otherwise it failed with that text, and is retried by the queue's
rules, after ``retry_after`` seconds if given, or never if ``permanent`` is true. All other columns are its result: JSON
in the history, or messages of a stream. A job without a row fails for good, because its outcome is unknown. A result
that breaks this contract fails the task, and its jobs are handed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from pelton.api import ConfigError, JobArgumentsError, PermanentJobError, RetryJob
from pelton.columns.arrow_batches import decode_all, decoder
from pelton.columns.row_encoder import StreamEncoder, json_rows
from pelton.queue.run.claims import Failed
from pelton.spark.columns import sql_types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pelton.api import StreamConfig
    from pelton.queue import ClaimedJob

COLUMNS: Final = ("id", "job", "key", "attempt", "last_error", "enqueued_at")
_ENDINGS: Final = ("id", "error", "retry_after", "permanent")
_TIME: Final = pa.timestamp("us", "UTC")
_NANOS: Final = pa.timestamp("ns", "UTC")
_ID, _JOB, _KEY, _ARGS = map(attrgetter, ("id", "job", "key", "args"))
_ATTEMPT, _ENQUEUED_AT = map(attrgetter, ("attempt", "enqueued_at"))


class RowError(RetryJob):
    """A job failed by its row's ``error``; ``delay`` in seconds, None for the queue's backoff."""

    def __init__(self, text: str, delay: float | None) -> None:
        super().__init__(delay, text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class MissingRowError(PermanentJobError):
    """The function returned no row for this job of its batch."""

    def __init__(self) -> None:
        super().__init__("the function returned no row with this job's id, so its outcome is unknown")


class JobRows:
    """Builds the rows of a batch. ``arguments``: their types, or None for JSON."""

    def __init__(self, arguments: StructType | None) -> None:
        self._decode: Callable[[bytes], Any] | None = None
        if arguments is not None:
            self._schema = to_arrow_schema(arguments, timezone="UTC")
            self._decode = decoder("json", pa.struct(list(self._schema)))

    def rows(self, jobs: list[ClaimedJob]) -> tuple[list[ClaimedJob], pa.RecordBatch]:
        """Return the job of each row. Raises ConfigError for a row without one."""
        if self._decode is None:
            args = pa.array(list(map(_ARGS, jobs)), pa.binary()).cast(pa.string())
            return jobs, _batch(jobs, {"args": args})
        values, errors = decode_all(self._decode, [job.args for job in jobs])
        if any(errors):
            for job, error in zip(jobs, errors, strict=True):
                if error is not None:
                    job.fail(JobArgumentsError(job.job, error))
            fit = [(job, value) for job, value, error in zip(jobs, values, errors, strict=True) if error is None]
            jobs, values = [job for job, _ in fit], [value for _, value in fit]
        columns = pa.RecordBatch.from_pylist(values, schema=self._schema)
        return jobs, _batch(jobs, dict(zip(self._schema.names, columns.columns, strict=True)))


def check_arguments(arguments: StructType) -> None:
    """Raise ConfigError for arguments that cannot be columns."""
    taken = sorted(set(arguments.names) & {*COLUMNS, "args"})
    if taken:
        raise ConfigError(f"args: {', '.join(taken)} are columns of every job; leave args out, and read them as JSON")
    decoder("json", pa.struct(list(to_arrow_schema(arguments, timezone="UTC"))))


def _batch(jobs: Sequence[ClaimedJob], arguments: dict[str, pa.Array]) -> pa.RecordBatch:
    columns = {
        "id": pa.array(list(map(_ID, jobs)), pa.string()),
        "job": pa.array(list(map(_JOB, jobs)), pa.string()),
        "key": pa.array(list(map(_KEY, jobs)), pa.string()),
        "attempt": pa.array(list(map(_ATTEMPT, jobs)), pa.int32()),
        "last_error": pa.array([job.last_error for job in jobs], pa.string()),
        "enqueued_at": pa.array(list(map(_ENQUEUED_AT, jobs)), _NANOS).cast(_TIME, safe=False),
        **arguments,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class ResultRows:
    """Sets each job's outcome. With a stream's ``config``, results are its messages, under ``subject``."""

    def __init__(self, config: StreamConfig | None, subject: str | None) -> None:
        self._config = config
        self._subject = subject
        self._encoder: StreamEncoder | None = None
        self._encoder_schema: pa.Schema | None = None

    def take(self, jobs: Sequence[ClaimedJob], ids: pa.Array, rows: pa.RecordBatch) -> None:
        """Set the outcomes of these jobs, which have these ids. Raises ConfigError for rows that break the contract."""
        mine = _jobs_of(rows, jobs, ids)
        failed = self._fail(mine, rows)
        if failed:
            done = [index for index, job in enumerate(mine) if job.id not in failed]
            mine, rows = [mine[index] for index in done], rows.take(pa.array(done, pa.int64()))
        self._complete(mine, rows.select([name for name in rows.schema.names if name not in _ENDINGS]), rows)
        for job in jobs:
            if not job.is_decided:
                job.fail(MissingRowError())

    def _fail(self, mine: Sequence[ClaimedJob], rows: pa.RecordBatch) -> set[str]:
        errors, delays, permanent = (_column(rows, name) for name in _ENDINGS[1:])
        failed: set[str] = set()
        if errors is None:
            return failed
        for index, error in enumerate(errors):
            if error is None:
                continue
            job, text = mine[index], str(error)
            failed.add(job.id)
            delay = delays[index] if delays is not None else None
            is_last = permanent is not None and bool(permanent[index])
            job.fail(PermanentJobError(text) if is_last else RowError(text, _seconds(delay)))
        return failed

    def _complete(self, mine: Sequence[ClaimedJob], results: pa.RecordBatch, rows: pa.RecordBatch) -> None:
        if self._config is not None:
            self._publish(mine, rows)
            return
        if len(set(mine)) < len(mine):
            raise ConfigError("the function returned several rows of a job: name a stream for them, or return one")
        if not results.num_columns:
            for job in mine:
                job.complete()
            return
        for job, result in zip(mine, json_rows(results, results.schema.names), strict=True):
            job.complete_encoded(msgspec.Raw(result))

    def _publish(self, mine: Sequence[ClaimedJob], rows: pa.RecordBatch) -> None:
        """Publish a message for each row; an invalid row fails only its own job."""
        encoder = self._encoder_for(rows.schema)
        try:
            _emit(mine, encoder, rows)
        except ConfigError:
            for index, job in enumerate(mine):
                _emit_one(job, encoder, rows.slice(index, 1))

    def _encoder_for(self, schema: pa.Schema) -> StreamEncoder:
        if self._encoder is None or schema != self._encoder_schema:
            assert self._config is not None
            kept = [name for name in schema.names if name not in _ENDINGS and schema.field(name).type != pa.null()]
            fields = pa.schema([schema.field(name) for name in kept])
            self._encoder, self._encoder_schema = (
                StreamEncoder(sql_types(from_arrow_schema(fields)), self._config, self._subject),
                schema,
            )
        return self._encoder


def _jobs_of(rows: pa.RecordBatch, jobs: Sequence[ClaimedJob], ids: pa.Array) -> Sequence[ClaimedJob]:
    """Return the job of each row. Raises ConfigError for a row without one."""
    if "id" not in rows.schema.names:
        raise ConfigError(f"the function returned {', '.join(rows.schema.names) or 'no columns'}: keep the column id")
    named = rows.column("id").cast(pa.string())
    if named.equals(ids):
        return jobs
    by_id = {job.id: job for job in jobs}
    try:
        return [by_id[id] for id in named.to_pylist()]
    except KeyError as error:
        raise ConfigError(f"the function returned a row with id {error}, which is not one of its jobs") from None


def _emit(jobs: Sequence[ClaimedJob], encoder: StreamEncoder, rows: pa.RecordBatch) -> None:
    messages = encoder.messages(rows)
    blocks = messages.blocks or [None] * len(jobs)
    subjects, payloads = messages.subjects.to_pylist(), messages.payloads.to_pylist()
    for job, subject, data, block in zip(jobs, subjects, payloads, blocks, strict=True):
        job.emit_encoded(subject, data, block)
        if not job.is_decided:
            job.complete()


def _emit_one(job: ClaimedJob, encoder: StreamEncoder, row: pa.RecordBatch) -> None:
    try:
        if not isinstance(job.ending, Failed):
            _emit([job], encoder, row)
    except ConfigError as error:
        job.fail(PermanentJobError(str(error)))


def _column(rows: pa.RecordBatch, name: str) -> list[Any] | None:
    if name not in rows.schema.names or rows.column(name).null_count == rows.num_rows:
        return None
    found: list[Any] = rows.column(name).to_pylist()
    return found


def _seconds(delay: Any) -> float | None:
    if delay is None:
        return None
    try:
        return float(delay)
    except (TypeError, ValueError):
        raise ConfigError(f"column retry_after is {delay!r}: give seconds") from None
