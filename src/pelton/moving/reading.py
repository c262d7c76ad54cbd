"""Reads all messages of a stream, whatever its retention, without a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from pelton.api import MessageNotFoundError, StoredMessage
from pelton.jet import Stream

_PAGE: Final = 500
_AT_ONCE: Final = 128


async def pages(stream: Stream, seq: int, last: int, *, is_near: bool) -> AsyncGenerator[list[StoredMessage], None]:
    """Yield the messages from ``seq`` to ``last``, in order; ``is_near``: an answer needs no round trip."""
    while seq <= last:
        if stream.config.allow_direct:
            found = await stream.get_messages(_PAGE, seq=seq)
        elif is_near:
            found = await _one_by_one(stream, seq)
        else:
            found = await _side_by_side(stream, seq, last)
        page = [message for message in found if message.seq <= last]
        if not page:
            return
        yield page
        seq = page[-1].seq + 1


async def _one_by_one(stream: Stream, seq: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while len(found) < _PAGE:
        try:
            found.append(await stream.get_next_message(">", seq))
        except MessageNotFoundError:
            break
        seq = found[-1].seq + 1
    return found


async def _side_by_side(stream: Stream, seq: int, last: int) -> list[StoredMessage]:
    wanted = range(seq, min(seq + _AT_ONCE, last + 1))
    found = [one for one in await asyncio.gather(*(_at(stream, each) for each in wanted)) if one is not None]
    if found or wanted[-1] == last:
        return found
    try:
        # Beyond a gap.
        return [await stream.get_next_message(">", wanted[-1] + 1)]
    except MessageNotFoundError:
        return []


async def _at(stream: Stream, seq: int) -> StoredMessage | None:
    try:
        return await stream.get_message(seq)
    except MessageNotFoundError:
        return None
