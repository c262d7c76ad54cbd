"""The jobs of tenants, taken in turns: a consumer for each tenant and priority that has jobs.

Design: ``model/turns.py`` decides whose jobs are next. A worker learns who has some from the subjects of the
jobs that have not ended, which it lists now and then while it knows of tenants, before it says that there are none, and
once a second while it waits; and, at once, from those who enqueue, by messages that nobody stores. The first worker
that takes jobs of a tenant makes its consumer, which goes when nobody has used it for an hour: so tenants that have no
jobs cost nothing. Each consumer is as durable as those of the queue, and pauses with them.

Jobs without a tenant take their turns as those of one more tenant, so the channels of both are served alike. They
differ in what is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pelton.api import (
    ConsumerNotFoundError,
    ConsumerPause,
    PeltonError,
    PullRequest,
)
from pelton.api.json_values import UNREADABLE
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet.registers import ASK_AGAIN_S
from pelton.queue.backing.scan import tenants_with_jobs
from pelton.queue.model.naming import encode_tenant
from pelton.queue.model.turns import FIRST_JOBS, TenantTurns, in_order
from pelton.queue.ports import TakenJob
from pelton.runtime import Signal

if TYPE_CHECKING:
    from pelton.api import BackendSubscription
    from pelton.jet import Stream, Streams
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.records import Ended

_log: Final = logging.getLogger("pelton.queue")
_UNUSED: Final = timedelta(hours=1)
_LOOK_S: Final = 1.0
_LOOK_SHARE: Final = 50
_MOST_KNOWN: Final = 16_384
_rung: Final = msgspec.json.Decoder(list[tuple[str, int]]).decode


class TenantLines:
    """The jobs without a key in one queue, for one worker.

    ``own`` are the consumers of the jobs without a tenant, by their priority. ``turns``: whose turn it is in a channel
    where jobs with a tenant are waited for, or from which they are taken; a pull from one where no tenant has jobs is
    none of theirs. ``complete`` takes jobs even if the caller is gone by then.
    """

    def __init__(
        self,
        jet: Streams,
        names: QueueNames,
        stream: Stream,
        lease: float,
        own: Sequence[str],
        complete: Callable[[Coroutine[Any, Any, list[TakenJob]]], Awaitable[list[TakenJob]]],
    ) -> None:
        self._backend = jet.backend
        self._runtime = jet.runtime
        self._clock = jet.runtime.clock
        self._names = names
        self._jet = jet
        self._stream = stream
        # Whether hardly any job of the queue has ended; None: that was not found out yet.
        self.is_new: bool | None = None
        self._lease = lease
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
        """Note the weight of a tenant."""
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
            if turns.tenants and (found := await self._serve(rank, request.batch)):
                return found
            if (now := self._clock.boottime()) >= end:
                return []
            if now >= self._look_at:
                await self.look(anew=False)
                continue
            due = turns.next_due() if turns.tenants else inf
            await self._changed.wait_at_most(self._clock, max(min(end, due, self._look_at) - now, 0.0), seen)

    async def _serve(self, rank: int, wanted: int) -> list[TakenJob]:
        """Take jobs that are there."""
        self._listen()
        return await self._complete(self._take_in_turns(rank, wanted))

    async def _take_in_turns(self, rank: int, wanted: int) -> list[TakenJob]:
        turns, jobs = self._turns[rank], list[TakenJob]()
        while len(jobs) < wanted and (plan := turns.plan(wanted - len(jobs), self._clock.boottime())):
            asked = Counter(plan)
            answers = await asyncio.gather(*(self._pull(rank, *one) for one in asked.items()), return_exceptions=True)
            found: dict[str, list[TakenJob]] = {}
            failures: list[BaseException] = []
            for tenant, answer in zip(asked, answers, strict=True):
                found[tenant] = [] if isinstance(answer, BaseException) else answer
                failures += [answer] if isinstance(answer, BaseException) else []
            turns.note_answer(asked, found, self._clock.boottime())
            jobs += in_order(plan, found)
            for failure in failures:
                if jobs:
                    break
                raise failure
        return jobs

    async def _pull(self, rank: int, tenant: str, count: int) -> list[TakenJob]:
        request, asked = PullRequest(batch=count, no_wait=True), self._clock.boottime()
        if not tenant:
            found = await self._backend.pull(self._stream.name, self._own[rank], request)
            return [TakenJob(delivered, asked) for delivered in found]
        consumer = self._names.tenant_consumer(tenant, rank)
        if consumer not in self._known:
            await self._make(rank, tenant, consumer)
        try:
            found = await self._backend.pull(self._stream.name, consumer, request)
        except ConsumerNotFoundError:
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
        consumer = await self._stream.create_consumer(
            durable_name=name,
            filter_subject=self._names.tenant_filter(tenant, rank),
            ack_wait=self._lease,
            max_ack_pending=-1,
            max_deliver=-1,
            inactive_threshold=_UNUSED,
            pause_until=paused,
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
            listed = await tenants_with_jobs(self._stream, self._names)
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

    def settled(self, endings: Sequence[Ended]) -> None:
        """Note that attempts have ended: their jobs may wait for a retry."""
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

    # --- the end

    async def close(self) -> None:
        """Take no more. Idempotent."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
