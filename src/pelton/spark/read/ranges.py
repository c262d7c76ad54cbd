"""Ranges of streams: the partitions of a read, the offsets of a query, and the reading of one range in a task.

**Offsets of a streaming query: for each stream, the last sequence read, and the stream's creation time.** Spark writes
offsets to the checkpoint as JSON and compares the text, so keys are always sorted. The creation time distinguishes a
stream from one that was deleted and created again under the same name.

Spark does not checkpoint where a query starts: to repeat the first batch it asks for the initial offset again. By then,
limits may have removed messages, or ``latest`` may have moved. So the end of the first batch also records its start.

**Reads a range of a cluster's stream in a task, by batched direct gets (ADR-31).** A stream that does not allow direct
gets is read by an ordered consumer (ADR-17). A work queue, where another consumer would interfere, is read message by
message, which is slow: allow direct gets on work queues.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pelton.api import DirectGet, MessageNotFoundError, StoredMessage, StreamNotFoundError, api_error
from pelton.columns.arrow_batches import BatchBuilder, columns_of_messages, columns_of_rows
from pelton.columns.joined_columns import split_columns, sums_of_columns
from pelton.engine.bulk import BulkReader
from pelton.spark.columns import arrow_schema
from pelton.spark.options import DataLossError
from pelton.spark.store_handle import StoreHandle, StreamView, encryption_key
from pelton.subjects import compile_filter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pelton.api import CorruptMessageError
    from pelton.spark.options import StoreOptions
    from pelton.spark.read.read_options import ReadOptions

_MOST_PARTITIONS: Final = 10_000


class SequenceRange(InputPartition):
    """The sequences ``first`` to ``last`` of the stream that was created at ``created`` (RFC 3339).

    ``fails_on_loss``: losing sequences at the stream's front is an error. ``at_front``: the range begins at what was
    the stream's first message when the read was planned, so messages that expire there before they are read are not
    missing.
    """

    def __init__(
        self, stream: str, created: str, first: int, last: int, *, fails_on_loss: bool, at_front: bool = False
    ) -> None:
        super().__init__((stream, first, last))
        self.stream = stream
        self.created = created
        self.first = first
        self.last = last
        self.fails_on_loss = fails_on_loss
        self.at_front = at_front

    @property
    def span(self) -> int:
        """The number of sequences, stored or not."""
        return self.last - self.first + 1

    def parts(self, count: int) -> Iterator[SequenceRange]:
        """Split into ``count`` ranges of nearly equal length, or fewer if there are fewer sequences."""
        count = max(1, min(count, self.span))
        cuts = [self.first + self.span * part // count for part in range(count + 1)]
        for first, after in pairwise(cuts):
            at_front = self.at_front and first == self.first
            yield SequenceRange(
                self.stream, self.created, first, after - 1, fails_on_loss=self.fails_on_loss, at_front=at_front
            )


def split_ranges(ranges: Sequence[SequenceRange], *, rows: int, at_least: int) -> list[SequenceRange]:
    """Return ranges of at most ``rows`` sequences, and ``at_least`` that many of them if possible.

    A sparse stream would otherwise make far too many tasks: from 10,000 on, the ranges grow instead.
    """
    total = sum(part.span for part in ranges)
    count = min(max(at_least, _ratio(total, rows)), _MOST_PARTITIONS)
    return [piece for part in ranges for piece in part.parts(_ratio(part.span * count, total))]


def _ratio(total: int, part: int) -> int:
    return -(-total // part)


class StreamPosition(NamedTuple):
    """The stream created at ``created`` was read up to ``sequence``.

    ``began``: set if that was all in the first batch, which starts after this sequence; otherwise None.
    """

    sequence: int
    created: str
    began: int | None = None


Offset = dict[str, StreamPosition]


def to_json(offset: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Return an offset in the form that Spark checkpoints."""
    return {name: _json_of(offset[name]) for name in sorted(offset)}


def _json_of(position: StreamPosition) -> dict[str, Any]:
    began = {} if position.began is None else {"began": position.began}
    return {**began, "created": position.created, "sequence": position.sequence}


def from_json(kept: Mapping[str, Any]) -> Offset:
    """Return an offset from the form that Spark checkpoints."""
    return {name: StreamPosition(int(at["sequence"]), str(at["created"]), at.get("began")) for name, at in kept.items()}


def next_end(before: Offset, ends: Offset) -> Offset:
    """Return the end offset of a batch that starts at ``before``; streams that are not in ``ends`` do not advance."""
    after: Offset = {}
    for name in before.keys() | ends.keys():
        start, end = before.get(name), ends.get(name)
        position = end or start
        assert position is not None
        is_first = start is not None and start.began == start.sequence and start.created == position.created
        after[name] = position._replace(began=start.began if start is not None and is_first else None)
    return after


def begin(end: StreamPosition, start: StreamPosition | None) -> StreamPosition | None:
    """Return where a stream's part of a batch starts, given Spark's start offset; None: at the stream's beginning."""
    return start if end.began is None else StreamPosition(end.began, end.created)


def lag(progress: Mapping[str, Any] | None) -> dict[str, int]:
    """Return how many sequences a streaming query was behind each stream, according to its progress.

    ``progress`` is ``query.lastProgress`` (or an item of ``recentProgress``); sources of other formats are ignored. As
    long as the query has made no progress, that is None, and nothing is known of any stream.
    """
    behind: dict[str, int] = {}
    for source in progress["sources"] if progress is not None else ():
        latest, end = (_offset_of(source[key]) for key in ("latestOffset", "endOffset"))
        for name, position in latest.items():
            read = end[name].sequence if name in end else 0
            behind[name] = behind.get(name, 0) + position.sequence - read
    return behind


def _offset_of(kept: str | None) -> Offset:
    """Parse an offset from a query's progress; an empty one if it is another format's."""
    try:
        return from_json(json.loads(kept or "{}"))
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


# --- messages missing from a range: an error, or logged and skipped (``failOnDataLoss``)

_log: Final = logging.getLogger("pelton.spark")


class DataLossPolicy:
    """Raises the errors of missing and corrupted messages (``fail``), or logs them and continues."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def check(self, part: SequenceRange, position: int, first_seq: int) -> None:
        """Compare the position of a read with the stream's first sequence. Raises DataLossError.

        A range that begins at the front of its stream takes the front at the time it is read: old messages expire
        all the time.
        """
        if part.at_front and position == part.first:
            return
        if part.fails_on_loss and first_seq > position:
            self.report(DataLossError(part.stream, position, min(first_seq - 1, part.last)))

    def report(self, error: DataLossError | CorruptMessageError) -> None:
        if self._fail:
            raise error
        _log.warning("skipped: %s", error)


_ROWS: Final = 1000
_BYTES: Final = 4 * 1024 * 1024


def read_cluster(
    options: StoreOptions, part: SequenceRange, filters: Sequence[str], builder: BatchBuilder, losses: DataLossPolicy
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as batches. Raises DataLossError, StreamNotFoundError."""
    with StoreHandle(options) as store:
        stream = _current_stream(store, part, part.first, losses)
        transient = stream.allows_transient_consumers
        read = _direct if stream.config.allow_direct else _by_order if transient else _one_by_one
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


def _by_order(store: StoreHandle, part: SequenceRange, filters: Sequence[str]) -> Iterator[list[StoredMessage]]:
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
        options.address, part.stream, part.created, filters=filters, key=key, sums=sums_of_columns, split=split_columns
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


def read_range(
    options: ReadOptions, schema: StructType, part: SequenceRange, filters: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as batches. Raises DataLossError, StreamNotFoundError, CorruptMessageError."""
    builder = BatchBuilder(part.stream, arrow_schema(schema), options.decode)
    losses = DataLossPolicy(fail=options.fail_on_data_loss)
    read = read_cluster if options.store.is_cluster else read_store
    yield from read(options.store, part, filters, builder, losses)
