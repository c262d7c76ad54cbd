"""What a server says in a message of its own, which is told from others by a status in its headers."""

from __future__ import annotations

from typing import Final, NamedTuple

NO_RESPONDERS: Final = 503


class Status(NamedTuple):
    """What a server's own message says: a code, 0 for any other message, and a text."""

    code: int
    text: str


_NO_STATUS: Final = Status(0, "")


def status_of(block: bytes | None) -> Status:
    """Return status and text of a server's own message; 0 for any other."""
    if block is None or not block[9:12].isdigit():
        return _NO_STATUS
    opening = block.partition(b"\r\n")[0]
    return Status(int(opening[9:12]), opening[13:].decode(errors="replace"))
