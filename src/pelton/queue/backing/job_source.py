"""The jobs that consumers deliver, for one worker.

Jobs arrive through channels. On an embedded store, and in a queue that is not exclusive, each channel is a consumer,
and a job's lease is the ack wait of its delivery. An exclusive queue on a cluster has its own channel (``keys/``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pelton.api import Backend, Delivered, Outgoing, PeltonError, PullRequest, Settled, WrongLastSequenceError
from pelton.api.store_errors import FINAL_ERRORS
from pelton.jet import ack_of
from pelton.queue.backing.beginnings import BegunJobs, WorkerBeginnings
from pelton.queue.backing.first_outcome import as_only, guarded, refusal_of
from pelton.queue.backing.setup import TOKENS, has_ranked_jobs
from pelton.queue.backing.tenant_lines import TenantLines
from pelton.queue.model.records import AttemptRecords, job_id_of
from pelton.queue.ports import Beginnings, Extender, TakenJob

if TYPE_CHECKING:
    from pelton.jet import Consumer, Stream, Streams
    from pelton.queue.model.naming import QueueNames
    from pelton.queue.model.records import Ended
    from pelton.queue.model.states import Attempt


class ConsumerJobSource:
    """Jobs that consumers deliver."""

    def __init__(
        self,
        jet: Streams,
        names: QueueNames,
        stream: Stream,
        lease: float,
        consumers: Sequence[Consumer],
        ranked: Sequence[Consumer],
        attempt_of: Callable[[str], Awaitable[Attempt | None]],
        begun: BegunJobs,
        worker: str,
    ) -> None:
        self.beginnings: Beginnings = WorkerBeginnings(begun, worker)
        self.extender: Extender = jet.backend
        self.channels: Sequence[str] = [consumer.name for consumer in consumers]
        own = [consumers[-1].name, *(consumer.name for consumer in reversed(ranked))]
        self._tenants = TenantLines(jet, names, stream, lease, own, self._give_back)
        self.ranked: Sequence[str] = [consumer.name for consumer in ranked]
        self.tenants: Mapping[str, str] = self._tenants.channels
        self._backend: Backend = jet.backend
        self._names = names
        self._stream = stream
        self._tokens_from = int(stream.config.metadata.get(TOKENS, 0))
        self._consumers = [*consumers, *ranked]
        self._attempt_of = attempt_of
        self._begun = begun

    async def take(self, channel: str, request: PullRequest) -> list[TakenJob]:
        """Pull from the consumer of that name, or from those of tenants."""
        if (rank := self._tenants.rank_of(channel)) is not None:
            taken = await self._tenants.take(channel, rank, request)
        else:
            taken = await self._tenants.pull(channel, request)
        if self._tokens_from:
            for one in taken:
                one.delivered.token += self._tokens_from
        return taken

    @property
    def is_new(self) -> bool:
        """Whether hardly any job of the queue had ended when this worker looked for the first time."""
        return self._tenants.is_new is not False

    async def has_ranked(self) -> bool:
        """Whether there are jobs with a priority that have not ended; finds out which tenants have jobs."""
        return await self._tenants.has_any(1) or await has_ranked_jobs(self._stream, self._names)

    def weigh(self, tenant: str, weight: int) -> None:
        """Note the weight of a tenant."""
        self._tenants.weigh(tenant, weight)

    async def known(self, delivered: Delivered) -> Attempt | None:
        """Return what became of all earlier deliveries; the first one has none."""
        if delivered.num_delivered == 1:
            return None
        return await self._begun.complete(await self._attempt_of(job_id_of(delivered)), delivered)

    async def keep(self, delivered: Delivered, message: Outgoing) -> None:
        """Publish and extend the lease together; on a cluster nothing tells whether the attempt was replaced."""
        only = message if self._backend.planning.atomic_batches else as_only(message)
        progress = ack_of(delivered, "progress")
        await self._backend.settle([only], delivered.stream, delivered.consumer, progress)

    async def settle(self, ended: Ended) -> None:
        """Publish and acknowledge together."""
        delivered = ended.delivered
        self._tenants.settled((ended,))
        try:
            await self._backend.settle(self._messages(ended), delivered.stream, delivered.consumer, ended.ack)
        except WrongLastSequenceError:
            if (refused := await self._after_refusal(ended)) is not None:
                raise refused from None

    async def _after_refusal(self, ended: Ended) -> PeltonError | None:
        """Return why an attempt has no effect, after its outcome was refused; None if it has one all the same."""
        refused = await refusal_of(self._backend, self._names, ended)
        # The job has an outcome, whoever stored it: it is not to be delivered for ever.
        delivered = ended.delivered
        await self._backend.settle((), delivered.stream, delivered.consumer, ended.ack)
        return refused

    def _messages(self, ended: Ended) -> Sequence[Outgoing]:
        # In a store file, a job that is cancelled is withdrawn, and its holder's ack is refused.
        return ended.messages if self._backend.planning.atomic_batches else guarded(self._names, ended)

    async def settle_many(self, endings: Sequence[Ended]) -> list[PeltonError | None]:
        """Publish and acknowledge together: one transaction per consumer."""
        self._tenants.settled(endings)
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
        if self._backend.planning.atomic_batches:
            settled = [Settled(ended.messages, ended.ack) for ended in endings]
        else:
            settled = [Settled(guarded(self._names, ended), ended.ack) for ended in endings]
        try:
            answers = await self._backend.settle_many(settled, self._stream.name, consumer)
        except FINAL_ERRORS:
            raise
        except PeltonError as error:
            return [error] * len(endings)
        for index, refused in enumerate(answers if any(answers) else ()):
            if isinstance(refused, WrongLastSequenceError):
                answers[index] = await self._settled_again(endings[index])
        return answers

    async def _settled_again(self, ended: Ended) -> PeltonError | None:
        try:
            return await self._after_refusal(ended)
        except FINAL_ERRORS:
            raise
        except PeltonError as error:
            return error

    def forget(self, deliveries: Sequence[Delivered]) -> None:
        """Do nothing: the consumer redelivers it to another worker after its ack wait."""

    async def is_empty(self) -> bool:
        """Whether no consumer has anything left, and no tenant."""
        # Together, they share a transaction in a store file.
        infos = await asyncio.gather(*(consumer.info() for consumer in self._consumers))
        is_left = any(info.num_pending or info.num_ack_pending for info in infos)
        return not is_left and not await self._tenants.has_any()

    async def close(self) -> None:
        """Give back what was taken for nobody."""
        await self._tenants.close()

    async def _give_back(self, taken: TakenJob) -> None:
        records = AttemptRecords(self._names, "", taken.delivered)
        records.learn(await self.known(taken.delivered))
        await self.settle(records.handed_back())
