"""The handle of a stream: read it, purge it, consume it.

**Reads a stream's messages without consuming them: the lookups of :class:`pelton.Stream`.** Streams that allow it
(``allow_direct``) are read by direct get (ADR-31), which has less overhead; others one message at a time, through the
administrative API. The results are the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pelton.api import (
    ApiError,
    Backend,
    ConfigError,
    ConsumerConfig,
    ConsumerCreate,
    ConsumerDelete,
    ConsumerInfoRequest,
    ConsumerNames,
    DirectGet,
    DirectGetDisabledError,
    MessageNotFoundError,
    MsgDelete,
    MsgGet,
    StoredMessage,
    StreamConfig,
    StreamDelete,
    StreamInfo,
    StreamInfoRequest,
    StreamPurge,
    WireMessage,
    consumer_config,
    parse_rfc3339,
)
from pelton.api.admission import explain
from pelton.api.arguments import check_text, check_whole, items_of
from pelton.api.build import seconds_to_ns, time_text
from pelton.api.json_values import counter_value
from pelton.api.times import Seconds
from pelton.jet.arrow_reads import batches_of_rows, plan_read, requested_batches, row_reader
from pelton.jet.consumer import Consumer
from pelton.jet.message import Message
from pelton.jet.message_source import HEARTBEAT_S, OrderedReader
from pelton.runtime import Runtime, at_home

if TYPE_CHECKING:
    import pyarrow

    from pelton.columns.arrow_batches import Decode

_BATCH: Final = 256


class Readable:
    """A stream to read from. ``config`` is its last known configuration."""

    def __init__(self, backend: Backend, config: StreamConfig) -> None:
        self._backend = backend
        self.config = config

    @property
    def _about(self) -> str:
        return f"stream {self.config.name!r}"

    async def get_message(self, seq: int) -> StoredMessage:
        """Return the message with this sequence. Raises MessageNotFoundError, CorruptMessageError."""
        config = self.config
        if type(seq) is not int:
            check_whole(self._about, "seq", seq)
        if config.allow_direct:
            try:
                return (await self._backend.direct_get(config.name, DirectGet(seq=seq))).messages[0]
            except DirectGetDisabledError:
                pass  # It was changed in the meantime.
        return await self._ask(MsgGet(stream=config.name, seq=seq))

    async def get_last_message(self, subject: str) -> StoredMessage:
        """Return the last message of a subject or filter. Raises MessageNotFoundError, ConfigError."""
        config = self.config
        check_text(self._about, "subject", subject)
        if config.allow_direct:
            try:
                return (await self._backend.direct_get(config.name, DirectGet(last_by_subj=subject))).messages[0]
            except DirectGetDisabledError:
                pass
        return await self._ask(MsgGet(stream=config.name, last_by_subj=subject))

    async def get_next_message(self, subject: str, seq: int = 1) -> StoredMessage:
        """Return the first message of a subject or filter from ``seq`` on. Raises MessageNotFoundError, ConfigError."""
        config = self.config
        check_text(self._about, "subject", subject)
        check_whole(self._about, "seq", seq)
        if config.allow_direct:
            try:
                request = DirectGet(next_by_subj=subject, seq=seq)
                return (await self._backend.direct_get(config.name, request)).messages[0]
            except DirectGetDisabledError:
                pass
        return await self._ask(MsgGet(stream=config.name, seq=seq, next_by_subj=subject))

    async def get_messages(
        self,
        batch: int = _BATCH,
        *,
        seq: int = 1,
        subject: str = ">",
        start_time: datetime | str | None = None,
        max_bytes: int = 0,
    ) -> list[StoredMessage]:
        """Return up to ``batch`` messages of a subject or filter, from ``seq`` or ``start_time`` on; empty at the end.

        A batch ends with the message that reaches ``max_bytes`` (0: 64 MiB), so read on from the last sequence
        plus one until it is empty. ``start_time`` is an aware datetime or RFC 3339 text. Needs ``allow_direct``.
        Raises ConfigError, DirectGetDisabledError; CorruptMessageError when the first one is damaged.
        """
        check_whole(self._about, "batch", batch, 1)
        check_whole(self._about, "max_bytes", max_bytes)
        check_whole(self._about, "seq", seq)
        check_text(self._about, "subject", subject)
        begin = 0 if start_time is not None else seq
        request = DirectGet(
            seq=begin,
            start_time=time_text("start_time", start_time, self._about),
            next_by_subj=subject,
            batch=batch,
            max_bytes=max_bytes,
        )
        try:
            return (await self._backend.direct_get(self.config.name, request)).messages
        except MessageNotFoundError:
            return []

    async def get_last_messages(
        self, subjects: str | Iterable[str], *, up_to_seq: int = 0, up_to_time: datetime | str | None = None
    ) -> list[StoredMessage]:
        """Return the last message of each subject that matches, by sequence, all as of one moment.

        That is now, or when ``up_to_seq`` was the last sequence, or just before ``up_to_time``, as far as the
        stream still holds its messages of that time. Needs ``allow_direct``. Raises TooManyResultsError when more than
        1,024 subjects match, ConfigError, DirectGetDisabledError.
        """
        given = [subjects] if isinstance(subjects, str) else items_of(self._about, "subjects", subjects, "subjects")
        filters = tuple(given)
        for subject in filters:
            check_text(self._about, "a subject", subject)
        if not filters:
            return []
        before = time_text("up_to_time", up_to_time, self._about)
        check_whole(self._about, "up_to_seq", up_to_seq)
        if up_to_seq and before:
            raise ConfigError(f"{self._about}: up_to_seq and up_to_time: give one of the two")
        found: list[StoredMessage] = []
        seq = 0
        while True:
            request = DirectGet(multi_last=filters, seq=seq, up_to_seq=up_to_seq, up_to_time=before)
            try:
                reply = await self._backend.direct_get(self.config.name, request)
            except MessageNotFoundError:
                return found
            found += reply.messages
            if not reply.num_pending or not reply.messages:
                return found
            seq, up_to_seq, before = reply.last_seq + 1, reply.up_to_seq, ""

    async def _ask(self, request: MsgGet) -> StoredMessage:
        return _stored_message_of((await self._backend.call(request)).message)


async def at_leader(
    backend: Backend, stream: str, *, seq: int = 0, last_by_subj: str = "", next_by_subj: str = ""
) -> StoredMessage | None:
    """Return a message from the stream's leader, as replicas may lag behind; None if there is none."""
    request = MsgGet(stream=stream, seq=seq, last_by_subj=last_by_subj, next_by_subj=next_by_subj)
    try:
        return _stored_message_of((await backend.call(request)).message)
    except MessageNotFoundError:
        return None


def _stored_message_of(message: WireMessage) -> StoredMessage:
    return StoredMessage(message.subject, message.seq, parse_rfc3339(message.time), message.hdrs, message.data)


# --- the handle of a stream: read it, purge it, consume it


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
        return read.reader([batch async for batch in requested_batches(self, read)])

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
