"""Reads a stream as Arrow batches: from the file with a connection of its own, else by requests.

A file is read while its batches are taken, on whichever thread takes them, beside live writers. A cluster and a store
in memory are asked on the store's own event loop: :func:`requested` yields batch by batch, for a caller that waits for
each.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from pelton.api import (
    Backend,
    ConfigError,
    MessageNotFoundError,
    StoredMessage,
    StreamConfig,
    StreamInfo,
    parse_rfc3339,
    rfc3339,
)
from pelton.api.arguments import check_whole, items_of
from pelton.api.backend import RowReader
from pelton.api.times import datetime_ns
from pelton.subjects import is_filter

if TYPE_CHECKING:
    import pyarrow as pa

    from pelton.columns.arrow_batches import ColumnRead, Decode, ReadWindow
    from pelton.jet.message import Message

_ROWS: Final = 1000
_BYTES: Final = 4 * 1024 * 1024


class ArrowSource(Protocol):
    """The stream that is read: :class:`pelton.Stream`."""

    config: StreamConfig

    @property
    def name(self) -> str:
        """Its name."""
        ...

    async def info(self) -> StreamInfo:
        """Return its configuration and state."""
        ...

    async def get_messages(
        self, batch: int, *, seq: int = 1, subject: str = ">", start_time: str | None = None, max_bytes: int = 0
    ) -> list[StoredMessage]:
        """Return messages by direct get."""
        ...

    async def get_next_message(self, subject: str, seq: int) -> StoredMessage:
        """Return one message."""
        ...

    def ordered(self, **fields: Any) -> AsyncIterator[Message]:
        """Read in order."""
        ...


async def plan_read(
    stream: ArrowSource,
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
    window = await _narrowed(stream, window, start_time is not None, end_time is not None)
    return ColumnRead(stream.name, read_schema, decode, window, [] if given == [">"] else given), info


def _moment(about: str, name: str, given: datetime | str) -> int:
    try:
        return parse_rfc3339(given) if isinstance(given, str) else datetime_ns(given)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"{about}: {name} is {given!r}; give an aware datetime or RFC 3339 text such as 2026-05-01T00:00:00Z"
        ) from None


async def _narrowed(stream: ArrowSource, window: ReadWindow, has_start: bool, has_end: bool) -> ReadWindow:
    """Return the window with the sequences that its times allow, as far as a direct get tells them."""
    if not stream.config.allow_direct:
        return window
    if has_start:
        found = await stream.get_messages(1, start_time=rfc3339(window.from_ns))
        window = window._replace(first=max(window.first, found[0].seq if found else window.last + 1))
    if has_end:
        found = await stream.get_messages(1, start_time=rfc3339(window.before_ns))
        window = window._replace(last=min(window.last, found[0].seq - 1) if found else window.last)
    return window


def row_reader(backend: Backend, info: StreamInfo, filters: Sequence[str]) -> RowReader | None:
    """Return a reader of the store's file; None where there is none to read. Raises StreamNotFoundError."""
    if not backend.planning.atomic_batches:
        return None
    return backend.embedded("to_arrow").row_reader(info.config.name, info.created, filters)


def batches_of_rows(reader: RowReader, read: ColumnRead) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file, and close it. Raises CorruptMessageError."""
    try:
        position, last = read.window.first, read.window.last
        while position <= last:
            # A portion is thousands of small objects without cycles: collecting garbage would cost a tenth.
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                found = reader.read(position, last)
                if found.damaged:
                    raise reader.corrupt(found.damaged[0])
                batch = read.of_rows(found)
            finally:
                if was_enabled:
                    gc.enable()
            position = found.after + 1
            if batch is not None:
                yield batch
    finally:
        reader.close()


async def requested_batches(stream: ArrowSource, read: ColumnRead) -> AsyncIterator[pa.RecordBatch]:
    """Yield the batches of a cluster or of a store in memory. Raises CorruptMessageError."""
    if stream.config.allow_direct:
        pages = _direct(stream, read)
    elif stream.config.retention == "limits":
        pages = _ordered(stream, read)
    else:
        pages = _one_by_one(stream, read)
    async for messages in pages:
        batch = read.of_messages(messages)
        if batch is not None:
            yield batch


async def _direct(stream: ArrowSource, read: ColumnRead) -> AsyncIterator[list[StoredMessage]]:
    """Read page by page. A request has one filter: with several, everything is read, and filtered here."""
    subject = read.filters[0] if len(read.filters) == 1 else ">"
    seq, last = read.window.first, read.window.last
    while seq <= last:
        found = await stream.get_messages(min(_ROWS, last - seq + 1), seq=seq, subject=subject, max_bytes=_BYTES)
        if not found:
            return
        yield found
        seq = found[-1].seq + 1


async def _ordered(stream: ArrowSource, read: ColumnRead) -> AsyncIterator[list[StoredMessage]]:
    """Read with an ordered consumer, until the range ends or nothing is pending."""
    window = read.window
    if window.first > window.last:
        return
    if not await _has_any(stream, read):
        return
    fields: dict[str, Any] = {"filter_subjects": list(read.filters)} if read.filters else {}
    messages: Any = stream.ordered(deliver_policy="by_start_sequence", opt_start_seq=window.first, **fields)
    found: list[StoredMessage] = []
    async with aclosing(messages):
        async for message in messages:
            d = message.delivered
            found.append(StoredMessage(d.subject, d.seq, d.time_ns, d.headers or b"", d.data))
            is_last = d.seq >= window.last or not d.num_pending
            if is_last or len(found) >= _ROWS:
                yield found
                found = []
            if is_last:
                break


async def _has_any(stream: ArrowSource, read: ColumnRead) -> bool:
    """Whether there is a message to read: an ordered consumer without one would wait for the next."""
    for subject in read.filters or [">"]:
        try:
            if (await stream.get_next_message(subject, read.window.first)).seq <= read.window.last:
                return True
        except MessageNotFoundError:
            continue
    return False


async def _one_by_one(stream: ArrowSource, read: ColumnRead) -> AsyncIterator[list[StoredMessage]]:
    """Get one message after the other, which disturbs no consumer of a work queue: slow on a cluster."""
    subject = read.filters[0] if len(read.filters) == 1 else ">"
    seq, last = read.window.first, read.window.last
    found: list[StoredMessage] = []
    while seq <= last:
        try:
            message = await stream.get_next_message(subject, seq)
        except MessageNotFoundError:
            break
        found.append(message)
        seq = message.seq + 1
        if len(found) >= _ROWS:
            yield found
            found = []
    if found:
        yield found
