"""The descriptions of an object store's objects, and the removal of their chunks: the basis of all operations."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from pelton.api import MessageNotFoundError, ObjectNotFoundError, PubAck, headers
from pelton.buckets.objects.info import ObjectInfo, decoded, encoded
from pelton.buckets.objects.naming import check_name, chunk_subject, meta_subject
from pelton.jet import AnyMessage, Stream, Streams
from pelton.jet.readable import at_leader

# As many chunks as one transaction of an embedded store removes.
_PURGED_AT_ONCE: Final = 512
_EXPECTED: Final = headers.EXPECTED_LAST_SUBJECT_SEQUENCE
ROLLED_UP: Final = {headers.ROLLUP: "sub"}


class Records:
    """The descriptions in one object store, written one by one.

    ``puts_in_flight`` is how many batches of chunks may be under way at once: a connection that is lost may change
    their order. ``ends_together``: the last chunks may go with the description; a server might store what follows a
    refused message.
    """

    puts_in_flight = 1
    ends_together = False

    def __init__(self, jet: Streams, stream: Stream, bucket: str) -> None:
        self.jet = jet
        self.stream = stream
        self.bucket = bucket

    async def find(self, name: str, *, latest: bool = False) -> ObjectInfo | None:
        """Return an object, deleted or not; None if there never was one.

        ``latest`` asks the stream's leader, not a replica. Raises ConfigError, ObjectDamagedError.
        """
        subject = meta_subject(self.bucket, check_name(name))
        if latest:
            stored = await at_leader(self.jet.backend, self.stream.name, last_by_subj=subject)
        else:
            stored = None
            with suppress(MessageNotFoundError):
                stored = await self.stream.get_last_message(subject)
        if stored is None:
            return None
        return decoded(self.bucket, name, stored.data, revision=stored.seq, time_ns=stored.time_ns)

    async def get(self, name: str, *, latest: bool = False) -> ObjectInfo:
        """Return an existing object. Raises ObjectNotFoundError, ObjectDamagedError."""
        found = await self.find(name, latest=latest)
        if found is None or found.deleted:
            raise ObjectNotFoundError(self.bucket, name)
        return found

    async def write(self, info: ObjectInfo, *, expected: int | None = None) -> ObjectInfo:
        """Describe an object, if ``expected`` is still the revision of its name. Raises WrongLastSequenceError."""
        subject = meta_subject(self.bucket, info.name)
        data = encoded(info)
        ack = await self.jet.publish(subject, data, headers=ROLLED_UP, expected_last_subject_seq=expected)
        return self.written(info, ack)

    async def move(self, new: ObjectInfo, expected: int, gone: ObjectInfo) -> ObjectInfo:
        """Describe an object under a new name, which has the revision ``expected``, and its old name as deleted.

        Raises WrongLastSequenceError.
        """
        written = await self.write(new, expected=expected)
        await self.write(gone, expected=gone.revision)
        return written

    def written(self, info: ObjectInfo, ack: PubAck) -> ObjectInfo:
        """Return an object with the fields known once its description is stored."""
        return msgspec.structs.replace(info, revision=ack.seq, mtime_ns=self.jet.runtime.clock.now())

    async def purge_chunks(self, nuid: str) -> None:
        """Remove what is stored of an object."""
        await self.stream.purge(filter=chunk_subject(self.bucket, nuid))


class AtomicRecords(Records):
    """The same where a batch is one transaction: of the embedded store."""

    puts_in_flight = 4
    ends_together = True

    async def move(self, new: ObjectInfo, expected: int, gone: ObjectInfo) -> ObjectInfo:
        """Describe both names in one transaction: a crash must not leave an object with two names."""
        messages: list[AnyMessage] = [
            (meta_subject(self.bucket, info.name), encoded(info), {**ROLLED_UP, _EXPECTED: str(revision)})
            for info, revision in ((new, expected), (gone, gone.revision))
        ]
        acks = await self.jet.publish_batch(messages)
        return self.written(new, acks[0])

    async def purge_chunks(self, nuid: str) -> None:
        """Remove what is stored of an object, some of it at a time: other writers get their turn in between."""
        subject = chunk_subject(self.bucket, nuid)
        try:
            first = (await self.stream.get_next_message(subject)).seq
            last = (await self.stream.get_last_message(subject)).seq
        except MessageNotFoundError:
            return
        for seq in range(first + _PURGED_AT_ONCE, last + 1, _PURGED_AT_ONCE):
            await self.stream.purge(filter=subject, seq=seq)
        await self.stream.purge(filter=subject)


def records_of(jet: Streams, stream: Stream, bucket: str) -> Records:
    """Return the descriptions in the object store ``bucket``, in the way of its backend."""
    return (AtomicRecords if jet.backend.planning.atomic_batches else Records)(jet, stream, bucket)
