"""Exclusive keys from compare-and-set records: how a worker takes jobs, and settles them (docs/decisions/0017).

Design: A key has at most one record (``record.py``), and the worker that writes it under the right condition decides
about the key. Taking a job: claim the key's record, then read the first job stored after the last one that has ended.
No other worker can hold that job, because it would need the record. Settling: write the outcome, the dead letter and
the messages the job emitted into the record, in one publish; at that moment the attempt counts, and a holder that was
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
  (``cluster/publish_reconciliation.py``).

Jobs without a key come from a consumer, as in a queue that is not exclusive; the stream keeps a message until it is
removed, so the removal is the last step before the ack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from pelton.api import AckRejectedError, Delivered, Outgoing, PeltonError, PullRequest, WrongLastSequenceError
from pelton.jet import ack_of
from pelton.queue.backing.beginnings import BegunJobs, WorkerBeginnings
from pelton.queue.backing.first_outcome import as_first, as_only, refusal_of
from pelton.queue.backing.setup import has_ranked_jobs
from pelton.queue.backing.tenant_lines import TenantLines
from pelton.queue.backing.unfinished_jobs import not_to_be_taken
from pelton.queue.keys.claimer import Claimer
from pelton.queue.keys.held_keys import CHANNEL, HeldKey, HoldExtender, Holdings, replaced
from pelton.queue.keys.ledger import Ledger, identified, outbox_of
from pelton.queue.keys.settler import Settler
from pelton.queue.keys.table import Chance, KeyTable
from pelton.queue.keys.watch import Watch
from pelton.queue.model.records import AttemptRecords, Ended, job_id_of
from pelton.queue.model.states import Attempt
from pelton.queue.ports import Beginnings, Extender, TakenJob
from pelton.runtime import Signal

if TYPE_CHECKING:
    from pelton.jet import Consumer, Stream, Streams
    from pelton.queue.model.naming import QueueNames


class KeyedJobSource:
    """The jobs of an exclusive queue on a cluster, for one worker."""

    def __init__(
        self,
        jet: Streams,
        names: QueueNames,
        jobs: Stream,
        free: Consumer,
        ranked: Sequence[Consumer],
        attempt_of: Callable[[str], Awaitable[Attempt | None]],
        begun: BegunJobs,
        worker: str,
        lease: float,
    ) -> None:
        self.beginnings: Beginnings = WorkerBeginnings(begun, worker)
        self._begun = begun
        self._jet = jet
        self._backend = jet.backend
        self._clock = jet.runtime.clock
        self._names = names
        self._jobs = jobs
        self._attempt_of = attempt_of
        self._holdings: Holdings = {}
        self._ledger = Ledger(jet.backend, names)
        self._table = KeyTable(lease, jet.runtime.random)
        self._changed = Signal()
        self._claimer = Claimer(jet, names, jobs, worker, self._ledger, self._table, self._holdings)
        self._settler = Settler(jet, names, self._ledger, self._table)
        self._watch = Watch(jet, names, self._table, self._changed.notify)
        self._watching: list[asyncio.Task[None]] = []
        self._claiming: set[asyncio.Task[Any]] = set()
        self.channels: Sequence[str] = [CHANNEL, free.name]
        own = [free.name, *(consumer.name for consumer in reversed(ranked))]
        self._tenants = TenantLines(jet, names, jobs, lease, own, self._give_back)
        self.ranked: Sequence[str] = [consumer.name for consumer in ranked]
        self.tenants: Mapping[str, str] = self._tenants.channels
        self.extender: Extender = HoldExtender(jet.backend, self._ledger, self._holdings)

    # --- taking

    async def take(self, channel: str, request: PullRequest) -> list[TakenJob]:
        """Take jobs: free ones, or the next job of as many keys as requested."""
        if (rank := self._tenants.rank_of(channel)) is not None:
            return await self._tenants.take(channel, rank, request)
        self._begin()
        end = inf if request.expires_ns is None else self._clock.boottime() + request.expires_ns / 1e9
        while True:
            seen = self._changed.generation
            self._check_watches()
            now = self._clock.boottime()
            chances = self._table.take(request.batch, now) if self._watch.is_caught_up else []
            if chances:
                if found := await self._claim(chances):
                    return found
            elif now >= end or (request.no_wait and self._watch.is_caught_up):
                return []
            else:
                await self._wait(seen, min(end, self._table.next_due()) - now)

    @property
    def is_new(self) -> bool:
        """Whether hardly any job of the queue had ended when this worker looked for the first time."""
        return self._tenants.is_new is not False

    async def has_ranked(self) -> bool:
        """Whether there are jobs with a priority that have not ended; finds out which tenants have jobs."""
        was_known = self._tenants.is_new is not None
        has_any = await self._tenants.has_any(1)
        if not was_known and not self.is_new:
            self._table.draw()
        return has_any or await has_ranked_jobs(self._jobs, self._names)

    def weigh(self, tenant: str, weight: int) -> None:
        """Note the weight of a tenant."""
        self._tenants.weigh(tenant, weight)

    def _begin(self) -> None:
        if not self._watching:
            for follow in (self._watch.follow_jobs, self._watch.follow_records):
                task = self._jet.runtime.spawn(follow(), f"pelton {self._names.queue} {follow.__name__}")
                task.add_done_callback(lambda _: self._changed.notify())
                self._watching.append(task)

    def _check_watches(self) -> None:
        for task in self._watching:
            if task.done() and not task.cancelled():
                task.result()

    async def _wait(self, seen: int, limit: float) -> None:
        await self._changed.wait_at_most(self._clock, max(limit, 0.0) if limit < inf else None, seen)

    async def _claim(self, chances: list[Chance]) -> list[TakenJob]:
        """Try keys at once; a claim that was started is completed, even if the caller is gone."""
        task = self._jet.runtime.spawn(self._claimer.try_all(chances), f"pelton {self._names.queue} claims")
        self._claiming.add(task)
        task.add_done_callback(self._claiming.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._return)
            raise

    # --- settling

    async def known(self, delivered: Delivered) -> Attempt | None:
        """Return what became of all earlier deliveries, by the record of the key or of the attempts."""
        if delivered.num_delivered == 1:
            return None
        if delivered.consumer == CHANNEL:
            held = self._holdings.get(delivered.token)
            known = held.hold.known if held is not None else None
        else:
            known = await self._attempt_of(job_id_of(delivered))
        return await self._begun.complete(known, delivered)

    async def keep(self, delivered: Delivered, message: Outgoing) -> None:
        """Extend the lease, then publish on condition that nobody else has."""
        progress = ack_of(delivered, "progress")
        if delivered.consumer != CHANNEL:
            await self._backend.settle([as_only(message)], delivered.stream, delivered.consumer, progress)
            return
        [refused] = await self.extender.ack(delivered.stream, CHANNEL, [progress])
        if refused is not None:
            raise refused
        only = as_only(message)
        await self._backend.publish(only.subject, only.data, only.headers)

    async def settle(self, ended: Ended) -> None:
        """Store how an attempt ended, and carry it out."""
        delivered = ended.delivered
        if delivered.consumer != CHANNEL:
            self._tenants.settled((ended,))
            await self._settle_free(ended)
            return
        held = self._holdings.get(delivered.token)
        if held is None:
            raise replaced(self._names.jobs, delivered.seq)
        try:
            await self._settler.settle(held, ended)
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

    def forget(self, deliveries: Sequence[Delivered]) -> None:
        """Release the keys of attempts that were not settled: they were lost, or can't be settled in time."""
        for delivered in deliveries:
            held = self._holdings.get(delivered.token) if delivered.consumer == CHANNEL else None
            if held is not None:
                self._leave(held)

    def _leave(self, held: HeldKey) -> None:
        self._holdings.pop(held.hold.token, None)
        self._table.done(held.key, self._clock.boottime())
        self._changed.notify()

    async def _settle_free(self, ended: Ended) -> None:
        delivered, messages = ended.delivered, ended.messages
        if ended.is_over:
            name = f"{delivered.stream}.{delivered.time_ns}.{delivered.token}"
            named = [identified(f"{name}.{n}", posted) for n, posted in enumerate(outbox_of(messages))]
            try:
                await self._backend.publish_batch([*named[:-1], as_first(self._names, named[-1])])
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
        stored = (await self._jobs.info()).state.messages
        return not stored or stored == await not_to_be_taken(self._jet, self._names)

    async def close(self) -> None:
        """Stop watching, and give back claims that no caller waits for. Idempotent."""
        for task in self._watching:
            task.cancel()
        await self._tenants.close()
        while self._claiming:
            await asyncio.wait(self._claiming)
        await asyncio.gather(*self._watching, return_exceptions=True)

    def _return(self, task: asyncio.Task[list[TakenJob]]) -> None:
        """Give back what was claimed after its caller went away."""
        if task.cancelled() or task.exception() is not None:
            return
        for taken in task.result():
            giving = self._jet.runtime.spawn(self._give_back(taken), f"pelton {self._names.queue} gives back")
            self._claiming.add(giving)
            giving.add_done_callback(self._claiming.discard)

    async def _give_back(self, taken: TakenJob) -> None:
        delivered = taken.delivered
        records = AttemptRecords(self._names, "", delivered)
        records.learn(await self.known(delivered))
        await self.settle(records.handed_back())
