"""Claiming keys: from a chance, which may be outdated, to a job that no other worker can hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pelton.api import (
    ApiError,
    Delivered,
    MessageNotFoundError,
    PeltonError,
    StoredMessage,
)
from pelton.jet.readable import at_leader
from pelton.jet.register import MovedError
from pelton.queue.keys.held_keys import CHANNEL, HeldKey, Holdings
from pelton.queue.keys.ledger import Ledger
from pelton.queue.keys.record import claimed, let_go, looked, refused
from pelton.queue.keys.table import Chance, KeyTable
from pelton.queue.model.naming import ALL_PRIORITIES
from pelton.queue.ports import TakenJob

if TYPE_CHECKING:
    from pelton.jet import Stream, Streams
    from pelton.queue.model.naming import QueueNames

# The pause before a key that another worker has changed is tried again: by then its record is known.
_AGAIN_S: Final = 0.25


class Claimer:
    """Claims keys for one worker."""

    def __init__(
        self,
        jet: Streams,
        names: QueueNames,
        jobs: Stream,
        worker: str,
        ledger: Ledger,
        table: KeyTable,
        holdings: Holdings,
    ) -> None:
        self._backend = jet.backend
        self._clock = jet.runtime.clock
        self._names = names
        self._jobs = jobs
        self._worker = worker
        self._ledger = ledger
        self._table = table
        self._holdings = holdings

    async def try_all(self, chances: Sequence[Chance]) -> list[TakenJob]:
        """Try keys at once and return the jobs we claimed; raises the first error if there is none."""
        answers = await asyncio.gather(*(self._try(chance) for chance in chances), return_exceptions=True)
        found = [answer for answer in answers if isinstance(answer, TakenJob)]
        for answer in answers:
            if isinstance(answer, BaseException) and not found:
                raise answer
        return found

    async def _try(self, chance: Chance) -> TakenJob | None:
        """Claim a key, or carry out a settled record; leaves the key in the table unless it is ours now."""
        again, changed = 0.0, 0
        try:
            if chance.hold is not None and chance.hold.state == "settled":
                await self._rescue(chance)
            elif (taken := await self._claim(chance)) is not None:
                return taken
        except MovedError as moved:
            again, changed = _AGAIN_S, moved.seq or chance.seq + 1
            await self._look_again(chance, moved)
        except PeltonError:
            self._table.done(chance.key, self._clock.boottime(), _AGAIN_S)
            raise
        self._table.done(chance.key, self._clock.boottime(), again, changed)
        return None

    async def _look_again(self, chance: Chance, moved: MovedError) -> None:
        """Learn what the watch won't report: that a record was removed, or one that it reported long ago."""
        if chance.seq and moved.seq == 0:
            # The server removes free records.
            self._table.is_gone(chance.key, self._clock.boottime())
        elif not chance.seq:
            seq, hold = await self._ledger.read(chance.key)
            self._table.saw_record(chance.key, seq, hold, self._clock.boottime())

    async def _claim(self, chance: Chance) -> TakenJob | None:
        key, asked = chance.key, self._clock.boottime()
        last_job = self._table.last_job(key)
        hold = claimed(chance.hold, self._worker)
        token = await self._ledger.write(key, hold, chance.seq)
        self._table.saw_record(key, token, hold, asked)
        stored = await self._first_job(key, hold.done)
        if stored is None:
            free = let_go(hold)
            seq = await self._ledger.write(key, free, token)
            self._table.has_none(key, last_job)
            self._table.saw_record(key, seq, free, self._clock.boottime())
            return None
        hold = looked(hold, token, stored.seq)
        self._holdings[token] = HeldKey(key, token, hold)
        return TakenJob(self._delivered(stored, token, hold.tries), asked)

    def _delivered(self, stored: StoredMessage, token: int, tries: int) -> Delivered:
        return Delivered(
            subject=stored.subject,
            seq=stored.seq,
            time_ns=stored.time_ns,
            headers=stored.hdrs or None,
            data=stored.data,
            consumer_seq=tries,
            num_delivered=tries,
            num_pending=0,
            stream=self._names.jobs,
            consumer=CHANNEL,
            token=token,
        )

    async def _first_job(self, key: str, done: int) -> StoredMessage | None:
        """Return the next job, of any priority, of those with a place of their own and of the others.

        Only where jobs are known to be is looked at first. What is found there is the next one if everything before it
        is known; otherwise there may be another one elsewhere.
        """
        likely = self._table.priorities(key, done) or (0,)
        found = await self._first_of(key, done, likely)
        if found is not None and self._table.is_known(found.seq):
            return found
        others = await self._first_of(key, done, [rank for rank in ALL_PRIORITIES if rank not in likely])
        return min((stored for stored in (found, others) if stored is not None), key=attrgetter("seq"), default=None)

    async def _first_of(self, key: str, done: int, priorities: Sequence[int]) -> StoredMessage | None:
        subjects = [subject for rank in priorities for subject in self._names.subjects_of_key(key, rank)]
        found = await asyncio.gather(*(self._next_at(subject, done) for subject in subjects))
        return min((stored for stored in found if stored is not None), key=attrgetter("seq"), default=None)

    async def _next_at(self, subject: str, done: int) -> StoredMessage | None:
        """Return the next message. Replicas may not have it yet, so the leader is asked as well."""
        try:
            return await self._jobs.get_next_message(subject, done + 1)
        except MessageNotFoundError:
            return await at_leader(self._backend, self._names.jobs, seq=done + 1, next_by_subj=subject)

    async def _rescue(self, chance: Chance) -> None:
        """Carry out a record that another worker settled and has not carried out itself: it is gone, or slow."""
        assert chance.hold is not None
        try:
            seq, after = await self._ledger.carry_out(chance.key, chance.seq, chance.hold)
        except ApiError as error:
            # The worker's attempt would have failed: it has, and the job is retried.
            after = refused(chance.hold, str(error))
            seq = await self._ledger.write(chance.key, after, chance.seq)
        self._table.saw_record(chance.key, seq, after, self._clock.boottime())
