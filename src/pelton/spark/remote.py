"""What a task does for a range of a cluster's stream: batched direct gets (ADR-31).

A stream that does not allow direct gets is read by an ordered consumer (ADR-17), which the servers feed; a work queue,
where another consumer would be in the way, message by message: allow direct gets for those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from pelton.api import DirectGet, MessageNotFoundError, StoredMessage, StreamNotFoundError, api_error
from pelton.spark.batches import Columns
from pelton.spark.place import Place, StreamView
from pelton.subjects import compile_filter

if TYPE_CHECKING:
    from pelton.spark.batches import BatchBuilder
    from pelton.spark.losses import Losses
    from pelton.spark.options import PlaceOptions
    from pelton.spark.ranges import Range

_ROWS: Final = 1000
_BYTES: Final = 4 * 1024 * 1024


def read_cluster(
    options: PlaceOptions, part: Range, filters: Sequence[str], builder: BatchBuilder, losses: Losses
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as batches. Raises DataLossError, StreamNotFoundError."""
    with Place(options) as place:
        stream = _look(place, part, part.first, losses)
        read = _direct if stream.config.allow_direct else _ordered if stream.is_for_many else _one_by_one
        position = part.first
        for messages in read(place, part, filters):
            # What was removed while it was read shows as a gap, and then in the stream's first sequence.
            if messages[0].seq > position:
                _look(place, part, position, losses)
            position = messages[-1].seq + 1
            wanted = _matching(messages, filters)
            if wanted:
                yield builder.of(_columns(wanted))
        if position <= part.last:
            _look(place, part, position, losses)


def _look(place: Place, part: Range, position: int, losses: Losses) -> StreamView:
    """Return the stream, if it is the one that was meant, and say what it has lost."""
    stream = place.stream(part.stream)
    if stream.created != part.created:
        error = api_error("JSStreamNotFoundErr", stream=part.stream)
        assert isinstance(error, StreamNotFoundError)
        raise error
    losses.look(part, position, stream.first)
    return stream


def _direct(place: Place, part: Range, filters: Sequence[str]) -> Iterator[list[StoredMessage]]:
    """Read batch by batch. The server knows one filter a request: where there are more, all is read and sorted out."""
    subject = filters[0] if len(filters) == 1 else ">"
    seq = part.first
    while seq <= part.last:
        request = DirectGet(seq=seq, next_by_subj=subject, batch=min(_ROWS, part.last - seq + 1), max_bytes=_BYTES)
        try:
            found = place.run(place.jet.backend.direct_get, part.stream, request).messages
        except MessageNotFoundError:
            return
        found = _upto(found, part.last)
        if not found:
            return
        yield found
        seq = found[-1].seq + 1


def _one_by_one(place: Place, part: Range, filters: Sequence[str]) -> Iterator[list[StoredMessage]]:
    """Ask for one message after the other: slow, and without any effect."""
    subject = filters[0] if len(filters) == 1 else ">"
    handle = place.run(place.jet.stream, part.stream)

    async def take(seq: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        with suppress(MessageNotFoundError):
            while seq <= part.last and len(found) < _ROWS:
                found.append(await handle.get_next_message(subject, seq))
                seq = found[-1].seq + 1
        return _upto(found, part.last)

    seq = part.first
    while found := place.run(take, seq):
        yield found
        seq = found[-1].seq + 1


def _ordered(place: Place, part: Range, filters: Sequence[str]) -> Iterator[list[StoredMessage]]:
    """Read by a consumer; it ends when it has told all there was, which ``count`` says."""
    fields: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": part.first}
    if filters:
        fields["filter_subjects"] = list(filters)
    handle = place.run(place.jet.stream, part.stream)
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

    ended = [place.stream(part.stream).last < part.first]
    try:
        while not ended[-1]:
            found = _upto(place.run(take), part.last)
            if found:
                yield found
    finally:
        place.run(messages.aclose)


def _upto(messages: list[StoredMessage], last: int) -> list[StoredMessage]:
    return messages if not messages or messages[-1].seq <= last else [m for m in messages if m.seq <= last]


def _matching(messages: list[StoredMessage], filters: Sequence[str]) -> list[StoredMessage]:
    if len(filters) < 2:
        return messages
    tests = [compile_filter(text) for text in filters]
    return [message for message in messages if any(test(message.subject) for test in tests)]


def _columns(messages: list[StoredMessage]) -> Columns:
    return Columns(
        np.array([message.seq for message in messages], np.int64),
        np.array([message.time_ns for message in messages], np.int64),
        pa.array([message.subject for message in messages], pa.string()),
        [message.hdrs or None for message in messages],
        pa.array([message.data for message in messages], pa.binary()),
    )
