"""Claiming keys, holding and settling them: from a chance, which may be outdated, to a job held by no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from pelton.api import (
    AckOp,
    AckRejectedError,
    ApiError,
    Backend,
    Delivered,
    MessageNotFoundError,
    MsgDelete,
    Outgoing,
    PeltonError,
    StoredMessage,
    WrongLastSequenceError,
    headers,
)
from pelton.api.admission import check_subject
from pelton.api.tracing import as_first
from pelton.jet.registers import MovedError, Register, StoredRecord
from pelton.jet.stream import at_leader, next_of
from pelton.queue.key_table import (
    FREE_FOR_S,
    Chance,
    KeyRecord,
    KeyTable,
    Posted,
    carried_out,
    claim_record,
    decode,
    encode,
    let_go,
    refused_record,
    settled_record,
    taken_back,
    with_job,
)
from pelton.queue.model.naming import ALL_PRIORITIES, QueueNames
from pelton.queue.model.records import CLAIMED
from pelton.queue.registry import TakenJob

if TYPE_CHECKING:
    from pelton.jet import Stream, Streams
    from pelton.queue.model.records import Ended
    from pelton.queue.registry import Extender

_DELETE_FAILED: Final = 10057


class Ledger(Register[KeyRecord]):
    """The records of a queue's keys. A key is the part of its jobs' subjects after the prefix."""

    def __init__(self, backend: Backend, names: QueueNames) -> None:
        super().__init__(
            backend,
            names.keys,
            names.hold_subject(""),
            encode,
            decode,
            lambda hold: FREE_FOR_S if hold.state == "free" else 0,
        )
        self._names = names

    async def carry_out(self, key: str, seq: int, hold: KeyRecord) -> StoredRecord[KeyRecord]:
        """Publish what a settled record holds, remove its job if it has ended, and return the record that follows.

        Safe to repeat, or to run twice at once. Raises ApiError if a message is refused for good; then the
        records of the queue itself are not written yet. Raises MovedError if another worker has done it.
        """
        ours, numbered = f"{self._names.root}.", [(f"{hold.name}.{n}", posted) for n, posted in enumerate(hold.outbox)]
        # What a job adds to its flow has to be there when the flow is told that the job has ended.
        emitted = [
            (name, posted)
            for name, posted in numbered
            if not posted.subject.startswith(ours) or self._names.is_flow_log(posted.subject)
        ]
        if emitted:
            await self._backend.publish_batch([with_id(name, posted) for name, posted in emitted])
        # A wait is last: what comes after it finds the others.
        waits = [one for one in numbered if one not in emitted and hold.waits_for_signal and one is numbered[-1]]
        await asyncio.gather(*(self._note(*one) for one in numbered if one not in emitted and one not in waits))
        need_not_wait = [not await self._begin_wait(*one) for one in waits]
        if hold.ended:
            # Last, so that a job is always stored somewhere.
            await self.remove_job(hold.job)
        after = carried_out(hold)
        if any(need_not_wait):
            after = msgspec.structs.replace(after, delay_ns=0)
        return StoredRecord(await self.write(key, after, seq), after)

    async def remove_job(self, job: int) -> None:
        """Remove a job's message, unless it is already gone."""
        try:
            await self._backend.call(MsgDelete(stream=self._names.jobs, seq=job, no_erase=True))
        except ApiError as error:
            is_gone = isinstance(error, MessageNotFoundError)
            has_failed = error.err_code == _DELETE_FAILED
            if not (is_gone or (has_failed and await at_leader(self._backend, self._names.jobs, seq=job) is None)):
                raise

    async def _begin_wait(self, name: str, posted: Posted) -> bool:
        """Publish the record of a wait for a signal; return False if there is one that was not received."""
        wait = with_id(name, posted)
        try:
            await self._backend.publish(wait.subject, wait.data, wait.headers)
        except WrongLastSequenceError:
            return False
        return True

    async def _note(self, name: str, posted: Posted) -> None:
        """Publish a record of the queue: one per job forever for outcomes, else the latest of its subject."""
        note = with_id(name, posted)
        if note.subject.startswith((self._names.attempt_subject(""), self._names.order_subject(""))):
            await self._backend.publish(note.subject, note.data, note.headers)
            return
        if note.subject.startswith(self._names.ending_prefix):
            note = as_first(note, self._names.outcomes_of("*"))
        else:
            block = headers.with_value(note.headers, headers.EXPECTED_LAST_SUBJECT_SEQUENCE, "0")
            note = Outgoing(note.subject, note.data, block)
        try:
            await self._backend.publish(note.subject, note.data, note.headers)
        except WrongLastSequenceError:
            # Already stored: another worker is carrying this out as well, or has done so; or the job was cancelled.
            return


def with_id(name: str, posted: Posted) -> Outgoing:
    """Return a message with an id that is the same for every publisher, unless it already has one."""
    block = posted.headers
    if block is None:
        block = headers.encode({headers.MSG_ID: name})
    elif headers.first(block, headers.MSG_ID) is None:
        block = headers.with_value(block, headers.MSG_ID, name)
    return Outgoing(posted.subject, posted.data, block)


def outbox_of(messages: Sequence[Outgoing]) -> tuple[Posted, ...]:
    """Return messages in the form in which a record stores them."""
    return tuple(Posted(message.subject, message.data, message.headers) for message in messages)


# --- the keys a worker holds: renewed by its keeper's thread, settled by its event loop, each lost at most once

CHANNEL: Final = CLAIMED


class HeldKey:
    """A key that this worker holds. ``seq`` is its record's sequence, as far as this worker knows.

    ``is_settling``: its attempt is over, and no longer renewed. ``is_settled``: the settled record is stored.
    """

    __slots__ = ("hold", "is_settled", "is_settling", "key", "seq")

    def __init__(self, key: str, seq: int, hold: KeyRecord) -> None:
        self.key: str = key
        self.seq: int = seq
        self.hold: KeyRecord = hold
        self.is_settling: bool = False
        self.is_settled: bool = False


Holdings = dict[int, HeldKey]
"""The keys a worker holds, by token; read by two threads, changed by its event loop."""


def replaced_error(stream: str, job: int) -> AckRejectedError:
    return AckRejectedError(stream, CHANNEL, job, "its key was taken over by another worker, which runs the job again")


class HoldExtender:
    """Extends leases: on keys itself, on anything else through the store."""

    def __init__(self, backend: Backend, ledger: Ledger, holdings: Holdings) -> None:
        self._backend = backend
        self._ledger = ledger
        self._holdings = holdings

    def clone(self) -> Extender:
        """Return a copy for another thread; it shares the holdings."""
        backend = self._backend.clone()
        return HoldExtender(backend, self._ledger.over(backend), self._holdings)

    async def ack(self, stream: str, consumer: str, acks: Sequence[AckOp]) -> list[PeltonError | None]:
        """Extend leases, all at once; raises StoreError if none of them can be extended."""
        if consumer != CHANNEL:
            return await self._backend.ack(stream, consumer, acks)
        return list(await asyncio.gather(*(self._renew(stream, ack) for ack in acks)))

    async def close(self) -> None:
        await self._backend.close()

    async def _renew(self, stream: str, ack: AckOp) -> PeltonError | None:
        held = self._holdings.get(ack.token)
        if held is None:
            return replaced_error(stream, ack.seq)
        while not held.is_settling:
            seen = held.seq
            try:
                held.seq = await self._ledger.write(held.key, held.hold, seen)
            except MovedError:
                if held.is_settling:
                    break
                seq, hold = await self._ledger.read(held.key)
                if hold is None or hold.token != held.hold.token or hold.state != "held":
                    return replaced_error(stream, ack.seq)
                held.seq = seq
            else:
                return None
        # Its attempt is over: the settler decides about it.
        return None


# --- claiming keys: from a chance, which may be outdated, to a job that no other worker can hold

# The pause before a key that another worker has changed is tried again: by then its record is known.
_AGAIN_S: Final = 0.25
_IN_FLIGHT_S: Final = 0.01


class Claimer:
    """Claims keys for one worker, and settles them."""

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
        self._ids = jet.runtime.ids
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
            self._table.release(chance.key, self._clock.boottime(), _AGAIN_S)
            raise
        self._table.release(chance.key, self._clock.boottime(), again, changed)
        return None

    async def _look_again(self, chance: Chance, moved: MovedError) -> None:
        """Learn what the watch won't report: that a record was removed, or one that it reported long ago."""
        if chance.seq and moved.seq == 0:
            # The server removes free records.
            self._table.forget_record(chance.key, self._clock.boottime())
        elif not chance.seq:
            seq, hold = await self._ledger.read(chance.key)
            self._table.saw_record(chance.key, seq, hold, self._clock.boottime())

    async def _claim(self, chance: Chance) -> TakenJob | None:
        key, asked = chance.key, self._clock.boottime()
        last_job = self._table.last_job(key)
        hold = claim_record(chance.hold, self._worker)
        token = await self._ledger.write(key, hold, chance.seq)
        self._table.saw_record(key, token, hold, asked)
        stored = await self._first_job(key, hold.done)
        if stored is None:
            free = let_go(hold)
            seq = await self._ledger.write(key, free, token)
            self._table.forget_jobs(key, last_job)
            self._table.saw_record(key, seq, free, self._clock.boottime())
            return None
        hold = with_job(hold, token, stored.seq)
        self._holdings[token] = HeldKey(key, token, hold)
        return TakenJob(self._to_delivered(stored, token, hold.tries), asked)

    def _to_delivered(self, stored: StoredMessage, token: int, tries: int) -> Delivered:
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
        found = await next_of(self._jobs, subject, done + 1)
        return found or await at_leader(self._backend, self._names.jobs, seq=done + 1, next_by_subj=subject)

    async def _rescue(self, chance: Chance) -> None:
        """Carry out a record that another worker settled and has not carried out itself: it is gone, or slow."""
        assert chance.hold is not None
        try:
            seq, after = await self._ledger.carry_out(chance.key, chance.seq, chance.hold)
        except ApiError as error:
            # The worker's attempt would have failed: it has, and the job is retried.
            after = refused_record(chance.hold, str(error))
            seq = await self._ledger.write(chance.key, after, chance.seq)
        self._table.saw_record(chance.key, seq, after, self._clock.boottime())

    # --- settling

    async def settle(self, held: HeldKey, ended: Ended) -> None:
        """Store how an attempt ended, and carry it out; raises as ``JobSource.settle`` does."""
        for message in ended.messages:
            check_subject(message.subject)
        if not held.is_settled:
            await self._commit(held, ended)
        try:
            seq, after = await self._ledger.carry_out(held.key, held.seq, held.hold)
        except MovedError:
            # Another worker was faster.
            return
        except ApiError:
            await self._take_back(held)
            raise
        self._table.saw_record(held.key, seq, after, self._clock.boottime())

    async def _commit(self, held: HeldKey, ended: Ended) -> None:
        """Write the settled record; raises AckRejectedError if another worker holds the key by now."""
        held.is_settling = True
        name, outbox, delay_ns = self._ids.new(), outbox_of(ended.messages), ended.ack.delay_ns
        over = settled_record(held.hold, name, outbox, ended=ended.is_over, delay_ns=delay_ns, known=ended.known)
        while not held.is_settled:
            try:
                held.seq = await self._ledger.write(held.key, over, held.seq)
            except MovedError:
                await self._read_again(held)
            except ApiError:
                held.is_settling = False
                raise
            else:
                held.hold, held.is_settled = over, True
        self._table.saw_record(held.key, held.seq, held.hold, self._clock.boottime())

    async def _read_again(self, held: HeldKey) -> None:
        """Find out why a settlement was refused: our own renewal, or our write whose reply was lost, are harmless."""
        seq, hold = await self._ledger.read(held.key)
        if hold is None or hold.token != held.hold.token:
            raise replaced_error(self._names.jobs, held.hold.job)
        if hold.state == "settled":
            held.hold, held.is_settled = hold, True
        elif seq == held.seq:
            # Another write is in flight: wait until it is known which came first.
            await self._clock.sleep(_IN_FLIGHT_S)
        held.seq = seq

    async def _take_back(self, held: HeldKey) -> None:
        """Reopen the attempt, because one of its messages is refused: it ends later, as a failed one."""
        before = taken_back(held.hold)
        try:
            held.seq = await self._ledger.write(held.key, before, held.seq)
        except MovedError:
            raise replaced_error(self._names.jobs, held.hold.job) from None
        held.hold, held.is_settled, held.is_settling = before, False, False
