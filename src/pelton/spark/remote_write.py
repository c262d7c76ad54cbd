"""What a task does for a cluster: publishes each row as it comes, so that a second try is told from the first.

A message id names batch, partition and row, and the row's checksum: if what comes in a second try is not what came in
the first (rows whose order is not fixed), a row may be there twice, but none is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pelton.api import Outgoing, headers
from pelton.spark.ledger import Ledger
from pelton.spark.place import Place
from pelton.spark.staging import file_name

if TYPE_CHECKING:
    import pyarrow as pa

    from pelton.spark.attempts import Attempt, Batch
    from pelton.spark.rows import Messages
    from pelton.spark.writing import Writing

_ID: Final = headers.MSG_ID.encode()
_OPENING: Final = b"NATS/1.0\r\n"


def write_cluster(writing: Writing, batches: Iterator[pa.RecordBatch], batch: Batch, attempt: Attempt) -> None:
    """Publish rows; returns when all are acknowledged. Raises LateReplayError, and what publishing raises."""
    options = writing.options
    with Place(options.place) as place:
        if writing.keeps_ledger and not place.run(_begin, place, writing, batch, attempt):
            return
        base = f"{file_name(batch.writer)}-{batch.number}-{attempt.partition}-".encode()
        row = 0
        for rows in batches:
            messages = writing.shape.messages(rows)
            place.run(place.jet.backend.publish_batch, _identified(messages, base, row))
            row += len(messages.subjects)


async def _begin(place: Place, writing: Writing, batch: Batch, attempt: Attempt) -> bool:
    ledger, is_first = Ledger(place.jet, writing.target), attempt.number == 0
    late = writing.options.late_replay
    return await ledger.begin(batch, writing.run, first=is_first, window_ns=writing.window_ns, late=late)


def finish(writing: Writing, batch: Batch) -> None:
    """Note that a batch is written."""
    with Place(writing.options.place) as place:
        place.run(Ledger(place.jet, writing.target).finish, batch)


def _identified(messages: Messages, base: bytes, row: int) -> list[Outgoing]:
    blocks = messages.blocks or [None] * len(messages.subjects)
    found: list[Outgoing] = []
    subjects, payloads = messages.subjects.to_pylist(), messages.payloads.to_pylist()
    for number, (subject, data, block) in enumerate(zip(subjects, payloads, blocks, strict=True), row):
        if block is None or headers.first(block, headers.MSG_ID) is None:
            line = b"%b: %b%d-%x\r\n\r\n" % (_ID, base, number, crc32(data, crc32(subject.encode())))
            block = (_OPENING if block is None else block[:-2]) + line
        found.append((subject, data, block))
    return found
