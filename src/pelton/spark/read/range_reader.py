"""Reads one range in a task: from a store file or a cluster to Arrow batches.

**Reads a range of a cluster's stream in a task, by batched direct gets (ADR-31).** A stream that does not allow direct
gets is read by an ordered consumer (ADR-17). A work queue, where another consumer would interfere, is read message by
message, which is slow: allow direct gets on work queues.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pelton.api import DirectGet, MessageNotFoundError, StoredMessage, StreamNotFoundError, api_error
from pelton.columns.arrow_batches import BatchBuilder, columns_of_messages, columns_of_rows
from pelton.columns.checksums import sums_of_columns
from pelton.columns.joined_columns import split_columns
from pelton.engine import BulkReader
from pelton.spark.columns.read_schema import arrow_schema
from pelton.spark.read.ranges import DataLossPolicy
from pelton.spark.store_handle import StoreHandle, StreamView, encryption_key
from pelton.subjects import compile_filter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pelton.spark.options import StoreOptions
    from pelton.spark.read.options import ReadOptions
    from pelton.spark.read.ranges import SequenceRange

_ROWS: Final = 1000
_BYTES: Final = 4 * 1024 * 1024


def read_cluster(
    options: StoreOptions, part: SequenceRange, filters: Sequence[str], builder: BatchBuilder, losses: DataLossPolicy
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as batches. Raises DataLossError, StreamNotFoundError."""
    with StoreHandle(options) as store:
        stream = _current_stream(store, part, part.first, losses)
        read = _direct if stream.config.allow_direct else _ordered if stream.allows_transient_consumers else _one_by_one
        position = part.first
        for messages in read(store, part, filters):
            # Messages removed during the read show as a gap, and then in the stream's first sequence.
            if messages[0].seq > position:
                _current_stream(store, part, position, losses)
            position = messages[-1].seq + 1
            wanted = _matching(messages, filters)
            if wanted:
                yield builder.of(columns_of_messages(wanted))
        if position <= part.last:
            _current_stream(store, part, position, losses)


def _current_stream(store: StoreHandle, part: SequenceRange, position: int, losses: DataLossPolicy) -> StreamView:
    """Return the stream, if it is still the same one, and report what it has lost."""
    stream = store.stream(part.stream)
    if stream.created != part.created:
        error = api_error("JSStreamNotFoundErr", stream=part.stream)
        assert isinstance(error, StreamNotFoundError)
        raise error
    losses.check(part, position, stream.first)
    return stream


def _direct(store: StoreHandle, part: SequenceRange, filters: Sequence[str]) -> Iterator[list[StoredMessage]]:
    """Read batch by batch. A request has one filter: with several, everything is read, and filtered here."""
    subject = filters[0] if len(filters) == 1 else ">"
    seq = part.first
    while seq <= part.last:
        request = DirectGet(seq=seq, next_by_subj=subject, batch=min(_ROWS, part.last - seq + 1), max_bytes=_BYTES)
        try:
            found = store.run(store.jet.backend.direct_get, part.stream, request).messages
        except MessageNotFoundError:
            return
        found = _up_to(found, part.last)
        if not found:
            return
        yield found
        seq = found[-1].seq + 1


def _one_by_one(store: StoreHandle, part: SequenceRange, filters: Sequence[str]) -> Iterator[list[StoredMessage]]:
    """Get one message after the other: slow, but without side effects."""
    subject = filters[0] if len(filters) == 1 else ">"
    handle = store.run(store.jet.stream, part.stream)

    async def take(seq: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        with suppress(MessageNotFoundError):
            while seq <= part.last and len(found) < _ROWS:
                found.append(await handle.get_next_message(subject, seq))
                seq = found[-1].seq + 1
        return _up_to(found, part.last)

    seq = part.first
    while found := store.run(take, seq):
        yield found
        seq = found[-1].seq + 1


def _ordered(store: StoreHandle, part: SequenceRange, filters: Sequence[str]) -> Iterator[list[StoredMessage]]:
    """Read with an ordered consumer, until nothing is pending or the range ends."""
    fields: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": part.first}
    if filters:
        fields["filter_subjects"] = list(filters)
    handle = store.run(store.jet.stream, part.stream)
    messages: Any = handle.ordered(**fields)

    async def take() -> list[StoredMessage]:
        found: list[StoredMessage] = []
        async for message in messages:
            d = message.delivered
            found.append(StoredMessage(d.subject, d.seq, d.time_ns, d.headers or b"", d.data))
            if d.seq >= part.last or not d.num_pending or len(found) >= _ROWS:
                ended.append(d.seq >= part.last or not d.num_pending)
                break
        return found

    ended = [store.stream(part.stream).last < part.first]
    try:
        while not ended[-1]:
            found = _up_to(store.run(take), part.last)
            if found:
                yield found
    finally:
        store.run(messages.aclose)


def _up_to(messages: list[StoredMessage], last: int) -> list[StoredMessage]:
    return messages if not messages or messages[-1].seq <= last else [m for m in messages if m.seq <= last]


def _matching(messages: list[StoredMessage], filters: Sequence[str]) -> list[StoredMessage]:
    if len(filters) < 2:
        return messages
    tests = [compile_filter(text) for text in filters]
    return [message for message in messages if any(test(message.subject) for test in tests)]


# --- reads a range of a store file's stream in a task: straight from the file, while others write to it


def read_store(
    options: StoreOptions, part: SequenceRange, filters: Sequence[str], builder: BatchBuilder, losses: DataLossPolicy
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as batches. Raises DataLossError, CorruptMessageError if losses are errors."""
    key = encryption_key(options)
    with BulkReader(
        options.address,
        part.stream,
        part.created,
        filters=filters,
        key=key,
        sums=sums_of_columns,
        split=split_columns,
    ) as reader:
        position = part.first
        while position <= part.last:
            # A portion is thousands of small objects without cycles: collecting garbage would cost a tenth.
            gc.disable()
            try:
                found = reader.read(position, part.last)
                losses.check(part, position, found.first)
                for seq in found.damaged:
                    losses.report(reader.corrupt(seq))
                batch = builder.of(columns_of_rows(found)) if found.messages else None
            finally:
                gc.enable()
            position = found.after + 1
            if batch is not None:
                yield batch


# --- reads one range in a task: from a store file or a cluster to Arrow batches


def read_range(
    options: ReadOptions, schema: StructType, part: SequenceRange, filters: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as batches. Raises DataLossError, StreamNotFoundError, CorruptMessageError."""
    builder = BatchBuilder(part.stream, arrow_schema(schema), options.decode)
    losses = DataLossPolicy(fail=options.fail_on_data_loss)
    read = read_cluster if options.store.is_cluster else read_store
    yield from read(options.store, part, filters, builder, losses)
