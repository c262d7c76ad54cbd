"""Writes an archive, in frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from pelton.api import StreamState
from pelton.api.archives import ArchivedConsumer, ArchivedMessage, encode_archived
from pelton.server.archive.entries import CONSUMERS, END, MAGIC, STATE, ArchiveEntry, encode_entry
from pelton.server.archive.framing import FrameWriter

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
