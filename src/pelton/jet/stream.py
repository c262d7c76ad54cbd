"""The handle of a stream: read it, purge it, consume it.

**Reads its messages without consuming them.** Streams that allow it (``allow_direct``) are read by direct get (ADR-31),
which has less overhead; others one message at a time, through the administrative API. The results are the same.

**Reads it as Arrow batches.** A file is read with a connection of its own while its batches are taken, on whichever
thread takes them, beside live writers. A cluster and a store in memory are asked on the store's own event loop, batch
by batch.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

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
    Request,
    StoredMessage,
    StreamConfig,
    StreamDelete,
    StreamInfo,
    StreamInfoRequest,
    StreamLastMessages,
    StreamPurge,
    WireMessage,
    consumer_config,
    parse_rfc3339,
    rfc3339,
)
from pelton.api.admission import explain
from pelton.api.arguments import check_text, check_whole, items_of
from pelton.api.backend import RowReader
from pelton.api.build import seconds_to_ns, time_text
from pelton.api.json_values import counter_value
from pelton.api.requests import Page
from pelton.api.times import Seconds, datetime_ns
from pelton.jet.consumer import Consumer
from pelton.jet.message import Message
from pelton.jet.message_source import HEARTBEAT_S, OrderedReader
from pelton.runtime import Runtime, at_home
from pelton.subjects import is_filter

if TYPE_CHECKING:
    import pyarrow
    import pyarrow as pa

    from pelton.columns.arrow_batches import ColumnRead, Decode, ReadWindow

P = TypeVar("P", bound=Page)
T = TypeVar("T")
AUDIT_STREAM: Final = "PELTON_AUDIT"
"""Where dashboard and command line write what was done (:mod:`pelton.observe`)."""
_ROWS: Final = 1000
_BYTES: Final = 4 * 1024 * 1024


async def plan_read(
    stream: Stream,
    *,
    columns: Sequence[str] | None,
    subjects: str | Iterable[str],
    start_seq: int,
    end_seq: int,
    start_time: datetime | str | None,
    end_time: datetime | str | None,
    decode: Decode | None,
    schema: pa.Schema | pa.DataType | None,
) -> tuple[ColumnRead, StreamInfo]:
    """Return what is read, as of now, and the stream's info. Raises ConfigError, StreamNotFoundError, ImportError."""
    try:
        from pelton.columns.arrow_batches import ColumnRead, ReadWindow, message_schema
    except ModuleNotFoundError as error:
        raise ImportError(
            f"to_arrow needs {error.name}, which is not installed: pip install 'pelton[arrow]'", name=error.name
        ) from None
    about = f"stream {stream.name!r}: to_arrow"
    check_whole(about, "start_seq", start_seq, 1)
    check_whole(about, "end_seq", end_seq)
    given = [subjects] if isinstance(subjects, str) else list(items_of(about, "subjects", subjects, "subjects"))
    for text in given:
        if not isinstance(text, str) or not is_filter(text):
            raise ConfigError(f"{about}: {text!r} is not a subject filter; write it like orders.eu.> or orders.*.new")
    read_schema = message_schema(decode, schema, columns)
    info = await stream.info()
    window = ReadWindow(max(start_seq, info.state.first_seq), min(end_seq or info.state.last_seq, info.state.last_seq))
    if start_time is not None:
        window = window._replace(from_ns=_moment(about, "start_time", start_time))
    if end_time is not None:
        window = window._replace(before_ns=_moment(about, "end_time", end_time))
    window = await _narrow(stream, window, start_time is not None, end_time is not None)
    return ColumnRead(stream.name, read_schema, decode, window, [] if given == [">"] else given), info


def _moment(about: str, name: str, given: datetime | str) -> int:
    try:
        return parse_rfc3339(given) if isinstance(given, str) else datetime_ns(given)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"{about}: {name} is {given!r}; give an aware datetime or RFC 3339 text such as 2026-05-01T00:00:00Z"
        ) from None


async def _narrow(stream: Stream, window: ReadWindow, has_start: bool, has_end: bool) -> ReadWindow:
    """Return the window with the sequences that its times allow, as far as a direct get tells them."""
    if not stream.config.allow_direct:
        return window
    if has_start:
        at_time = await stream.get_messages(1, start_time=rfc3339(window.from_ns))
        window = window._replace(first=max(window.first, at_time[0].seq if at_time else window.last + 1))
    if has_end:
        at_time = await stream.get_messages(1, start_time=rfc3339(window.before_ns))
        window = window._replace(last=min(window.last, at_time[0].seq - 1) if at_time else window.last)
    return window


def row_reader(backend: Backend, info: StreamInfo, filters: Sequence[str]) -> RowReader | None:
    """Return a reader of the store's file; None where there is none to read. Raises StreamNotFoundError."""
    if not backend.planning.atomic_batches:
        return None
    return backend.to_embedded("to_arrow").row_reader(info.config.name, info.created, filters)


def batches_of_rows(reader: RowReader, read: ColumnRead) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file, and close it. Raises CorruptMessageError."""
    try:
        position, last = read.window.first, read.window.last
        while position <= last:
            # A portion is thousands of small objects without cycles: collecting garbage would cost a tenth.
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                rows = reader.read(position, last)
                if rows.damaged:
                    raise reader.corrupt(rows.damaged[0])
                batch = read.of_rows(rows)
            finally:
                if was_enabled:
                    gc.enable()
            position = rows.after + 1
            if batch is not None:
                yield batch
    finally:
        reader.close()


async def requested_batches(stream: Stream, read: ColumnRead) -> AsyncIterator[pa.RecordBatch]:
    """Yield the batches of a cluster, of a store in memory, or of one opened to be read. Raises CorruptMessageError."""
    if stream.config.allow_direct:
        pages = _pages_direct(stream, read)
    elif stream.config.retention == "limits" and not stream._backend.planning.read_only:
        pages = _pages_in_order(stream, read)
    else:
        pages = _one_by_one(stream, read)
    async for messages in pages:
        batch = read.of_messages(messages)
        if batch is not None:
            yield batch


async def _pages_direct(stream: Stream, read: ColumnRead) -> AsyncIterator[list[StoredMessage]]:
    """Read page by page. A request has one filter: with several, everything is read, and filtered here."""
    subject = read.filters[0] if len(read.filters) == 1 else ">"
    seq, last = read.window.first, read.window.last
    while seq <= last:
        page = await stream.get_messages(min(_ROWS, last - seq + 1), seq=seq, subject=subject, max_bytes=_BYTES)
        if not page:
            return
        yield page
        seq = page[-1].seq + 1


async def _pages_in_order(stream: Stream, read: ColumnRead) -> AsyncIterator[list[StoredMessage]]:
    """Read with an ordered consumer, until the range ends or nothing is pending."""
    window = read.window
    if window.first > window.last:
        return
    if not await _has_any(stream, read):
        return
    fields: dict[str, Any] = {"filter_subjects": list(read.filters)} if read.filters else {}
    messages: Any = stream.ordered(deliver_policy="by_start_sequence", opt_start_seq=window.first, **fields)
    page: list[StoredMessage] = []
    async with aclosing(messages):
        async for message in messages:
            d = message.delivered
            page.append(StoredMessage(d.subject, d.seq, d.time_ns, d.headers or b"", d.data))
            is_last = d.seq >= window.last or not d.num_pending
            if is_last or len(page) >= _ROWS:
                yield page
                page = []
            if is_last:
                break


async def _has_any(stream: Stream, read: ColumnRead) -> bool:
    """Whether there is a message to read: an ordered consumer without one would wait for the next."""
    for subject in read.filters or [">"]:
        first = await next_of(stream, subject, read.window.first)
        if first is not None and first.seq <= read.window.last:
            return True
    return False


async def _one_by_one(stream: Stream, read: ColumnRead) -> AsyncIterator[list[StoredMessage]]:
    """Get one message after the other, which disturbs no consumer of a work queue: slow on a cluster."""
    subject = read.filters[0] if len(read.filters) == 1 else ">"
    seq, last = read.window.first, read.window.last
    page: list[StoredMessage] = []
    while seq <= last and (message := await next_of(stream, subject, seq)) is not None:
        page.append(message)
        seq = message.seq + 1
        if len(page) >= _ROWS:
            yield page
            page = []
    if page:
        yield page


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
        messages: list[StoredMessage] = []
        seq = 0
        while True:
            request = DirectGet(multi_last=filters, seq=seq, up_to_seq=up_to_seq, up_to_time=before)
            try:
                reply = await self._backend.direct_get(self.config.name, request)
            except MessageNotFoundError:
                return messages
            messages += reply.messages
            if not reply.num_pending or not reply.messages:
                return messages
            seq, up_to_seq, before = reply.last_seq + 1, reply.up_to_seq, ""

    async def _ask(self, request: MsgGet) -> StoredMessage:
        return _stored_message_of((await self._backend.call(request)).message)


async def last_of(stream: Readable, subject: str) -> StoredMessage | None:
    """Return the last message of a subject or filter; None if there is none."""
    try:
        return await stream.get_last_message(subject)
    except MessageNotFoundError:
        return None


async def message_at(stream: Readable, seq: int) -> StoredMessage | None:
    """Return the message of a sequence; None if there is none."""
    try:
        return await stream.get_message(seq)
    except MessageNotFoundError:
        return None


async def next_of(stream: Readable, subject: str, seq: int) -> StoredMessage | None:
    """Return the first message of a subject or filter from a sequence on; None if there is none."""
    try:
        return await stream.get_next_message(subject, seq)
    except MessageNotFoundError:
        return None


async def list_all(backend: Backend, request: Request[P], of: Callable[[P], Sequence[T]]) -> list[T]:
    found: list[T] = []
    while True:
        page = await backend.call(msgspec.structs.replace(request, offset=len(found)))
        found += (some := of(page))
        if not some or len(found) >= page.total:
            return found


async def last_of_each(backend: Backend, stream: str, filter_subject: str) -> list[tuple[StoredMessage, int]]:
    """Return the last message of each subject, by sequence, and by how much the clock has jumped since, in a file.

    Raises CorruptMessageError.
    """
    found = list[tuple[StoredMessage, int]]()
    request = StreamLastMessages(stream=stream, filters=(filter_subject,))
    while (page := await backend.call(request)).messages:
        found += zip(page.messages, page.jumped_ns, strict=True)
        request = msgspec.structs.replace(request, after=page.after)
    return sorted(found, key=lambda one: one[0].seq)


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

        All of them, those of one subject filter, those below a sequence, or all but the newest ``keep``. Others can
        write meanwhile, and what they store stays. A purge that is interrupted may have removed the oldest of them.
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
        return await list_all(self._backend, ConsumerNames(stream=self.name), attrgetter("consumers"))

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
        async with aclosing(reader.follow()) as deliveries:
            async for delivered in deliveries:
                if delivered is not None:
                    yield Message(self._backend, delivered)


async def total_of(backend: Backend, stream: str, subject: str) -> int:
    """Return the total of a counter, 0 if nothing was added."""
    stored = await at_leader(backend, stream, last_by_subj=subject)
    return 0 if stored is None else counter_value(stored.data)


async def subjects_of(stream: Stream, filter_subject: str) -> dict[str, int]:
    """Return how many messages each subject has that matches: all of them, where a store lists 100,000 at a time."""
    counts: dict[str, int] = {}
    offset = 0
    while True:
        info = await stream.info(subjects_filter=filter_subject, offset=offset)
        page = info.state.subjects or {}
        counts |= page
        offset += len(page)
        if not page or offset >= info.total:
            return counts
