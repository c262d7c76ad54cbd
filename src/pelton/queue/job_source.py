"""The jobs that consumers deliver, for one worker.

Jobs arrive through channels. On an embedded store, and in a queue
that is not exclusive, each channel is a consumer, and a job's lease is the ack wait of its delivery. An exclusive queue
on a cluster has its own channel (``keyed_source.py``).

**The jobs of tenants, taken in turns: a consumer for each tenant and priority that has jobs.** ``model/turns.py``
decides whose jobs are next. A worker learns who has some from the subjects of the jobs that have not ended, which it
lists now and then while it knows of tenants, before it says that there are none, and once a second while it waits; and,
at once, from those who enqueue, by messages that nobody stores. The first worker that takes jobs of a tenant makes its
consumer, which goes when nobody has used it for an hour: so tenants that have no jobs cost nothing. Each consumer is as
durable as those of the queue, and pauses with them.

Jobs without a tenant take their turns as those of one more tenant, so the channels of both are served alike. They
differ in what is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import (
    Backend,
    ConsumerNotFoundError,
    ConsumerPause,
    Delivered,
    Outgoing,
    PeltonError,
    PullRequest,
    Settled,
    headers,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet import ack_of
from pelton.jet.registers import ASK_AGAIN_S
from pelton.queue.model.naming import encode_tenant
from pelton.queue.model.records import job_id_of, records_of
from pelton.queue.model.turns import FIRST_JOBS, TenantTurns, in_order
from pelton.queue.registry import TakenJob
from pelton.queue.scan import last_attempt, tenants_with_jobs
from pelton.queue.setup import TOKENS, lasting_consumer
from pelton.runtime import Signal, end_tasks

if TYPE_CHECKING:
    from pelton.api import BackendSubscription
    from pelton.api.backend import BegunDeliveries
    from pelton.jet import Consumer
    from pelton.queue.model.records import Ended
    from pelton.queue.model.states import Attempt
    from pelton.queue.registry import Extender
    from pelton.queue.scan import BegunJobs
    from pelton.runtime import Runtime

_log: Final = logging.getLogger("pelton.queue")
_UNUSED: Final = timedelta(hours=1)
_LOOK_S: Final = 1.0
_LOOK_SHARE: Final = 50
_MOST_KNOWN: Final = 16_384
_encode_begun: Final = msgspec.msgpack.Encoder().encode
# As the records of failed attempts; afterwards what its worker had begun counts as not begun.
_TTL: Final = headers.encode({headers.TTL: "720h"})
_MOST_OPEN: Final = 1024
_rung: Final = msgspec.json.Decoder(list[tuple[str, int]]).decode


class TenantLines:
    """The jobs without a key in one queue, for one worker.

    ``own`` are the consumers of the jobs without a tenant, by their priority. ``turns``: whose turn it is in a channel
    where jobs with a tenant are waited for, or from which they are taken; a pull from one where no tenant has jobs is
    none of theirs. ``complete`` takes jobs even if the caller is gone by then.
    """

    def __init__(
        self,
        queue: BegunJobs,
        own: Sequence[str],
        complete: Callable[[Coroutine[Any, Any, list[TakenJob]]], Awaitable[list[TakenJob]]],
    ) -> None:
        self._jet, self._names, self._stream, self._lease = queue.jet, queue.names, queue.stream, queue.lease
        self._backend = self._jet.backend
        self._runtime = self._jet.runtime
        self._clock = self._runtime.clock
        # Whether hardly any job of the queue has ended; None: that was not found out yet.
        self.is_new: bool | None = None
        self._own = own
        self._complete = complete
        # The channels where jobs with a tenant are waited for, and those from which they are taken.
        self.channels: Mapping[str, str] = {f"tenants{rank}": name for rank, name in enumerate(own)}
        self._ranks = {name: rank for rank, pair in enumerate(self.channels.items()) for name in pair}
        self._weights: dict[str, int] = {}
        self._turns = [TenantTurns(self._weights) for _ in own]
        self.turns: Mapping[str, TenantTurns] = {name: self._turns[rank] for name, rank in self._ranks.items()}
        # Consumers that are there, as far as this worker knows.
        self._known: set[str] = set()
        self._changed = Signal()
        self._look_at = 0.0
        self._listening: asyncio.Task[None] | None = None

    def weigh(self, tenant: str, weight: int) -> None:
        token = encode_tenant(tenant)
        if weight == 1:
            self._weights.pop(token, None)
        else:
            self._weights[token] = weight

    # --- taking

    async def take(self, channel: str, request: PullRequest) -> list[TakenJob]:
        """Take jobs of a priority, with or without a tenant; wait for those of the channel."""
        rank = self._ranks[channel]
        return await (self._wait(rank, request) if channel in self.channels else self._serve(rank, request.batch))

    async def _wait(self, rank: int, request: PullRequest) -> list[TakenJob]:
        self._listen()
        turns = self._turns[rank]
        end = inf if request.expires_ns is None else self._clock.boottime() + request.expires_ns / 1e9
        while True:
            seen = self._changed.generation
            is_due = turns.tenants and turns.next_due() <= self._clock.boottime()
            if is_due and (found := await self._serve(rank, request.batch)):
                return found
            if (now := self._clock.boottime()) >= end:
                return []
            if now >= self._look_at:
                await self.look(anew=False)
                continue
            due = turns.next_due() if turns.tenants else inf
            await self._changed.wait_at_most(self._clock, max(min(end, due, self._look_at) - now, 0.0), seen)

    async def _serve(self, rank: int, wanted: int) -> list[TakenJob]:
        self._listen()
        return await self._complete(self._take_in_turns(rank, wanted))

    async def _take_in_turns(self, rank: int, wanted: int) -> list[TakenJob]:
        turns, jobs = self._turns[rank], list[TakenJob]()
        while len(jobs) < wanted and (plan := turns.plan(wanted - len(jobs), self._clock.boottime())):
            asked = Counter(plan)
            answers = await asyncio.gather(*(self._pull(rank, *one) for one in asked.items()), return_exceptions=True)
            failures = [answer for answer in answers if isinstance(answer, BaseException)]
            taken = ([] if isinstance(answer, BaseException) else answer for answer in answers)
            found = dict(zip(asked, taken, strict=True))
            turns.note_answer(asked, found, self._clock.boottime())
            jobs += in_order(plan, found)
            if failures and not jobs:
                raise failures[0]
        return jobs

    async def _pull(self, rank: int, tenant: str, count: int) -> list[TakenJob]:
        request, asked = PullRequest(batch=count, no_wait=True), self._clock.boottime()
        consumer = self._names.tenant_consumer(tenant, rank) if tenant else self._own[rank]
        if tenant and consumer not in self._known:
            await self._make(rank, tenant, consumer)
        try:
            found = await self._backend.pull(self._stream.name, consumer, request)
        except ConsumerNotFoundError:
            if not tenant:
                raise
            # Nobody has used it for a long time.
            self._known.discard(consumer)
            await self._make(rank, tenant, consumer)
            found = await self._backend.pull(self._stream.name, consumer, request)
        return [TakenJob(delivered, asked) for delivered in found]

    async def _make(self, rank: int, tenant: str, name: str) -> None:
        """Make the consumer of a tenant, paused if the queue is.

        To pause a queue pauses its own consumers first, and those of tenants that are listed after that.
        """
        paused = (await self._stream.consumer(self._own[0])).config.pause_until
        filters = (self._names.tenant_filter(tenant, rank),)
        consumer = await lasting_consumer(
            self._stream, name, filters, self._lease, inactive_threshold=_UNUSED, pause_until=paused
        )
        paused = (await self._stream.consumer(self._own[0])).config.pause_until
        if paused != consumer.config.pause_until:
            await self._backend.call(ConsumerPause(stream=self._stream.name, name=name, pause_until=paused))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add(name)

    # --- learning who has jobs

    async def has_any(self, from_rank: int = 0) -> bool:
        """Whether a job of a priority, or a higher one, and of a tenant is stored; lists all tenants that have jobs."""
        await self.look(anew=True)
        return any(turns.tenants for turns in self._turns[from_rank:])

    async def look(self, *, anew: bool) -> None:
        """List the tenants that have jobs. ``anew``: any of them may have one to take."""
        began = self._clock.boottime()
        # Only one of the waiting pulls lists the tenants at a time.
        self._look_at = inf
        try:
            if self.is_new is None:
                await self._learn_age()
            # Listing is dear, and most queues have no tenants.
            is_used = await self._backend.has_message(self._names.jobs, self._names.tenant_jobs)
            listed = await tenants_with_jobs(self._stream, self._names) if is_used else {}
        finally:
            now = self._clock.boottime()
            self._look_at = now + max(_LOOK_S, _LOOK_SHARE * (now - began))
        for rank, turns in enumerate(self._turns):
            turns.note_counts(listed.get(rank, {}), anew=anew)
        self._changed.notify()

    async def _learn_age(self) -> None:
        history = await self._jet.stream(self._names.history)
        self.is_new = (await history.info()).state.last_seq < FIRST_JOBS
        if not self.is_new:
            for turns in self._turns:
                turns.draw(self._runtime.random)

    def note_ended(self, endings: Sequence[Ended]) -> None:
        """Note that attempts have ended: their jobs may wait for a retry."""
        if not any(turns.tenants for turns in self._turns):
            return
        for ended in endings:
            subject = ended.delivered.subject
            if ended.ack.kind == "nak" and self._names.has_tenant(subject):
                token, rank = self._names.tenant_of(subject), self._names.rank_of_tenant(subject)
                self._turns[rank].note_retry(token, self._clock.boottime() + ended.ack.delay_ns / 1e9)
                self._changed.notify()

    def _listen(self) -> None:
        """Listen to those who enqueue, from the first tenant or the first wait on."""
        if self._listening is None:
            self._listening = self._runtime.spawn(self._listen_on(), f"pelton {self._names.queue} bell")

    async def _listen_on(self) -> None:
        while True:
            subscription: BackendSubscription | None = None
            try:
                subscription = await self._backend.subscribe(self._names.bell)
                while True:
                    rung = await subscription.next()
                    if rung is not None:
                        self._note(rung.data)
            except FINAL_ERRORS:
                return
            except PeltonError as error:
                # A missed announcement is found by the next periodic look.
                _log.debug("queue %r: cannot subscribe to announcements of jobs: %s", self._names.queue, error)
                await self._clock.sleep(ASK_AGAIN_S)
            finally:
                if subscription is not None:
                    await subscription.close()

    def _note(self, data: bytes) -> None:
        try:
            rung = _rung(data)
        except UNREADABLE:
            rung = []
        if not rung:
            # Too many to tell, or a newer version.
            self._look_at = 0.0
        for token, rank in rung:
            self._turns[rank].note_enqueued([token])
        self._changed.notify()

    async def close(self) -> None:
        """Take no more. Idempotent."""
        await end_tasks(self._listening)


class TakesInFlight:
    """Takes of jobs that are completed though their caller is gone: what they find is given back."""

    def __init__(self, runtime: Runtime, queue: str, give_back: Callable[[TakenJob], Awaitable[None]]) -> None:
        self._runtime = runtime
        self._queue = queue
        self._give_back = give_back
        self._tasks: set[asyncio.Task[Any]] = set()

    async def complete(self, taking: Coroutine[Any, Any, list[TakenJob]]) -> list[TakenJob]:
        """Take jobs; what is taken for a caller that is gone by then is given back."""
        task = self._spawn(taking, "takes")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._give_back_unwaited)
            raise

    def leftover(self, delivered: Sequence[Delivered]) -> Awaitable[object]:
        """Give back what a pull has taken for a caller that was gone."""
        return asyncio.gather(*(self._spawn(self._give_back_one(TakenJob(one)), "gives back") for one in delivered))

    async def close(self) -> None:
        """Wait until nothing is taken for nobody."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, coroutine: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        task = self._runtime.spawn(coroutine, f"pelton {self._queue} {what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _give_back_unwaited(self, task: asyncio.Task[list[TakenJob]]) -> None:
        if not task.cancelled() and task.exception() is None:
            for taken in task.result():
                self._spawn(self._give_back_one(taken), "gives back")

    async def _give_back_one(self, taken: TakenJob) -> None:
        try:
            await self._give_back(taken)
        except PeltonError as error:
            # Its lease runs out.
            _log.debug("queue %r: job %d was not given back: %s", self._queue, taken.delivered.seq, error)


class JobSource:
    """The jobs of a queue, for one worker: those without a key come from consumers, those of tenants in turns.

    ``free`` is the consumer of the jobs without a key and a priority, ``ranked`` are those with one, the highest first.
    ``channels`` names the ways they arrive, ``tenants`` those that are only waited for, each with the channel from
    which jobs with a tenant are taken. ``beginnings``: of which of its jobs the worker notes that they begin.
    """

    channels: Sequence[str]
    extender: Extender

    def __init__(self, begun: BegunJobs, free: Consumer, ranked: Sequence[Consumer], worker: str) -> None:
        jet, names, stream = begun.jet, begun.names, begun.stream
        self.beginnings: Beginnings = Beginnings(begun, worker)
        self.ranked: Sequence[str] = [consumer.name for consumer in ranked]
        self._takes = TakesInFlight(jet.runtime, names.queue, self._give_back)
        own = [free.name, *reversed(self.ranked)]
        self._tenants = TenantLines(begun, own, self._takes.complete)
        self._turns = self._tenants.turns
        self.tenants: Mapping[str, str] = self._tenants.channels
        self._jet = jet
        self._backend: Backend = jet.backend
        self._names = names
        self._outcomes = names.outcomes_of("*")
        self._stream = stream
        self._stream_name = stream.name
        self._tokens_from = int(stream.config.metadata.get(TOKENS, 0))
        self._begun = begun

    async def take(self, channel: str, request: PullRequest) -> list[TakenJob]:
        """Take jobs, as a pull does: from the consumer of that name, or from those of tenants."""
        turns, taken = self._turns.get(channel), list[TakenJob]()
        if turns is not None and (turns.tenants or channel in self.tenants):
            taken = await self._tenants.take(channel, request)
        if not taken and channel not in self.tenants:
            # Those of a pull that is cancelled are given back.
            pulled = await self._backend.pull(self._stream_name, channel, request, self._takes.leftover)
            taken = list(map(TakenJob, pulled))
        if self._tokens_from:
            for one in taken:
                one.delivered.token += self._tokens_from
        return taken

    @property
    def is_new(self) -> bool:
        """Whether hardly any job of the queue had ended at the first :meth:`has_ranked`."""
        return self._tenants.is_new is not False

    async def has_ranked(self) -> bool:
        """Whether there are jobs with a priority that have not ended; finds out which tenants have jobs."""
        if await self._tenants.has_any(1):
            return True
        asked = (self._backend.has_message(self._stream_name, jobs) for jobs in self._names.ranked_jobs)
        return any(await asyncio.gather(*asked))

    def weigh(self, tenant: str, weight: int) -> None:
        self._tenants.weigh(tenant, weight)

    async def earlier_attempt(self, delivered: Delivered) -> Attempt | None:
        """Return what became of all earlier deliveries; the first one has none."""
        if delivered.num_delivered == 1:
            return None
        return await self._begun.complete(await self._left_by(delivered), delivered)

    async def _left_by(self, delivered: Delivered) -> Attempt | None:
        return await last_attempt(await self._jet.stream(self._names.attempts), self._names, job_id_of(delivered))

    async def keep(self, delivered: Delivered, *messages: Outgoing) -> None:
        """Store a message of a job that goes on, while it is held, and extend its lease; in a store file several.

        Raises AckRejectedError if the attempt was replaced, and on a cluster WrongLastSequenceError if there is a
        message of its subject: nothing is stored then.
        """
        raise NotImplementedError

    async def settle(self, ended: Ended) -> None:
        """End an attempt: publish its records and messages, and acknowledge its job or give it back.

        Raises AckRejectedError if the attempt was replaced: it then has no effect. Raises ApiError if a message is
        refused: the attempt then is not over.
        """
        raise NotImplementedError

    async def settle_many(self, endings: Sequence[Ended]) -> list[PeltonError | None]:
        """End many attempts, each as :meth:`settle` does; one entry each: None, or why it had no effect.

        Raises StoreError only if the store fails for good.
        """
        raise NotImplementedError

    def forget(self, deliveries: Iterable[Delivered]) -> None:
        """Release jobs that were taken, settled or not."""
        # The consumer redelivers one that is not settled to another worker after its ack wait.

    async def is_empty(self) -> bool:
        """Whether no unfinished job is left."""
        raise NotImplementedError

    async def close(self) -> None:
        """Take no more; give back what was taken and not handed out. Idempotent."""
        await self._tenants.close()
        await self._takes.close()

    async def _give_back(self, taken: TakenJob) -> None:
        records = records_of(self._names, "", taken.delivered)
        records.learn(await self.earlier_attempt(taken.delivered))
        await self.settle(records.handed_back())


class ConsumerJobSource(JobSource):
    """Jobs that consumers deliver, with and without a key: the last of ``consumers`` is of those without."""

    def __init__(
        self, begun: BegunJobs, consumers: Sequence[Consumer], ranked: Sequence[Consumer], worker: str
    ) -> None:
        super().__init__(begun, consumers[-1], ranked, worker)
        self.extender: Extender = self._backend
        self.channels: Sequence[str] = [consumer.name for consumer in consumers]
        self._consumers = [*consumers, *ranked]

    async def keep(self, delivered: Delivered, *messages: Outgoing) -> None:
        """Publish and extend the lease together; on a cluster nothing tells whether the attempt was replaced."""
        kept = Settled(messages, ack_of(delivered, "progress"), messages[-1].subject)
        await self._backend.settle_once(kept, delivered.stream, delivered.consumer)

    async def settle(self, ended: Ended) -> None:
        """Publish and acknowledge together."""
        delivered = ended.delivered
        self._tenants.note_ended((ended,))
        [settled] = self._to_settled((ended,))
        await self._backend.settle_once(settled, delivered.stream, delivered.consumer)

    def _to_settled(self, endings: Sequence[Ended]) -> list[Settled]:
        """Return how deliveries are settled: the first outcome of a job counts, one that is retried has none."""
        outcomes = self._outcomes
        return [Settled(ended.messages, ended.ack, outcomes if ended.known is None else "") for ended in endings]

    async def settle_many(self, endings: Sequence[Ended]) -> list[PeltonError | None]:
        """Publish and acknowledge together: one transaction per consumer."""
        self._tenants.note_ended(endings)
        names = sorted({ended.delivered.consumer for ended in endings})
        if len(names) == 1:
            return await self._settle_on(names[0], endings)
        answers: dict[int, PeltonError | None] = {}
        groups = [[ended for ended in endings if ended.delivered.consumer == name] for name in names]
        found = await asyncio.gather(*map(self._settle_on, names, groups))
        for group, refusals in zip(groups, found, strict=True):
            answers.update((ended.delivered.seq, refused) for ended, refused in zip(group, refusals, strict=True))
        return [answers[ended.delivered.seq] for ended in endings]

    async def _settle_on(self, consumer: str, endings: Sequence[Ended]) -> list[PeltonError | None]:
        try:
            return await self._backend.settle_many(self._to_settled(endings), self._stream_name, consumer)
        except FINAL_ERRORS:
            raise
        except PeltonError as error:
            return [error] * len(endings)

    async def is_empty(self) -> bool:
        """Whether no consumer has anything left, and no tenant."""
        # Together, they share a transaction in a store file.
        infos = await asyncio.gather(*(consumer.info() for consumer in self._consumers))
        if any(info.num_pending or info.num_ack_pending for info in infos) or await self._tenants.has_any():
            return False
        return all(await asyncio.gather(*map(self._backend.has_seen_all, infos)))


class Beginnings:
    """What one worker has begun.

    ``is_written``: call :meth:`write` before a job begins. ``marks``: mark it there last, if there are any.
    """

    def __init__(self, jobs: BegunJobs, worker: str) -> None:
        self._jet = jobs.jet
        self.marks: BegunDeliveries | None = jobs.marks
        self._running = jobs.names.running
        self._subject = jobs.names.begun_subject(worker)
        self.is_written: bool = jobs.marks is None
        self._open: deque[Delivered] = deque()
        # What is listed, and how many times something was added to that, and to what is stored.
        self._listed: dict[tuple[int, int], None] = {}
        self._added = 0
        self._stored = 0
        self._task: asyncio.Task[None] | None = None

    async def write(self, begun: Iterable[Delivered]) -> None:
        """Store that these jobs begin; once it returns, they may. Raises PeltonError."""
        for delivered in begun:
            self._listed[delivered.seq, delivered.num_delivered] = None
        self._added += 1
        wanted = self._added
        while self._stored < wanted:
            await asyncio.shield(self._begin_to_store())

    def _begin_to_store(self) -> asyncio.Task[None]:
        if self._task is None:
            self._task = self._jet.runtime.spawn(self._store(), f"pelton writes {self._subject}")
            self._task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._task

    async def _store(self) -> None:
        added = self._added
        try:
            await self._jet.backend.publish(self._subject, _encode_begun(list(self._listed)), _TTL)
            self._stored = added
        finally:
            self._task = None
        if self._stored < self._added:
            self._begin_to_store()

    def end(self, settled: Sequence[Delivered]) -> None:
        """Note that these jobs are settled."""
        numbers = [(delivered.seq, delivered.num_delivered) for delivered in settled]
        if self.marks is not None:
            self.marks.unmark(numbers)
        else:
            for number in numbers:
                self._listed.pop(number, None)

    def forget(self, delivered: Delivered, *, has_begun: bool) -> None:
        """Note that a job is held no longer that somebody else ends."""
        if has_begun:
            self._open.append(delivered)
            if len(self._open) > _MOST_OPEN:
                self.end([self._open.popleft()])
        elif (delivered.seq, delivered.num_delivered) in self._listed:
            # It was listed, and did not begin after all.
            self.end([delivered])
            self._added += 1
            self._begin_to_store()
        else:
            self.end([delivered])

    async def close(self) -> None:
        """Leave nothing but what others need."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._stored and not self._listed:
            with suppress(PeltonError):
                stream = await self._jet.stream(self._running)
                await stream.purge(filter=self._subject)
