"""The descriptions of an object store's objects, and the removal of their chunks: the basis of all operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pelton.api import MessageNotFoundError, MsgGet, ObjectNotFoundError, PubAck, headers, parse_rfc3339
from pelton.buckets.objects.info import ObjectInfo, decoded, encoded
from pelton.buckets.objects.naming import check_name, chunk_subject, meta_subject
from pelton.jet import AnyMessage, Stream, Streams

# The chunks that one transaction of an embedded store removes: others get their turn in between.
_PURGED_AT_ONCE: Final = 512
_EXPECTED: Final = headers.EXPECTED_LAST_SUBJECT_SEQUENCE
ROLLED_UP: Final = {headers.ROLLUP: "sub"}


class Records:
    """The descriptions in one object store."""

    def __init__(self, jet: Streams, stream: Stream, bucket: str) -> None:
        self.jet = jet
        self.stream = stream
        self.bucket = bucket

    async def find(self, name: str, *, latest: bool = False) -> ObjectInfo | None:
        """Return an object, deleted or not; None if there never was one.

        ``latest`` asks the stream's leader, not a replica. Raises ConfigError, ObjectDamagedError.
        """
        subject = meta_subject(self.bucket, check_name(name))
        try:
            if latest:
                message = (await self.jet.backend.call(MsgGet(stream=self.stream.name, last_by_subj=subject))).message
                time_ns = parse_rfc3339(message.time)
                return decoded(self.bucket, name, message.data, revision=message.seq, time_ns=time_ns)
            stored = await self.stream.get_last_message(subject)
        except MessageNotFoundError:
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

    async def write_all(self, asked: Sequence[tuple[ObjectInfo, int]]) -> ObjectInfo:
        """Describe objects, each if its name still has the given revision, in one transaction; return the first.

        Raises WrongLastSequenceError.
        """
        messages: list[AnyMessage] = [
            (meta_subject(self.bucket, info.name), encoded(info), {**ROLLED_UP, _EXPECTED: str(expected)})
            for info, expected in asked
        ]
        acks = await self.jet.publish_batch(messages)
        return self.written(asked[0][0], acks[0])

    def written(self, info: ObjectInfo, ack: PubAck) -> ObjectInfo:
        """Return an object with the fields known once its description is stored."""
        return msgspec.structs.replace(info, revision=ack.seq, mtime_ns=self.jet.runtime.clock.now())

    async def purge_chunks(self, nuid: str) -> None:
        """Remove the chunks of an object."""
        subject = chunk_subject(self.bucket, nuid)
        if self.jet.backend.is_remote:
            await self.stream.purge(filter=subject)
            return
        try:
            first = (await self.stream.get_next_message(subject)).seq
            last = (await self.stream.get_last_message(subject)).seq
        except MessageNotFoundError:
            return
        for seq in range(first + _PURGED_AT_ONCE, last + 1, _PURGED_AT_ONCE):
            await self.stream.purge(filter=subject, seq=seq)
        await self.stream.purge(filter=subject)
