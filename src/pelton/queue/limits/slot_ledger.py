"""The stored records of limits, each written only if it is still the one that its writer has seen."""

from __future__ import annotations

from typing import NamedTuple

from pelton.api import Backend, MessageNotFoundError, MsgGet, headers
from pelton.queue.model.naming import QueueNames
from pelton.queue.model.slots import EMPTY, SlotRecord, decode, encode


class StoredSlots(NamedTuple):
    """The record of a place, and its sequence; 0 if it has none."""

    seq: int
    record: SlotRecord


class SlotLedger:
    """The records of the limits of one queue, each by its place."""

    def __init__(self, backend: Backend, names: QueueNames) -> None:
        self._backend = backend
        self._names = names

    def on(self, backend: Backend) -> SlotLedger:
        """Return the same records through another connection."""
        return SlotLedger(backend, self._names)

    async def read(self, place: str) -> StoredSlots:
        """Return the present record, from the stream's leader."""
        request = MsgGet(stream=self._names.running, last_by_subj=self._names.slots_subject(place))
        try:
            found = (await self._backend.call(request)).message
        except MessageNotFoundError:
            return StoredSlots(0, EMPTY)
        return StoredSlots(found.seq, decode(found.data))

    async def write(self, place: str, record: SlotRecord, seen: int, now: int) -> int:
        """Replace a record; return its sequence. Raises WrongLastSequenceError if ``seen`` is not the present one."""
        block = {headers.EXPECTED_LAST_SUBJECT_SEQUENCE: str(seen)}
        if ttl := record.ttl(now):
            # Nobody holds a slot: the store may remove it, so that keys leave nothing behind.
            block[headers.TTL] = f"{ttl}s"
        ack = await self._backend.publish(self._names.slots_subject(place), encode(record), headers.encode(block))
        return ack.seq
