"""Writes a task's rows to a cluster: publishes them as they come, with ids that deduplicate repeated attempts.

A message id names batch, partition and row, and the row's checksum. If a second attempt produces other rows than the
first (rows in no fixed order), a row may be stored twice, but none is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pelton.api import Outgoing, headers
from pelton.spark.store_handle import StoreHandle
from pelton.spark.write.commit_log import CommitLog
from pelton.spark.write.staging import file_name

if TYPE_CHECKING:
    import pyarrow as pa

    from pelton.columns.row_encoder import EncodedRows
    from pelton.spark.write.plan import WritePlan
    from pelton.spark.write.task_attempt import BatchId, TaskAttempt

_ID: Final = headers.MSG_ID.encode()
_OPENING: Final = b"NATS/1.0\r\n"


def write_cluster(plan: WritePlan, batches: Iterator[pa.RecordBatch], batch: BatchId, attempt: TaskAttempt) -> None:
    """Publish rows; return when all are acknowledged. Raises LateReplayError, and what publishing raises."""
    options = plan.options
    with StoreHandle(options.store) as store:
        if plan.keeps_commit_log and not store.run(_begin, store, plan, batch, attempt):
            return
        base = f"{file_name(batch.writer)}-{batch.number}-{attempt.partition}-".encode()
        row = 0
        for rows in batches:
            messages = plan.encoder.messages(rows)
            store.run(store.jet.backend.publish_batch, _identified(messages, base, row))
            row += len(messages.subjects)


async def _begin(store: StoreHandle, plan: WritePlan, batch: BatchId, attempt: TaskAttempt) -> bool:
    commit_log, is_first = CommitLog(store.jet, plan.target), attempt.number == 0
    late = plan.options.late_replay
    return await commit_log.begin(batch, plan.run, first=is_first, window_ns=plan.window_ns, late=late)


def finish(plan: WritePlan, batch: BatchId) -> None:
    """Record a batch as done in the commit log."""
    with StoreHandle(plan.options.store) as store:
        store.run(CommitLog(store.jet, plan.target).finish, batch)


def _identified(messages: EncodedRows, base: bytes, row: int) -> list[Outgoing]:
    blocks = messages.blocks or [None] * len(messages.subjects)
    found: list[Outgoing] = []
    subjects, payloads = messages.subjects.to_pylist(), messages.payloads.to_pylist()
    for number, (subject, data, block) in enumerate(zip(subjects, payloads, blocks, strict=True), row):
        if block is None or headers.first(block, headers.MSG_ID) is None:
            line = b"%b: %b%d-%x\r\n\r\n" % (_ID, base, number, crc32(data, crc32(subject.encode())))
            block = (_OPENING if not block else block[:-2]) + line
        found.append(Outgoing(subject, data, block))
    return found
