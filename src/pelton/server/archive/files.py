"""Reads an archive from a file, and writes one in frames.

**Reads an archive from a file: state and consumers at once, messages as they are asked for. Blocks.** An archive comes
from a client, and a few bytes of it may stand for millions. So it is read chunk by chunk, what is unpacked is counted,
and of consumers only the text is kept, which is decoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, Final

import msgspec

from pelton.api import ApiError, StreamState, api_error
from pelton.api.archives import (
    ArchivedConsumer,
    ArchivedMessage,
    decode_archived,
    decode_archived_state,
    encode_archived,
)
from pelton.api.json_values import UNREADABLE
from pelton.server.archive.format import (
    CONSUMERS,
    END,
    MAGIC,
    STATE,
    ArchiveEntry,
    ArchiveEntryError,
    ArchiveFramingError,
    EntryReader,
    FrameReader,
    FrameWriter,
    encode_entry,
)

_PORTION: Final = 1 << 18
_MOST: Final = 1024
_LARGEST_TEXT: Final = 16 << 20
_ALL_TEXTS: Final = 64 << 20


class ArchiveSource:
    """An archive in an open file, of which ``most`` bytes are unpacked (-1: any number).

    Raises ApiError 10062 if it is not valid, 10002 if it is larger, as do its methods. ``check`` is called again and
    again; what it raises ends the reading.
    """

    def __init__(self, file: IO[bytes], stream: str, most: int, check: Callable[[], None]) -> None:
        self._stream = stream
        self._most = most
        self._check = check
        self._entries = self._read(file)
        self.state: StreamState = self._first()
        self._consumers: list[ArchiveEntry] = self._next_consumers()

    def _invalid(self, why: object) -> ApiError:
        return api_error("JSStreamRestoreErrF", stream=self._stream, err=why)

    def _read(self, file: IO[bytes]) -> Iterator[ArchiveEntry]:
        frames, entries = FrameReader(), EntryReader()
        try:
            unpacked = 0
            while data := file.read(_PORTION):
                self._check()
                for chunk in frames.feed(data):
                    self._check()
                    unpacked += len(chunk)
                    if 0 <= self._most < unpacked:
                        raise api_error("JSAccountResourcesExceededErr", stream=self._stream)
                    yield from entries.feed(chunk)
        except (ArchiveFramingError, ArchiveEntryError) as error:
            raise self._invalid(error) from None
        if not (entries.has_ended and frames.is_complete):
            raise self._invalid("unexpected EOF")

    def _first(self) -> StreamState:
        entry = next(self._entries, END)
        if entry.name != STATE or entry.seq:
            raise self._invalid("it does not begin with the state of a stream")
        try:
            return decode_archived_state(self._text(entry))
        except UNREADABLE as error:
            raise self._invalid(error) from None

    def _text(self, entry: ArchiveEntry) -> bytes:
        if len(entry.data) > _LARGEST_TEXT:
            raise self._invalid(f"{entry.name!r} is too large")
        return entry.data

    def _next_consumers(self) -> list[ArchiveEntry]:
        consumers: list[ArchiveEntry] = []
        left = _ALL_TEXTS
        for entry in self._entries:
            if entry.seq or entry == END:
                self._entries = chain((entry,), self._entries)
                break
            if not entry.name.startswith(CONSUMERS):
                raise self._invalid(f"it has an entry of the unknown name {entry.name!r}")
            left -= len(self._text(entry))
            if left < 0 or len(consumers) >= self.state.consumer_count:
                raise self._invalid("it has more consumers than it names, or they are too large")
            consumers.append(entry)
        if len(consumers) != self.state.consumer_count:
            raise self._invalid(f"it has {len(consumers)} consumers, and names {self.state.consumer_count}")
        return consumers

    def consumers(self) -> Iterable[ArchivedConsumer]:
        """Yield the consumers, each decoded when it is asked for."""
        for entry in self._consumers:
            try:
                yield decode_archived(entry.data)
            except UNREADABLE as error:
                raise self._invalid(f"consumer {entry.name[len(CONSUMERS) :]!r}: {error}") from None

    def messages(self) -> Iterator[list[ArchivedMessage]]:
        """Yield the messages, in portions."""
        portion: list[ArchivedMessage] = []
        size = 0
        for name, ts, seq, hdr, data in self._entries:
            if not seq:
                # The last entry; another one without a sequence has no place among messages.
                if name:
                    raise self._invalid(f"it has an entry of the unknown name {name!r}")
                continue
            portion.append(ArchivedMessage(seq, ts, name, hdr or None, data))
            size += len(data)
            if size >= _PORTION or len(portion) >= _MOST:
                yield portion
                portion, size = [], 0
        yield portion


# --- writes an archive, in frames

_FRAME: Final = 1 << 20


class ArchiveWriter:
    """Makes the bytes of one archive, in order: what its methods return, joined, is the archive."""

    def __init__(self) -> None:
        self._frames = FrameWriter()

    def opening(self, state: StreamState, consumers: Sequence[ArchivedConsumer]) -> bytes:
        """Return the state and the consumers."""
        entries = [encode_entry(ArchiveEntry(STATE, data=msgspec.json.encode(state)))]
        entries += [
            encode_entry(ArchiveEntry(f"{CONSUMERS}{one.config.name}", data=encode_archived(one))) for one in consumers
        ]
        return self._framed([MAGIC, *entries])

    def messages(self, messages: Iterable[ArchivedMessage]) -> bytes:
        """Return messages."""
        return self._framed(
            encode_entry(ArchiveEntry(subject, ts, seq, hdr or b"", data)) for seq, ts, subject, hdr, data in messages
        )

    def end(self) -> bytes:
        """Return the end."""
        return self._framed([encode_entry(END)])

    def _framed(self, parts: Iterable[bytes]) -> bytes:
        data = b"".join(parts)
        return b"".join(self._frames.frame(data[at : at + _FRAME]) for at in range(0, len(data), _FRAME))
