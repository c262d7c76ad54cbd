"""Putting an object, so that it is there as a whole or not at all.

The story. Chunks are stored under a subject that nobody else uses (a fresh ``nuid``), a batch at a time, while the next
batch is read. The description comes last and names that subject: until then readers see the old object, from then on
the new one, and no mix. What goes wrong before it removes the chunks; of a process that died they stay, and belong to
nobody (:mod:`cleanup`).

Invariants:
- Each batch, and the description, expects to stand behind the batch before it: where somebody took the chunks for those
  of a dead process, the put fails, and never describes what is not there.
- An object of one batch is stored in one transaction of an embedded store, with its description.
- Two puts of one name: the later description wins. Both look afterwards for chunks that are nobody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, TypeVar

import msgspec

from pelton.api import ObjectChangedError, ObjectDamagedError, PeltonError, PubAck, WrongLastSequenceError, headers
from pelton.buckets.objects.info import ObjectInfo, digest_text, encoded
from pelton.buckets.objects.naming import chunk_subject, meta_subject
from pelton.buckets.objects.records import ROLLED_UP, Records
from pelton.buckets.objects.sources import Batch, Source
from pelton.jet import AnyMessage

T = TypeVar("T")
Progress = Callable[[int, int], object]
"""Called with how many bytes of how many are done; of how many is 0 where nobody knows."""
_EXPECTED: Final = headers.EXPECTED_LAST_SUBJECT_SEQUENCE
_EXPECTED_OF: Final = headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT


class Upload:
    """One object on its way in; ``total`` bytes, 0 where that is not known."""

    def __init__(
        self, records: Records, info: ObjectInfo, source: Source, *, total: int, progress: Progress | None
    ) -> None:
        self._records = records
        self._info = info
        self._source = source
        self._total = total
        self._progress = progress
        self._subject = chunk_subject(records.bucket, info.nuid)
        self._last_seq = 0
        self._done = 0
        self._is_described = False

    async def run(self) -> ObjectInfo:
        """Store the object; what was stored of it is removed when that fails."""
        try:
            return await self._stored()
        except BaseException:
            if not self._is_described:
                await self._spawned(self._undo())
            raise
        finally:
            await self._source.close()

    async def _undo(self) -> None:
        records, info = self._records, self._info
        # What was in the way before may still be; then it is left to be cleaned away.
        with suppress(PeltonError):
            # The answer may have been lost, not the description.
            found = await self._latest()
            if found is None or found.nuid != info.nuid:
                await records.purge_chunks(info.nuid)

    async def _spawned(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work to its end, also when whoever waits is cancelled meanwhile."""
        task = self._records.jet.runtime.spawn(_tried(work), f"pelton puts {self._info.name!r}")
        try:
            await asyncio.shield(task)
        finally:
            await asyncio.wait([task])
        outcome = task.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _stored(self) -> ObjectInfo:
        ready: list[bytes] = []
        held = await self._source.read()
        while not held.is_last:
            following = await self._read_while_storing(ready)
            ready = []
            if not following.chunks:
                break
            ready, held = held.chunks, following
        await self._spawned(self._store(ready))
        return await self._spawned(self._finish(held.chunks))

    async def _read_while_storing(self, chunks: list[bytes]) -> Batch:
        reading = asyncio.gather(self._source.read(), return_exceptions=True)
        try:
            # A slow source is not waited for once storing has failed.
            await self._spawned(self._store(chunks))
            (following,) = await reading
        finally:
            reading.cancel()
        if isinstance(following, BaseException):
            raise following
        return following

    async def _store(self, chunks: Sequence[bytes]) -> None:
        if not chunks:
            return
        acks = await self._published(self._messages(chunks))
        while any(later.seq <= earlier.seq for earlier, later in pairwise(acks)):
            # A connection was lost, and what was sent again stands behind what was not.
            for ack in acks:
                await self._records.stream.delete_message(ack.seq)
            acks = await self._published(self._messages(chunks))
        self._stored_up_to(acks[-1], chunks)

    def _messages(self, chunks: Sequence[bytes]) -> list[AnyMessage]:
        messages: list[AnyMessage] = [(self._subject, chunk) for chunk in chunks]
        if self._last_seq:
            messages[0] = (self._subject, chunks[0], {_EXPECTED: str(self._last_seq)})
        return messages

    def _stored_up_to(self, ack: PubAck, chunks: Sequence[bytes]) -> None:
        self._last_seq = ack.seq
        self._done += sum(map(len, chunks))
        if self._progress is not None:
            self._progress(self._done, self._total)

    async def _finish(self, chunks: list[bytes]) -> ObjectInfo:
        """Store the last chunks and the description, and remove what it replaces."""
        records, chunker = self._records, self._source.chunker
        info = msgspec.structs.replace(
            self._info, size=chunker.bytes, chunks=chunker.chunks, digest=digest_text(chunker.digest)
        )
        if self._last_seq or records.jet.backend.is_remote:
            # A server may store what follows a refused message.
            await self._store(chunks)
            chunks = []
        old = await self._latest()
        messages = [*self._messages(chunks), self._description(info)] if chunks else [self._description(info)]
        acks = await self._published(messages)
        self._is_described = True
        if chunks:
            self._stored_up_to(acks[-2], chunks)
        info = records.written(info, acks[-1])
        if old is not None and not old.deleted and old.link is None:
            await records.purge_chunks(old.nuid)
        latest = await self._latest()
        if latest is not None and latest.revision > info.revision and latest.nuid != info.nuid:
            await records.purge_chunks(info.nuid)
        return info

    async def _latest(self) -> ObjectInfo | None:
        try:
            return await self._records.find(self._info.name, latest=True)
        except ObjectDamagedError:
            return None

    def _description(self, info: ObjectInfo) -> AnyMessage:
        asked = dict(ROLLED_UP)
        if self._last_seq:
            asked |= {_EXPECTED: str(self._last_seq), _EXPECTED_OF: self._subject}
        return meta_subject(info.bucket, info.name), encoded(info), asked

    async def _published(self, messages: Sequence[AnyMessage]) -> list[PubAck]:
        try:
            return await self._records.jet.publish_batch(messages)
        except WrongLastSequenceError:
            text = "its parts were cleaned away while it was put: put it again, faster than what cleaning spares"
            raise ObjectChangedError(self._info.bucket, self._info.name, text) from None


async def _tried(work: Coroutine[Any, Any, T]) -> T | Exception:
    try:
        return await work
    except Exception as error:  # whatever it is: it is raised where the put is awaited
        return error
