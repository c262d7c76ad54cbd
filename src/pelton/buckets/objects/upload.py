"""Puts an object atomically.

Design: Chunks are stored under a unique subject (a fresh ``nuid``), a batch at a time, while the next
batch is read. The description comes last and names that subject: until then readers see the old object, from then on
the new one, and no mix. If the put fails before that, it removes the chunks; if its process dies, they stay as orphans
(:mod:`cleanup`).

Invariants:
- An object is described only if all its chunks exist, and on the condition that its last chunk still is the last of
  its subject: if a cleanup took the chunks for those of a dead process, the put fails.
- An object of one batch is stored in one transaction of an embedded store, with its description.
- Two puts of one name: the later description wins. Both remove orphaned chunks afterwards.
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
from pelton.buckets.objects.sources import Batch, ChunkSource
from pelton.jet import AnyMessage
from pelton.runtime import until_ended

T = TypeVar("T")
Progress = Callable[[int, int], object]
"""Called with the bytes done and the total; 0 if the total is unknown."""
_EXPECTED: Final = headers.EXPECTED_LAST_SUBJECT_SEQUENCE
_EXPECTED_OF: Final = headers.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT


class Upload:
    """The upload of one object; ``total`` bytes, 0 if unknown."""

    def __init__(
        self, records: Records, info: ObjectInfo, source: ChunkSource, *, total: int, progress: Progress | None
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
        self._held = Batch([], True)
        self._storing: list[asyncio.Task[Any]] = []
        self._task_name = f"pelton puts {info.name!r}"

    async def run(self) -> ObjectInfo:
        """Store the object; on failure its chunks are removed."""
        try:
            await self._store_all()
            return await self._to_its_end(self._finish())
        except BaseException:
            await self._to_its_end(self._undo())
            raise
        finally:
            await self._source.close()

    async def _store_all(self) -> None:
        """Store all batches except the last, which is known when nothing follows."""
        self._held = await self._source.read()
        while not self._held.is_last:
            following = await self._source.read()
            if not following.chunks:
                break
            while len(self._storing) >= self._records.puts_in_flight:
                await self._stored()
            work = _tried(self._store(self._held.chunks))
            self._storing.append(self._records.jet.runtime.spawn(work, self._task_name))
            self._held = following
        while self._storing:
            await self._stored()

    async def _stored(self) -> None:
        """Wait for the oldest batch in flight."""
        await asyncio.wait(self._storing[:1])
        error = self._storing.pop(0).result()
        if isinstance(error, Exception):
            raise error

    async def _undo(self) -> None:
        # Messages in flight must have arrived before they can be removed.
        if self._storing:
            await asyncio.wait(self._storing)
        if self._is_described:
            return
        # What made the put fail may make this fail too; then the chunks are left for a cleanup.
        with suppress(PeltonError):
            # The answer may have been lost, but not the description.
            found = await self._latest()
            if found is None or found.nuid != self._info.nuid:
                await self._records.purge_chunks(self._info.nuid)

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish the work, however often the caller is cancelled during it: what follows relies on its end."""
        task = self._records.jet.runtime.spawn(_tried(work), self._task_name)
        try:
            outcome = await asyncio.shield(task)
        finally:
            await until_ended(task)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _store(self, chunks: Sequence[bytes]) -> None:
        if not chunks:
            return
        messages: list[AnyMessage] = [(self._subject, chunk) for chunk in chunks]
        acks = await self._records.jet.publish_batch(messages)
        while any(later.seq <= earlier.seq for earlier, later in pairwise(acks)):
            # A connection was lost, and retried messages were stored after later ones.
            for ack in acks:
                await self._records.stream.delete_message(ack.seq)
            acks = await self._records.jet.publish_batch(messages)
        self._stored_up_to(acks[-1], chunks)

    def _stored_up_to(self, ack: PubAck, chunks: Sequence[bytes]) -> None:
        self._last_seq = ack.seq
        self._done += sum(map(len, chunks))
        if self._progress is not None:
            self._progress(self._done, self._total)

    async def _finish(self) -> ObjectInfo:
        """Store the last chunks and the description, and remove what it replaces."""
        records, chunker, chunks = self._records, self._source.chunker, self._held.chunks
        info = msgspec.structs.replace(
            self._info, size=chunker.bytes, chunks=chunker.chunks, digest=digest_text(chunker.digest)
        )
        is_long = self._last_seq > 0
        if is_long or not records.ends_together:
            await self._store(chunks)
            chunks = []
        if is_long:
            await self._check_all_there(info)
        old = await self._latest()
        info = await self._described(info, chunks)
        if old is not None and not old.deleted and old.link is None:
            await records.purge_chunks(old.nuid)
        latest = await self._latest()
        if latest is not None and latest.revision > info.revision and latest.nuid != info.nuid:
            await records.purge_chunks(info.nuid)
        return info

    async def _check_all_there(self, info: ObjectInfo) -> None:
        state = (await self._records.stream.info(subjects_filter=self._subject)).state
        if sum((state.subjects or {}).values()) != info.chunks:
            raise self._cleaned_away()

    async def _described(self, info: ObjectInfo, chunks: Sequence[bytes]) -> ObjectInfo:
        """Store the description, with chunks before it, on the condition that nothing was stored in between."""
        asked = dict(ROLLED_UP)
        if self._last_seq:
            asked |= {_EXPECTED: str(self._last_seq), _EXPECTED_OF: self._subject}
        messages: list[AnyMessage] = [(self._subject, chunk) for chunk in chunks]
        messages.append((meta_subject(info.bucket, info.name), encoded(info), asked))
        try:
            acks = await self._records.jet.publish_batch(messages)
        except WrongLastSequenceError:
            raise self._cleaned_away() from None
        self._is_described = True
        if chunks:
            self._stored_up_to(acks[-2], chunks)
        return self._records.written(info, acks[-1])

    def _cleaned_away(self) -> ObjectChangedError:
        text = "its chunks were cleaned up while it was put: put it again, or let cleanup spare them for longer"
        return ObjectChangedError(self._info.bucket, self._info.name, text)

    async def _latest(self) -> ObjectInfo | None:
        try:
            return await self._records.find(self._info.name, latest=True)
        except ObjectDamagedError:
            return None


async def _tried(work: Coroutine[Any, Any, T]) -> T | Exception:
    try:
        return await work
    except Exception as error:  # whatever it is: the awaited put raises it
        return error
