"""A queue's history as Arrow columns: a row for each job that ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

import msgspec
import pyarrow as pa

from pelton.queue.model.states import Outcome

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
