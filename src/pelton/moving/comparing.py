"""Compares a copied stream with its original, message by message."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from pelton.api import StoredMessage
from pelton.jet import Stream
from pelton.moving.headers import as_published, is_schedule
from pelton.moving.reading import pages

_SIZE: Final = 16


class Differing(Exception):  # noqa: N818 - a finding
    """The first difference between a stream and its copy."""


class Comparison:
    """The comparison of one stream; ``exact``: headers and times are the same, and schedules have their sequences."""

    messages: int

    def __init__(self, *, exact: bool) -> None:
        self.is_exact = exact
        self._digest = hashlib.blake2b(digest_size=_SIZE)
        self.messages = 0

    @property
    def checksum(self) -> str:
        """A checksum over what was compared."""
        return self._digest.hexdigest()

    async def run(self, one: Stream, other: Stream, *, near: tuple[bool, bool]) -> None:
        """Compare all messages. Raises Differing."""
        theirs = self._each(other, is_near=near[1])
        async with aclosing(self._each(one, is_near=near[0])) as mine, aclosing(theirs):
            async for message in mine:
                found = await anext(theirs, None)
                if found is None or self._facts(message) != self._facts(found):
                    raise Differing(f"message {message.seq} differs, or is missing in the copy")
                self._digest.update(repr(self._facts(message)).encode())
                self.messages += 1
            if (extra := await anext(theirs, None)) is not None:
                raise Differing(f"message {extra.seq} is only in the copy")

    async def _each(self, stream: Stream, *, is_near: bool) -> AsyncGenerator[StoredMessage, None]:
        state = (await stream.info()).state
        async with aclosing(pages(stream, max(state.first_seq, 1), state.last_seq, is_near=is_near)) as found:
            async for page in found:
                for message in page:
                    if self.is_exact or not is_schedule(message):
                        yield message

    def _facts(self, message: StoredMessage) -> tuple[object, ...]:
        if self.is_exact:
            return (message.seq, message.subject, message.hdrs, message.data, message.time_ns)
        return (message.seq, message.subject, as_published(message), message.data)
