"""What a copy tells about itself."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Told = Callable[[str, int, int], object]
"""Called with a stream's name, and the numbers of messages done and in all."""


class StreamCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that was copied and compared: its ``messages``, its last sequence, and a ``checksum`` over all of it.

    ``was_there``: an earlier run had copied it. ``consumers`` are those whose state was copied.
    """

    name: str
    """The stream's name."""
    messages: int
    """How many messages the copy has."""
    last_seq: int
    """The last sequence of the copy."""
    checksum: str
    """A checksum over its sequences, subjects, headers and payloads: the same for the original."""
    consumers: tuple[str, ...] = ()
    """The consumers whose state was copied."""
    was_there: bool = False
    """Whether an earlier run had copied it."""


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that were copied, and ``lost``: what the target cannot keep, a sentence each."""

    streams: tuple[StreamCopy, ...]
    """The streams that were copied and compared, by name."""
    lost: tuple[str, ...] = ()
    """What the target cannot keep, a sentence each."""
