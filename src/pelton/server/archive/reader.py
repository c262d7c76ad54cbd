"""Reads an archive from a file: state and consumers at once, messages as they are asked for. Blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import IO, Final

from pelton.api import ApiError, StreamState, api_error
from pelton.api.archives import ArchivedConsumer, ArchivedMessage, decode_archived, decode_archived_state
from pelton.api.json_values import UNREADABLE
from pelton.server.archive.entries import CONSUMERS, END, STATE, ArchiveEntry, ArchiveEntryError, EntryReader
from pelton.server.archive.framing import ArchiveFramingError, FrameReader

_PORTION: Final = 1 << 18
_MOST: Final = 1024


class ArchiveSource:
    """An archive in an open file. Raises ApiError 10062 if it is not valid, as do its methods."""

    def __init__(self, file: IO[bytes], stream: str) -> None:
        self._stream = stream
        self._entries = self._read(file)
        self.state: StreamState = self._first()
        self.consumers: list[ArchivedConsumer] = self._next_consumers()

    def _invalid(self, why: object) -> ApiError:
        return api_error("JSStreamRestoreErrF", stream=self._stream, err=why)

    def _read(self, file: IO[bytes]) -> Iterator[ArchiveEntry]:
        frames, entries = FrameReader(), EntryReader()
        try:
            while data := file.read(_PORTION):
                yield from entries.feed(frames.feed(data))
        except (ArchiveFramingError, ArchiveEntryError) as error:
            raise self._invalid(error) from None
        if not (entries.has_ended and frames.is_complete):
            raise self._invalid("unexpected EOF")

    def _first(self) -> StreamState:
        entry = next(self._entries, END)
        if entry.name != STATE or entry.seq:
            raise self._invalid("it does not begin with the state of a stream")
        try:
            return decode_archived_state(entry.data)
        except UNREADABLE as error:
            raise self._invalid(error) from None

    def _next_consumers(self) -> list[ArchivedConsumer]:
        consumers = []
        for entry in self._entries:
            if entry.seq or entry == END:
                self._entries = chain((entry,), self._entries)
                break
            if not entry.name.startswith(CONSUMERS):
                raise self._invalid(f"it has an entry of the unknown name {entry.name!r}")
            try:
                consumers.append(decode_archived(entry.data))
            except UNREADABLE as error:
                raise self._invalid(f"consumer {entry.name[len(CONSUMERS) :]!r}: {error}") from None
        if len(consumers) != self.state.consumer_count:
            raise self._invalid(f"it has {len(consumers)} consumers, and names {self.state.consumer_count}")
        return consumers

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
