"""Batch and streaming reads: ``spark.read`` and ``spark.readStream.format("pelton")``.

**Batch reads: ``spark.read.format("pelton")``.** Spark pushes filters down only if
``spark.sql.python.filterPushdown.enabled`` is set, and otherwise refuses a reader that accepts them. The module that
Spark runs us in shows which of the two is the case.

**Admission: how far the next micro-batch of a streaming query goes, given its limits of messages and bytes.** If a
stream has gaps or is filtered, a range holds fewer messages than sequences; ``count_from`` counts them, and a bisection
finds the end, so that a batch holds as many messages as the limits allow.

**Streaming reads: ``spark.readStream.format("pelton")``.** Spark keeps one of our processes for each query. It reports
how far there is to read (``latestOffset``) and plans the tasks (``partitions``); tasks run elsewhere. Spark writes the
result of ``latestOffset`` to the checkpoint before it reads a row. After a restart, or if a batch was not committed, it
asks for exactly the same range again: partitions depend only on the range, and messages never change, so a batch that
is read twice is the same batch.

Failures: messages of the range that limits removed, and a stream that was deleted or created again, are errors (or are
logged, ``failOnDataLoss``). Each task checks its own range again: see ``ranges.py``.

A durable consumer (``consumer``) only tracks the query. It decides nothing.

**A durable consumer that tracks a streaming query's checkpoint, so that other tools can see the query's progress.** The
checkpoint is authoritative; the consumer mirrors it. Spark reports that a batch is committed only when it builds the
next one, and never the last one, so the consumer is also reconciled with the offset that a query starts from.

- A stream with limits retention: the consumer's position is moved (``reset``), and its pending messages are the lag.
- A work queue, or interest retention: what was read has to be acknowledged, message by message, and is removed then.
  So this deliberately stays one batch behind: a batch whose commit Spark loses in a power loss can be read again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pelton.api import (
    AckOp,
    ConfigError,
    ConsumerCreate,
    ConsumerReset,
    Delivered,
    PullRequest,
    StreamNotFoundError,
    consumer_config,
)
from pelton.runtime import stopwatch
from pelton.spark.options import DataLossError, is_selected
from pelton.spark.read.ranges import (
    DataLossPolicy,
    Offset,
    SequenceRange,
    StreamPosition,
    begin,
    from_json,
    next_end,
    read_range,
    split_ranges,
    to_json,
)
from pelton.spark.read.read_options import PushedFilters, push_filters
from pelton.spark.store_handle import StoreHandle, StreamView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pelton.spark.read.read_options import ReadOptions

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class PeltonBatchReader(DataSourceReader):
    """Reads streams up to where they end when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.pushed: PushedFilters = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read, one for each task."""
        options = self.options
        with StoreHandle(options.store, looks=True) as store:
            found = store.streams(options.streams)
            ranges = [self._range(store, stream) for stream in found if self.pushed.has_stream(stream.name)]
        parts = split_ranges(
            [part for part in ranges if part.span > 0], rows=options.rows_per_partition, at_least=options.min_partitions
        )
        # Spark requires at least one partition, even for no rows.
        return parts or [InputPartition(None)]

    def _range(self, store: StoreHandle, stream: StreamView) -> SequenceRange:
        options, asked = self.options, self.pushed
        start = options.start.of(stream.name)
        first = store.sequence(stream, start)
        end = options.end.of(stream.name)
        # An ending sequence is inclusive, an ending time exclusive.
        last = end.value if end.kind == "sequence" else store.sequence(stream, end) - 1
        first = max(first, asked.first_seq)
        last = min(last, stream.last, asked.last_seq)
        if asked.from_time is not None:
            first = max(first, store.sequence(stream, asked.from_time))
        if asked.before_time is not None:
            last = min(last, store.sequence(stream, asked.before_time) - 1)
        at_front = start.kind != "sequence" and first == stream.first
        return SequenceRange(
            stream.name, stream.created, first, last, fails_on_loss=stream.drops_oldest, at_front=at_front
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SequenceRange):
            filters = self.pushed.filters(self.options.subjects)
            yield from read_range(self.options, self.schema, partition, filters)


class PushdownReader(PeltonBatchReader):
    """A batch reader that accepts pushed filters."""

    pushed: PushedFilters

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Accept filters on stream, sequence, time and subject; return those that Spark still has to apply."""
        self.pushed, left = push_filters(filters)
        return left


def reader(options: ReadOptions, schema: StructType) -> PeltonBatchReader:
    """Return the reader that Spark accepts with its present settings."""
    return (PushdownReader if _has_pushdown() else PeltonBatchReader)(options, schema)


def _has_pushdown() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(spec, "name", None) == _PUSHING


class Backlog(NamedTuple):
    """What one stream has for the next batch: ``messages`` from ``first`` to ``last``, of ``size`` bytes on average."""

    first: int
    last: int
    messages: int
    size: float

    @property
    def is_dense(self) -> bool:
        """Whether every sequence of the range is a message."""
        return self.messages >= self.last - self.first + 1


def shares_of_batch(max_rows: int, max_bytes: int, backlogs: dict[str, Backlog]) -> dict[str, int]:
    """Return how many messages of each stream go into the next batch, in proportion to the streams' backlogs.

    Every stream with a backlog gets at least one message, so that none starves. A limit of 0 means no limit.
    """
    total = sum(backlog.messages for backlog in backlogs.values())
    weight = sum(backlog.messages * backlog.size for backlog in backlogs.values())
    share = 1.0
    if max_rows and total > max_rows:
        share = max_rows / total
    if max_bytes and weight > max_bytes:
        share = min(share, max_bytes / weight)
    return {
        name: backlog.messages if share >= 1 else max(int(backlog.messages * share), 1)
        for name, backlog in backlogs.items()
        if backlog.messages > 0
    }


def end_of(backlog: Backlog, rows: int, count_from: Callable[[int], int]) -> int:
    """Return the sequence of the last of ``rows`` messages; ``count_from`` counts from a sequence to the end."""
    if rows >= backlog.messages:
        return backlog.last
    if backlog.is_dense:
        return backlog.first + rows - 1
    # The count falls as the sequence grows: the first sequence with so few messages after it is the end.
    left = count_from(backlog.first) - rows
    low, high = backlog.first, backlog.last
    while low < high:
        middle = (low + high) // 2
        if count_from(middle + 1) <= left:
            high = middle
        else:
            low = middle + 1
    return low


_PULL: Final = 1000


class ConsumerTracker:
    """Moves each stream's consumer to the query's position. Does nothing if the query names no consumer."""

    def __init__(self, store: StoreHandle, options: ReadOptions) -> None:
        self._store = store
        self._options = options
        self._name = options.consumer
        self._acked: dict[tuple[str, str], int] = {}
        self._floors: dict[str, int] = {}
        self._begun = False

    def reconcile(self, offset: Offset) -> None:
        """Move to the offset that a batch starts from: everything before it is committed."""
        if self._name is None:
            return
        self._move(offset, drain=not self._begun)
        self._begun = True

    def on_commit(self, offset: Offset) -> None:
        """Move to the end of a batch that Spark has committed."""
        if self._name is not None:
            self._move(offset, drain=True)

    def _move(self, offset: Offset, *, drain: bool) -> None:
        for stream in self._store.present(self._options.streams):
            position = offset.get(stream.name)
            if position is None or position.created != stream.created:
                continue
            key = (stream.name, stream.created)
            if key not in self._acked:
                self._make(stream)
                self._acked[key] = -1
            if position.sequence == self._acked[key]:
                continue
            if stream.config.retention == "limits":
                self._store.run(self._reset, stream.name, position.sequence + 1)
            elif not drain:
                continue
            else:
                self._store.run(self._drain, stream.name, position.sequence)
            self._acked[key] = position.sequence

    def _make(self, stream: StreamView) -> None:
        if stream.config.retention != "limits" and self._options.start.of(stream.name).kind != "earliest":
            raise ConfigError(
                f"a consumer acknowledges everything before its query, and stream {stream.name!r} then removes it: "
                "begin with the earliest message, or read without a consumer"
            )
        fields: dict[str, Any] = {"filter_subjects": list(self._options.subjects)} if self._options.subjects else {}
        config = consumer_config(
            durable_name=self._name,
            description="follows a Spark query",
            ack_policy="explicit",
            headers_only=True,
            max_ack_pending=_PULL,
            **fields,
        )
        self._store.run(self._store.jet.backend.call, ConsumerCreate(stream_name=stream.name, config=config))

    async def _reset(self, stream: str, seq: int) -> None:
        assert self._name is not None
        await self._store.jet.backend.call(ConsumerReset(stream=stream, name=self._name, seq=seq))

    async def _drain(self, stream: str, upto: int) -> None:
        """Acknowledge everything up to a sequence; messages pulled beyond it are nacked."""
        backend, name = self._store.jet.backend, self._name
        assert name is not None
        floor = max(self._floors.get(stream, 0), 0)
        while floor < upto:
            # Pull no more than there can be: the surplus would have to be nacked.
            found = await backend.pull(stream, name, PullRequest(batch=min(_PULL, upto - floor), no_wait=True))
            if not found:
                return
            refused = await backend.ack(stream, name, [_ack(delivered, upto) for delivered in found])
            for error in refused:
                if error is not None:
                    raise error
            floor = self._floors[stream] = min(max(floor, *(delivered.seq for delivered in found)), upto)


def _ack(delivered: Delivered, upto: int) -> AckOp:
    return AckOp(
        kind="ack" if delivered.seq <= upto else "nak",
        seq=delivered.seq,
        consumer_seq=delivered.consumer_seq,
        num_delivered=delivered.num_delivered,
        token=delivered.token,
    )


class PeltonStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams in micro-batches, for as long as the query runs."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._target: Offset | None = None
        self._batch_began = stopwatch()
        self._empty_upto: dict[tuple[str, str], int] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get the options, and open the store themselves.
        return {"options": self.options, "schema": self.schema}

    @cached_property
    def _store(self) -> StoreHandle:
        # A consumer that follows the query is written.
        return StoreHandle(self.options.store, looks=self.options.consumer is None)

    @cached_property
    def _losses(self) -> DataLossPolicy:
        return DataLossPolicy(fail=self.options.fail_on_data_loss)

    @cached_property
    def _tracker(self) -> ConsumerTracker:
        return ConsumerTracker(self._store, self.options)

    # --- offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where a new query starts."""
        found = self._store.streams(self.options.streams)
        begins = {stream.name: self._begin(stream) for stream in found}
        return to_json({s.name: StreamPosition(begins[s.name], s.created, begins[s.name]) for s in found})

    def _begin(self, stream: StreamView) -> int:
        start = self.options.start.of(stream.name)
        first = self._store.sequence(stream, start)
        if start.kind != "sequence" and first == stream.first and stream.messages:
            # The front when the first batch reads it: limits move it all the time.
            return 0
        return first - 1

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the next batch ends; ``start`` itself if there is no batch yet."""
        before = from_json(start)
        self._tracker.reconcile(before)
        streams = self._streams(before)
        backlogs = {name: self._backlog(stream, before.get(name)) for name, stream in streams.items()}
        if isinstance(limit, ReadAllAvailable):
            rows = {name: backlog.messages for name, backlog in backlogs.items()}
        elif self._is_too_little(backlogs):
            return start
        else:
            rows = shares_of_batch(self.options.max_rows, self.options.max_bytes, backlogs)
        lasts = {name: self._end(stream, backlogs[name], rows.get(name, 0)) for name, stream in streams.items()}
        ends = {name: StreamPosition(last, streams[name].created) for name, last in lasts.items() if last}
        if not ends:
            return start
        self._batch_began = stopwatch()
        return to_json(next_end(before, ends))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit that Spark shows: it can show only one, so this reader applies all limits itself."""
        return ReadMaxBytes(self.options.max_bytes) if self.options.max_bytes else ReadMaxRows(self.options.max_rows)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return where the streams end, for the query's progress: the difference is the lag."""
        found = self._store.present(self.options.streams)
        return to_json({stream.name: StreamPosition(stream.last, stream.created) for stream in found})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Record where the streams end now, because the query ends there."""
        found = self._store.present(self.options.streams)
        self._target = {stream.name: StreamPosition(stream.last, stream.created) for stream in found}

    # --- batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one batch. Raises DataLossError."""
        before, ends = from_json(start), from_json(end)
        ranges = [
            part for name, upto in ends.items() if (part := self._range(name, begin(upto, before.get(name)), upto))
        ]
        return split_ranges(ranges, rows=self.options.rows_per_partition, at_least=self.options.min_partitions)

    def _range(self, name: str, before: StreamPosition | None, upto: StreamPosition) -> SequenceRange | None:
        known = before if before is not None and before.created == upto.created else None
        first = known.sequence + 1 if known else 1
        if first > upto.sequence:
            return None
        try:
            stream = self._store.stream(name)
        except StreamNotFoundError:
            stream = None
        if stream is None or stream.created != upto.created:
            self._losses.report(DataLossError(name, first, upto.sequence, "it was deleted while a query read it"))
            return None
        fails_on_loss = known is not None and self._must_hold(stream)
        at_front = first == 1 and self.options.start.of(name).kind != "sequence"
        part = SequenceRange(name, stream.created, first, upto.sequence, fails_on_loss=fails_on_loss, at_front=at_front)
        self._losses.check(part, first, stream.first)
        first = max(first, stream.first)
        if first > upto.sequence:
            return None
        return SequenceRange(name, stream.created, first, upto.sequence, fails_on_loss=fails_on_loss, at_front=at_front)

    def _must_hold(self, stream: StreamView) -> bool:
        # A work queue that only this query consumes keeps what it has not acknowledged.
        return stream.drops_oldest or (self.options.consumer is not None and not self.options.subjects)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SequenceRange)
        yield from read_range(self.options, self.schema, partition, self.options.subjects)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the tracking consumer, because a batch is committed."""
        self._tracker.on_commit(from_json(end))

    def stop(self) -> None:
        store = self.__dict__.pop("_store", None)
        if store is not None:
            store.close()

    # --- the streams as they are now

    def _streams(self, before: Offset) -> dict[str, StreamView]:
        """Return the streams to continue with, and report missing ones. Raises DataLossError."""
        found = {stream.name: stream for stream in self._store.present(self.options.streams)}
        for name, position in before.items():
            stream = found.get(name)
            if stream is None or stream.created != position.created:
                why = self._why_gone(name) if stream is None else "it was deleted and created again"
                self._losses.report(DataLossError(name, position.sequence + 1, position.sequence + 1, why))
            elif position.sequence > stream.last and not self._begins_later(name, position):
                why = f"it ends at {stream.last}, before {position.sequence}, up to which it was read: was it restored?"
                self._losses.report(DataLossError(name, stream.last + 1, position.sequence, why))
        target = self._target
        return found if target is None else {name: found[name] for name in target if name in found}

    def _why_gone(self, name: str) -> str:
        if is_selected(name, self.options.streams):
            return "it was deleted while a query read it"
        asked = ",".join(self.options.streams)
        return f"the checkpoint's query reads it, but option stream ({asked}) does not"

    def _begins_later(self, name: str, position: StreamPosition) -> bool:
        return position.sequence < self.options.start.of(name).value

    def _backlog(self, stream: StreamView, before: StreamPosition | None) -> Backlog:
        known = before if before is not None and before.created == stream.created else None
        first = max(known.sequence + 1 if known else 1, stream.first)
        last = stream.last if self._target is None else min(stream.last, self._target[stream.name].sequence)
        size = stream.bytes / stream.messages if stream.messages else 0.0
        span = max(last - first + 1, 0)
        if not self.options.subjects and (stream.is_gapless or span <= self.options.max_rows):
            return Backlog(first, last, span, size)
        return Backlog(first, last, self._count(stream, first, last), size)

    def _count(self, stream: StreamView, first: int, last: int) -> int:
        """Count matching messages, but never recount a range that is known to be empty."""
        key = (stream.name, stream.created)
        first = max(first, self._empty_upto.get(key, 0) + 1)
        if first > last:
            return 0
        filters = self.options.subjects
        count = self._store.count_from(stream, first, filters)
        if last < stream.last:
            count -= self._store.count_from(stream, last + 1, filters)
        if not count:
            self._empty_upto[key] = last
        return count

    def _end(self, stream: StreamView, backlog: Backlog, rows: int) -> int:
        """Return the last sequence of the next batch; 0 if the stream has no part in it."""
        if not rows or backlog.last < backlog.first:
            return 0
        return end_of(backlog, rows, lambda seq: self._store.count_from(stream, seq, self.options.subjects))

    def _is_too_little(self, backlogs: dict[str, Backlog]) -> bool:
        """Whether to wait for more messages: at most for the maximal delay, and never if the query has a fixed end."""
        if self._target is not None or stopwatch() - self._batch_began >= self.options.max_delay:
            return False
        return sum(backlog.messages for backlog in backlogs.values()) < self.options.min_rows
