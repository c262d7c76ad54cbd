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
    messages: int
    last_seq: int
    checksum: str
    consumers: tuple[str, ...] = ()
    was_there: bool = False


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that were copied, and ``lost``: what the target cannot keep, a sentence each."""

    streams: tuple[StreamCopy, ...]
    lost: tuple[str, ...] = ()
