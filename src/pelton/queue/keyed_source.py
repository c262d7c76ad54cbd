"""Exclusive keys from compare-and-set records: how a worker takes jobs and settles them, and how many there are.

**Exclusive keys from compare-and-set records: how a worker takes jobs, and settles them (docs/decisions/0017).** A key
has at most one record (``key_table.py``), and the worker that writes it under the right condition decides about the
key. Taking a job: claim the key's record, then read the first job stored after the last one that has ended. No other
worker can hold that job, because it would need the record. Settling: write the outcome, the dead letter and the
messages the job emitted into the record, in one publish; at that moment the attempt counts, and a holder that was
replaced fails there. Then all of it is published to its subjects, with ids that make repeating it harmless, the job's
message is removed, and the record is freed. A worker that dies in between leaves a settled record, which any other
worker carries out.

Failures, and how they are handled:

- A holder dies: its record no longer changes. A worker that has seen it unchanged for a lease takes it over, with a
  larger token; a holder renews a third of a lease after the last time, and gives up after four fifths.
- A holder is paused, and resumes after it was replaced: its next renewal and its settlement are refused.
- A worker's view is outdated: its claim is refused, and it reads again. Jobs are only ever appended, and only those
  at or before ``done`` have ended, so an outdated view of the jobs shows the right next one, or none.
- A reply is lost: the write is repeated with the same message id, which identifies it
  (``cluster/publisher.py``).

Jobs without a key come from a consumer, as in a queue that is not exclusive; the stream keeps a message until it is
removed, so the removal is the last step before the ack.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from math import inf
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from pelton.api import (
    AckRejectedError,
    ApiError,
    Delivered,
    Outgoing,
    PeltonError,
    PullRequest,
    StoredMessage,
    Unsettled,
    UnsettledGroup,
    WrongLastSequenceError,
)
from pelton.api.admission import check_subject
from pelton.api.tracing import as_first
from pelton.jet import ack_of
from pelton.jet.registers import Follower, MovedError, Outage, is_busy, last_and_new
from pelton.jet.stream import at_leader, next_of
from pelton.queue.job_source import JobSource
from pelton.queue.key_table import (
    CHANNEL,
    Chance,
    HeldKey,
    HoldExtender,
    Holdings,
    KeyRecord,
    KeyTable,
    Ledger,
    claim_record,
    decode,
    let_go,
    outbox_of,
    refused_record,
    replaced_error,
    settled_record,
    taken_back,
    with_id,
    with_job,
)
from pelton.queue.model.naming import ALL_PRIORITIES, QueueNames
from pelton.queue.model.records import Ended, cause_of
from pelton.queue.model.states import Attempt
from pelton.queue.registry import Extender, TakenJob, Underway, UnderwayCounts, UnderwayPart, Unlisted
from pelton.queue.scan import delivered_by, deliveries, infos_of, not_to_be_taken, refusal_of, tenant_consumers
from pelton.runtime import Signal

if TYPE_CHECKING:
    from pelton.jet import Consumer, Stream, Streams
    from pelton.queue.scan import BegunJobs

# --- following the keys: which of them have jobs, and their records. Two ordered readers feed a worker's table

_log: Final = logging.getLogger("pelton.queue")


class Watch:
    """Reads the last message of each subject, then all new ones, into a table.

    ``told`` is called when there may be something to do, and when everything stored at the start has been read.
    """

    is_caught_up: bool

    def __init__(self, jet: Streams, names: QueueNames, table: KeyTable, told: Callable[[], None]) -> None:
        self._jet = jet
        self._clock = jet.runtime.clock
        self._names = names
        self._table = table
        self._told = told
        self._unread = {names.jobs, names.keys}
        # The last job that the present reader has seen.
        self._last_job = 0
        self.is_caught_up = False

    async def follow_jobs(self) -> None:
        """Note every stored job, forever, without reading payloads."""
        await self._follow(self._names.jobs, self._opened_jobs, self._saw_job)

    async def follow_records(self) -> None:
        """Note every record that is written, forever."""
        await self._follow(self._names.keys, self._opened_records, self._saw_record)

    async def _follow(
        self,
        stream: str,
        opened: Callable[[], AsyncGenerator[Delivered | None, None]],
        saw: Callable[[Delivered], bool],
    ) -> None:
        outage = Outage(
            _log, self._clock, f"queue {self._names.queue!r} (stream {stream})", is_busy, queue=self._names.queue
        )

        async def see(one: Delivered | None) -> None:
            if one is None:
                self._on_read(stream)
            elif saw(one):
                self._told()

        await Follower(opened, see, outage.wait, outage.end).follow()

    def _opened_jobs(self) -> AsyncGenerator[Delivered | None, None]:
        self._table.looks_at_jobs()
        self._last_job = 0
        subjects = list(self._names.keyed_jobs)
        return last_and_new(self._jet, self._names.jobs, filter_subjects=subjects, headers_only=True)

    def _opened_records(self) -> AsyncGenerator[Delivered | None, None]:
        return last_and_new(self._jet, self._names.keys, filter_subject=self._names.hold_subject(">"))

    def _on_read(self, stream: str) -> None:
        if stream == self._names.jobs:
            self._table.knows_jobs(self._last_job)
        if stream in self._unread:
            self._unread.remove(stream)
            self.is_caught_up = not self._unread
            self._told()

    def _saw_job(self, delivered: Delivered) -> bool:
        self._last_job = delivered.seq
        key = self._names.key_of_job(delivered.subject)
        priority = self._names.priority_of_key(delivered.subject)
        return self._table.saw_job(key, delivered.seq, self._clock.boottime(), priority)

    def _saw_record(self, delivered: Delivered) -> bool:
        key = self._names.key_of_hold(delivered.subject)
        age = (self._clock.now() - delivered.time_ns) / 1e9
        return self._table.saw_record(key, delivered.seq, decode(delivered.data), self._clock.boottime(), max(age, 0.0))


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


class KeyedJobSource(JobSource):
    """The jobs of an exclusive queue on a cluster, for one worker."""

    def __init__(self, begun: BegunJobs, free: Consumer, ranked: Sequence[Consumer], worker: str) -> None:
        super().__init__(begun, free, ranked, worker)
        jet, names = begun.jet, begun.names
        self._clock = jet.runtime.clock
        self._holdings: Holdings = {}
        self._ledger = Ledger(jet.backend, names)
        self._table = KeyTable(begun.lease, jet.runtime.random)
        self._has_drawn = False
        self._changed = Signal()
        self._claimer = Claimer(jet, names, begun.stream, worker, self._ledger, self._table, self._holdings)
        self._watch = Watch(jet, names, self._table, self._changed.notify)
        self._watching: list[asyncio.Task[None]] = []
        self.channels: Sequence[str] = [CHANNEL, free.name]
        self.extender: Extender = HoldExtender(jet.backend, self._ledger, self._holdings)

    # --- taking

    async def take(self, channel: str, request: PullRequest) -> list[TakenJob]:
        """Take jobs: free ones, or the next job of as many keys as requested."""
        if channel != CHANNEL:
            return await super().take(channel, request)
        self._begin()
        end = inf if request.expires_ns is None else self._clock.boottime() + request.expires_ns / 1e9
        while True:
            seen = self._changed.generation
            for task in self._watching:
                if task.done() and not task.cancelled():
                    task.result()
            now = self._clock.boottime()
            chances = self._table.take(request.batch, now) if self._watch.is_caught_up else []
            if chances:
                # A claim that was started is completed.
                if found := await self._takes.complete(self._claimer.try_all(chances)):
                    return found
            elif now >= end or (request.no_wait and self._watch.is_caught_up):
                return []
            else:
                left = min(end, self._table.next_due()) - now
                await self._changed.wait_at_most(self._clock, max(left, 0.0) if left < inf else None, seen)

    async def has_ranked(self) -> bool:
        """Whether there are jobs with a priority that have not ended; finds out which tenants have jobs."""
        try:
            return await super().has_ranked()
        finally:
            if not (self.is_new or self._has_drawn):
                self._has_drawn = True
                self._table.turns.draw()

    def _begin(self) -> None:
        if not self._watching:
            for follow in (self._watch.follow_jobs, self._watch.follow_records):
                task = self._jet.runtime.spawn(follow(), f"pelton {self._names.queue} {follow.__name__}")
                task.add_done_callback(lambda _: self._changed.notify())
                self._watching.append(task)

    # --- settling

    async def _left_by(self, delivered: Delivered) -> Attempt | None:
        if delivered.consumer != CHANNEL:
            return await super()._left_by(delivered)
        held = self._holdings.get(delivered.token)
        return held.hold.known if held is not None else None

    async def keep(self, delivered: Delivered, *messages: Outgoing) -> None:
        """Extend the lease, then publish on condition that nobody else has."""
        [message] = messages
        progress, only = ack_of(delivered, "progress"), as_first(message, message.subject)
        if delivered.consumer != CHANNEL:
            await self._backend.settle([only], delivered.stream, delivered.consumer, progress)
            return
        [refused] = await self.extender.ack(delivered.stream, CHANNEL, [progress])
        if refused is not None:
            raise refused
        await self._backend.publish(only.subject, only.data, only.headers)

    async def settle(self, ended: Ended) -> None:
        """Store how an attempt ended, and carry it out."""
        delivered = ended.delivered
        if delivered.consumer != CHANNEL:
            self._tenants.note_ended((ended,))
            await self._settle_free(ended)
            return
        held = self._holdings.get(delivered.token)
        if held is None:
            raise replaced_error(self._names.jobs, delivered.seq)
        try:
            await self._claimer.settle(held, ended)
        except AckRejectedError:
            self._leave(held)
            raise
        self._leave(held)

    async def settle_many(self, endings: Sequence[Ended]) -> list[PeltonError | None]:
        """Settle all at once, each independently."""
        return list(await asyncio.gather(*(self._settle_one(ended) for ended in endings)))

    async def _settle_one(self, ended: Ended) -> PeltonError | None:
        try:
            await self.settle(ended)
        except PeltonError as refused:
            return refused
        return None

    def forget(self, deliveries: Iterable[Delivered]) -> None:
        """Release the keys of attempts that were not settled: they were lost, or can't be settled in time."""
        for delivered in deliveries:
            held = self._holdings.get(delivered.token) if delivered.consumer == CHANNEL else None
            if held is not None:
                self._leave(held)

    def _leave(self, held: HeldKey) -> None:
        self._holdings.pop(held.hold.token, None)
        self._table.release(held.key, self._clock.boottime())
        self._changed.notify()

    async def _settle_free(self, ended: Ended) -> None:
        delivered, messages = ended.delivered, ended.messages
        if ended.is_over:
            name = f"{delivered.stream}.{delivered.time_ns}.{delivered.token}"
            named = [with_id(f"{name}.{n}", posted) for n, posted in enumerate(outbox_of(messages))]
            try:
                first = as_first(named[-1], self._names.outcomes_of("*"))
                await self._backend.publish_batch([*named[:-1], first])
            except WrongLastSequenceError:
                if (refused := await refusal_of(self._backend, self._names, ended)) is not None:
                    # The job has an outcome, whoever stored it: it is not to be delivered for ever.
                    await self._ledger.remove_job(delivered.seq)
                    await self._backend.settle((), delivered.stream, delivered.consumer, ended.ack)
                    raise refused from None
            await self._ledger.remove_job(delivered.seq)
            messages = []
        await self._backend.settle(messages, delivered.stream, delivered.consumer, ended.ack)

    # --- the end

    async def is_empty(self) -> bool:
        """Whether the stream of the jobs is empty: ended jobs are removed from it."""
        stored = (await self._stream.info()).state.messages
        return not stored or stored == await not_to_be_taken(self._jet, self._names)

    async def close(self) -> None:
        """Stop watching, and give back claims that no caller waits for. Idempotent."""
        for task in self._watching:
            task.cancel()
        await super().close()
        await asyncio.gather(*self._watching, return_exceptions=True)


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
        return await delivered_by(self._jobs, self._names, self._free)

    async def count_underway(self) -> UnderwayCounts:
        """Return how many these are, and which of them workers hold."""
        underway, now = await self.underway(), self._jet.runtime.clock.now()
        groups: dict[tuple[int, bool], list[Unsettled]] = {}
        for one in underway.values():
            if one.waits:
                groups.setdefault((one.cause, one.due <= now), []).append(one)
        return UnderwayCounts(
            {seq: one for seq, one in underway.items() if not one.waits},
            [
                UnsettledGroup(cause, is_due, len(ones), min(one.seq for one in ones), min(one.due for one in ones))
                for (cause, is_due), ones in groups.items()
            ],
        )

    async def select(self, part: UnderwayPart) -> list[Unsettled]:
        """Return some of these: here, all of them are read."""
        low, high = part.causes or (-1, inf)
        behind = None if part.after is None else part.after if part.by_due else (0, part.after[1])
        found: list[tuple[tuple[int, int], Unsettled]] = []
        for one in (await self.underway()).values():
            place = (one.due if part.by_due else 0, one.seq)
            is_behind = behind is None or (place < behind if part.descending else place > behind)
            is_due_then = (part.due_after or -1) < one.due <= (part.due_upto or inf)
            is_of_cause = low <= (one.cause if one.waits else -1) <= high
            if is_behind and is_due_then and is_of_cause and (not part.sequences or one.seq in part.sequences):
                found.append((place, one))
        found.sort(key=itemgetter(0), reverse=part.descending)
        return [one for _, one in found[: part.limit]]

    async def untouched(self, underway: int) -> int:
        """Return how many jobs are stored that no worker holds."""
        consumers = (*self._free, *await tenant_consumers(self._jobs, self._names))
        taken = sum(info.num_ack_pending for info in await infos_of(consumers))
        stream = await self._jet.stream(self._names.jobs)
        stored = (await stream.info()).state.messages - await not_to_be_taken(self._jet, self._names)
        return max(stored - taken - underway, 0)

    async def _entry(self, key: str, hold: KeyRecord, written: int) -> Unsettled | None:
        job = hold.job
        if not job:
            subjects = [subject for rank in ALL_PRIORITIES for subject in self._names.subjects_of_key(key, rank)]
            found = await asyncio.gather(*(next_of(self._jobs, subject, hold.done + 1) for subject in subjects))
            job = min((one.seq for one in found if one is not None), default=0)
            if not job:
                return None
        waits = hold.state == "waiting"
        cause = cause_of(hold.known) if waits else 0
        return Unsettled(job, hold.tries, written + hold.delay_ns if waits else 0, waits, cause)
