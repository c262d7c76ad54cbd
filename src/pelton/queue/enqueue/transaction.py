"""Transactions that include jobs: enqueue jobs, and complete the running one, with everything else or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pelton.api import Backend, ConfigError, PeltonError
from pelton.api.times import Seconds
from pelton.buckets import Bucket, written_through
from pelton.jet import StreamsTransaction
from pelton.queue.define.job import JobCall
from pelton.queue.model.records import Ended

if TYPE_CHECKING:
    from pelton.queue.define.handle import JobHandle
    from pelton.queue.define.job import Job

T = TypeVar("T")


class Transaction(StreamsTransaction):
    """Messages, acks, jobs, keys of buckets and your own SQL rows in one transaction of an embedded store.

    Made by ``jet.transaction()``, used in ``async with``. It takes the store's writer at its first operation, so do
    slow work before; everything is committed, and on disk, when you leave the block, and undone if the block raises.
    """

    def bucket(self, bucket: Bucket[T]) -> Bucket[T]:
        """Return a bucket whose writes are part of this transaction; ``bucket`` must come from the same ``jet``.

        It reads the transaction's own writes. A refused write (WrongLastSequenceError, BucketKeyExistsError) has
        changed nothing, and the transaction may continue. Raises ConfigError.
        """
        return written_through(bucket, self._backend, self.publish)

    async def enqueue(
        self, job: Job[Any, Any], *args: Any, key: str = "", idempotency_key: str = "", **kwargs: Any
    ) -> JobHandle:
        """Put a job into its queue, as ``job.enqueue`` does; no worker sees it before the commit.

        Raises JobArgumentsError, ConfigError.
        """
        call = JobCall(job, job.encode_arguments(args, kwargs), key, idempotency_key)
        return (await self.enqueue_many((call,)))[0]

    async def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle]:
        """Put many jobs, made with ``job.bind``, into their queues, in order."""
        for call in calls:
            if call.job.queue.jet.backend is not self._backend:
                queue = call.job.queue.name
                raise ConfigError(f"job {call.job.name!r}: its queue {queue!r} was opened through another opening")
        acks = await self._port().publish([call.job.queue.message_of(call) for call in calls])
        return [call.job.queue.handle(ack) for call, ack in zip(calls, acks, strict=True)]


class JobEnding(NamedTuple):
    """What completes a job.

    ``lost`` makes the error for an ack that was refused; ``note`` records whether the job has ended.
    """

    ended: Ended
    lost: Callable[[PeltonError], PeltonError]
    note: Callable[[bool], None]


class JobTransaction(Transaction):
    """A transaction that ends the job that opened it: when its block is left, the job is completed.

    ``result`` (None) is what the history keeps as the job's result.
    """

    def __init__(self, backend: Backend, timeout: Seconds, ending: Callable[[object], JobEnding]) -> None:
        super().__init__(backend, timeout)
        self._ending = ending
        self.result: object = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await super().__aexit__(kind, error, trace)
            return
        try:
            ending = self._ending(self.result)
            ended = ending.ended
            await self._port().publish(ended.messages)
            [refused] = await self._port().ack(ended.delivered.stream, ended.delivered.consumer, [ended.ack])
            if refused is not None:
                raise ending.lost(refused)
        except BaseException as failure:
            await super().__aexit__(type(failure), failure, failure.__traceback__)
            raise
        # A cancellation from here on only stops waiting for the disk: the transaction is committed.
        ending.note(True)
        try:
            await super().__aexit__(None, None, None)
        except Exception:
            ending.note(False)
            raise
