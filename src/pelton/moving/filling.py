"""Fills a copy with messages: a file stores them as they were, a cluster has them published.

Design: A store file takes messages with their sequences and times. A cluster gives its own: each message is published
after the one before it, so it gets the same sequence, because the stream begins at the original's first one, and a
message on a subject of its own stands for each that was deleted; those are purged in the end. Whoever is killed begins
again after the last sequence that the copy has: nothing is stored twice, as nobody else writes to it. Should a cluster
have stored a message under another sequence, because an answer was lost and the message repeated, the copy is refused,
and begins anew with the next run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from pelton.api import MessageNotFoundError, Outgoing, StoredMessage, StoreError, StreamFill
from pelton.jet import Stream, Streams
from pelton.moving.configs import filler_of
from pelton.moving.headers import as_published, is_schedule

_AT_ONCE: Final = 500


class Filler(Protocol):
    """One kind of target."""

    async def fill(self, page: Sequence[StoredMessage]) -> None:
        """Store the next messages."""
        ...

    async def end(self, last: int) -> None:
        """Skip what was deleted at the end, up to the sequence ``last``."""
        ...

    async def begin_schedules(self, schedules: Sequence[StoredMessage]) -> None:
        """Let the schedules of the complete stream run."""
        ...


class FileFiller:
    """Fills a stream of a store file."""

    def __init__(self, jet: Streams, stream: str) -> None:
        self._jet = jet
        self._stream = stream

    async def fill(self, page: Sequence[StoredMessage]) -> None:
        """Store the next messages, in one transaction."""
        await self._jet.backend.call(StreamFill(stream=self._stream, messages=tuple(page)))

    async def end(self, last: int) -> None:
        """Skip the sequences up to ``last``."""
        await self._jet.backend.call(StreamFill(stream=self._stream, last_seq=last))

    async def begin_schedules(self, schedules: Sequence[StoredMessage]) -> None:
        """Let the schedules run."""
        sequences = tuple(message.seq for message in schedules)
        await self._jet.backend.call(StreamFill(stream=self._stream, schedules=sequences))


class ClusterFiller:
    """Fills a stream of a cluster, from the sequence after ``last`` on."""

    def __init__(self, jet: Streams, stream: Stream, last: int) -> None:
        self._jet = jet
        self._stream = stream
        self._last = last
        self._blank = Outgoing(filler_of(stream.name), b"")

    async def fill(self, page: Sequence[StoredMessage]) -> None:
        """Publish the next messages, and others in the place of those that are not there."""
        batch: list[Outgoing] = []
        for message in page:
            for _ in range(message.seq - self._last - 1 - len(batch)):
                batch.append(self._blank)
                batch = await self._sent(batch)
            batch.append(
                self._blank if is_schedule(message) else Outgoing(message.subject, message.data, as_published(message))
            )
            batch = await self._sent(batch)
        await self._publish(batch)

    async def end(self, last: int) -> None:
        """Publish in the place of the last ones, and remove all that only held a place."""
        left = last - self._last
        while left > 0:
            await self._publish([self._blank] * min(left, _AT_ONCE))
            left = last - self._last
        await self._stream.purge(filter=self._blank.subject)

    async def begin_schedules(self, schedules: Sequence[StoredMessage]) -> None:
        """Publish the schedules that are not there yet; they get sequences at the end."""
        for message in schedules:
            try:
                if (await self._stream.get_last_message(message.subject)).data == message.data:
                    continue
            except MessageNotFoundError:
                pass
            await self._jet.backend.publish(message.subject, message.data, as_published(message))

    async def _sent(self, batch: list[Outgoing]) -> list[Outgoing]:
        if len(batch) < _AT_ONCE:
            return batch
        await self._publish(batch)
        return []

    async def _publish(self, batch: Sequence[Outgoing]) -> None:
        if not batch:
            return
        acks = await self._jet.backend.publish_batch(batch)
        expected = range(self._last + 1, self._last + 1 + len(batch))
        if [ack.seq for ack in acks] != list(expected):
            raise StoreError(self._stream.name, "others write to this stream, or an answer was lost: copy it again")
        self._last = expected[-1]
