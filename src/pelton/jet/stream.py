"""The handle of a stream: read it, purge it, consume it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pelton.api import (
    ApiError,
    Backend,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfoRequest,
    ConsumerNames,
    MsgDelete,
    StreamConfig,
    StreamDelete,
    StreamInfo,
    StreamInfoRequest,
    StreamPurge,
    consumer_config,
)
from pelton.api.admission import explain
from pelton.api.build import seconds_to_ns
from pelton.api.numbers import counter_value
from pelton.api.times import Seconds
from pelton.jet.arrow_reads import batches_of_rows, plan_read, requested, row_reader
from pelton.jet.consumer import Consumer
from pelton.jet.message import Message
from pelton.jet.ordered import HEARTBEAT_S, OrderedReader
from pelton.jet.readable import Readable, at_leader
from pelton.runtime import Runtime, at_home

if TYPE_CHECKING:
    import pyarrow

    from pelton.columns.decoder import Decode


class Stream(Readable):
    """A stream. ``config`` is its last known configuration."""

    def __init__(self, backend: Backend, config: StreamConfig, runtime: Runtime) -> None:
        super().__init__(backend, config)
        self._check_loop = backend.check_loop
        self._runtime = runtime

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    async def info(self, *, subjects_filter: str = "", offset: int = 0, deleted_details: bool = False) -> StreamInfo:
        """Return configuration and state; with ``subjects_filter`` also the number of messages per subject.

        100,000 subjects at most, from ``offset`` on; ``total`` is how many match. With ``deleted_details``, the state
        lists the sequences of deleted messages. Raises StreamNotFoundError.
        """
        request = StreamInfoRequest(
            name=self.name, subjects_filter=subjects_filter, offset=offset, deleted_details=deleted_details
        )
        return await self._backend.call(request)

    async def purge(self, *, filter: str = "", seq: int = 0, keep: int = 0) -> int:
        """Remove messages, and return how many.

        All of them, those of one subject filter, those below a sequence, or all but the newest ``keep``.
        """
        request = StreamPurge(name=self.name, filter=filter, seq=seq, keep=keep)
        return (await self._backend.call(request)).purged

    async def counter(self, subject: str) -> int:
        """Return the total of a counter, 0 if nothing was added yet (ADR-49); :meth:`Jet.add` adds.

        Raises ConfigError if the subject's last message is no counter.
        """
        return await total_of(self._backend, self.name, subject)

    async def delete_message(self, seq: int) -> None:
        """Remove one message. Raises ApiError 10057 or 10043 when there is none."""
        await self._backend.call(MsgDelete(stream=self.name, seq=seq))

    async def delete(self) -> None:
        """Remove the stream, its messages and its consumers."""
        await self._backend.call(StreamDelete(name=self.name))

    async def to_arrow(
        self,
        *,
        columns: Sequence[str] | None = None,
        subjects: str | Iterable[str] = ">",
        start_seq: int = 1,
        end_seq: int = 0,
        start_time: datetime | str | None = None,
        end_time: datetime | str | None = None,
        decode: Decode | None = None,
        schema: pyarrow.Schema | pyarrow.DataType | None = None,
    ) -> pyarrow.RecordBatchReader:
        """Return the messages that the stream holds now as an Arrow reader, for Polars, DuckDB and pandas.

        ``columns``: some of ``stream``, ``subject``, ``sequence``, ``time``, ``headers``, ``data`` and ``size``; all by
        default. ``subjects`` is a filter or several. ``start_seq`` and ``end_seq`` are the first and the last sequence
        (0: the stream's last), ``start_time`` and ``end_time`` (exclusive) are aware datetimes or RFC 3339 text.
        ``decode`` (``json``, ``msgpack``, ``text``) adds the columns ``value``, of the type that ``schema`` gives, and
        ``error``, with the reason for each payload that cannot be decoded.

        A store's file is read as the reader is read, on a connection of its own, while others write; what is removed
        meanwhile may be missing. On a cluster and in memory all messages are fetched before this returns. Needs the
        extra ``arrow``. Raises ConfigError, StreamNotFoundError, ImportError; the reader raises CorruptMessageError.
        """
        read, info = await plan_read(
            self,
            columns=columns,
            subjects=subjects,
            start_seq=start_seq,
            end_seq=end_seq,
            start_time=start_time,
            end_time=end_time,
            decode=decode,
            schema=schema,
        )
        rows = row_reader(self._backend, info, read.filters)
        if rows is not None:
            return read.reader(batches_of_rows(rows, read))
        return read.reader([batch async for batch in requested(self, read)])

    async def create_consumer(self, config: ConsumerConfig | None = None, /, **fields: Any) -> Consumer:
        """Create a consumer, update it, or return the existing one.

        Keyword arguments are the fields of :class:`ConsumerConfig`; without ``durable_name`` it is ephemeral:
        removed when it was not used for ``inactive_threshold``.
        """
        wanted = consumer_config(config, **fields)
        try:
            info = await self._backend.call(ConsumerCreate(stream_name=self.name, config=wanted))
        except ApiError as error:
            raise explain(error, [wanted.filter_subject, *wanted.filter_subjects]) from None
        return Consumer(self._backend, info, self._runtime)

    async def consumer(self, name: str) -> Consumer:
        """Return an existing consumer. Raises ConsumerNotFoundError."""
        info = await self._backend.call(ConsumerInfoRequest(stream=self.name, name=name))
        return Consumer(self._backend, info, self._runtime)

    async def consumer_names(self) -> list[str]:
        """Return the names of the stream's consumers."""
        names: list[str] = []
        while True:
            page = await self._backend.call(ConsumerNames(stream=self.name, offset=len(names)))
            names += page.consumers
            if not page.consumers or len(names) >= page.total:
                return names

    async def delete_consumer(self, name: str) -> None:
        """Remove a consumer. Raises ConsumerNotFoundError."""
        await self._backend.call(ConsumerDelete(stream=self.name, name=name))

    @at_home
    async def ordered(self, *, heartbeat: Seconds = HEARTBEAT_S, **fields: Any) -> AsyncIterator[Message]:
        """Read messages exactly in order, each once, for ever: for readers that keep no position of their own.

        ``fields`` are the consumer's fields for where to start and what to read (``deliver_policy``, ``opt_start_seq``,
        ``filter_subject``, ``headers_only`` ...). Lost deliveries are read again, from another consumer if need be
        (ADR-17); two missed heartbeats, sent every ``heartbeat`` seconds, count as a loss. Nothing is acknowledged.
        Raises ConfigError, StreamNotFoundError.
        """
        seconds = seconds_to_ns("heartbeat", heartbeat, f"stream {self.name!r}") / 1e9
        reader = OrderedReader(self._backend, self._runtime, self.name, heartbeat=seconds, **fields)
        deliveries = reader.follow()
        try:
            async for delivered in deliveries:
                if delivered is not None:
                    yield Message(self._backend, delivered)
        finally:
            await deliveries.aclose()


async def total_of(backend: Backend, stream: str, subject: str) -> int:
    """Return the total of a counter, 0 if nothing was added."""
    found = await at_leader(backend, stream, last_by_subj=subject)
    return 0 if found is None else counter_value(found.data)


async def subjects_of(stream: Stream, filter_subject: str) -> dict[str, int]:
    """Return how many messages each subject has that matches: all of them, where a store lists 100,000 at a time."""
    found: dict[str, int] = {}
    offset = 0
    while True:
        info = await stream.info(subjects_filter=filter_subject, offset=offset)
        page = info.state.subjects or {}
        found |= page
        offset += len(page)
        if not page or offset >= info.total:
            return found
