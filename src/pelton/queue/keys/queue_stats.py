"""The state of a queue's jobs, from the records of its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pelton.api import MessageNotFoundError, Unsettled
from pelton.queue.backing.queue_stats import delivered_by, infos_of, tenant_consumers
from pelton.queue.backing.scan import deliveries
from pelton.queue.backing.unfinished_jobs import not_to_be_taken
from pelton.queue.keys.record import KeyRecord, decode
from pelton.queue.model.naming import ALL_PRIORITIES
from pelton.queue.model.records import cause_of
from pelton.queue.ports import Underway, Unlisted

if TYPE_CHECKING:
    from pelton.jet import Consumer, Stream, Streams
    from pelton.queue.model.naming import QueueNames

_AT_ONCE: Final = 64


class KeyedStats:
    """Views of an exclusive queue on a cluster. For jobs without a key only their number is known."""

    def __init__(self, jet: Streams, names: QueueNames, jobs: Stream, free: Sequence[Consumer]) -> None:
        self._jet = jet
        self._jobs = jobs
        self._names = names
        # By priority, the highest first.
        self._free = free

    async def underway(self) -> Underway:
        """Return the current job of every key that is held, waits, or is being settled."""
        stream = await self._jet.stream(self._names.keys)
        found: Underway = {}
        batch: list[tuple[str, KeyRecord, int]] = []
        async for delivered in deliveries(stream, ""):
            hold = decode(delivered.data)
            if hold.state != "free":
                batch.append((self._names.key_of_hold(delivered.subject), hold, delivered.time_ns))
        for start in range(0, len(batch), _AT_ONCE):
            entries = await asyncio.gather(*(self._entry(*one) for one in batch[start : start + _AT_ONCE]))
            found.update((entry.seq, entry) for entry in entries if entry is not None)
        return found

    async def unlisted(self) -> Unlisted:
        """Return what was delivered of the jobs without a key."""
        return await delivered_by(self._jobs, self._names, self._free)

    async def untouched(self, underway: Underway) -> int:
        """Return how many jobs are stored that no worker holds."""
        consumers = (*self._free, *await tenant_consumers(self._jobs, self._names))
        taken = sum(info.num_ack_pending for info in await infos_of(consumers))
        stream = await self._jet.stream(self._names.jobs)
        stored = (await stream.info()).state.messages - await not_to_be_taken(self._jet, self._names)
        return max(stored - taken - len(underway), 0)

    async def _entry(self, key: str, hold: KeyRecord, written: int) -> Unsettled | None:
        job = hold.job
        if not job:
            subjects = [subject for rank in ALL_PRIORITIES for subject in self._names.subjects_of_key(key, rank)]
            found = await asyncio.gather(*(self._next_at(subject, hold.done) for subject in subjects))
            job = min((seq for seq in found if seq), default=0)
            if not job:
                return None
        waits = hold.state == "waiting"
        cause = cause_of(hold.known) if waits else 0
        return Unsettled(job, hold.tries, written + hold.delay_ns if waits else 0, waits, cause)

    async def _next_at(self, subject: str, done: int) -> int:
        stream = await self._jet.stream(self._names.jobs)
        try:
            return (await stream.get_next_message(subject, done + 1)).seq
        except MessageNotFoundError:
            return 0
