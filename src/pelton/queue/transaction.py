"""Transactions that include jobs: enqueue jobs, and complete the running one, with everything else or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar, Unpack, overload

from pelton.api import Backend, ConfigError, Delivered, Outgoing, PeltonError, PubAck, WrongLastSequenceError
from pelton.api.times import Seconds
from pelton.jet import StreamsTransaction, ack_of
from pelton.queue.enqueuer import QueueWithJobs, signal_message
from pelton.queue.job import JobCall, JobDefinition, JobQueue
from pelton.queue.model.options import PLAIN, JobOptions, OptionFields, job_options
from pelton.queue.model.records import Ended

if TYPE_CHECKING:
    from pelton.buckets import Bucket
    from pelton.queue.job import JobHandle

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", covariant=True)

PublishFlow = Callable[[list[Outgoing], list[Outgoing]], Awaitable[object]]
"""Publishes the messages of a flow, and its first jobs."""


class EnqueuedFlow(Protocol[H]):
    """A flow, as a transaction sees it; ``H`` is its handle."""

    queue: JobQueue

    @property
    def handle(self) -> H:
        """The handle of the flow."""

    async def put(self, publish: PublishFlow) -> Callable[[], Awaitable[None]]:
        """Publish the messages that put the flow and its first jobs into its queue.

        Return a function that announces the jobs; call it once the messages are stored.
        """


class Transaction(StreamsTransaction):
    """Messages, acks, jobs, keys of buckets and your own SQL rows in one transaction of an embedded store.

    Made by ``jet.transaction()``, used in ``async with``. It takes the store's writer at its first operation, so do
    slow work before; everything is committed, and on disk, when you leave the block, and undone if the block raises.
    """

    def __init__(self, backend: Backend, timeout: Seconds) -> None:
        super().__init__(backend, timeout)
        self._enqueued: list[tuple[QueueWithJobs, JobCall, JobHandle[Any]]] = []
        self._flows: list[Callable[[], Awaitable[None]]] = []

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if kind is None:
            for queue, call, handle in self._enqueued:
                await queue._enqueuer.announce((call,), (handle,))
            for announce in self._flows:
                await announce()

    def bucket(self, bucket: Bucket[T]) -> Bucket[T]:
        """Return a bucket whose writes are part of this transaction; ``bucket`` must come from the same ``jet``.

        It reads the transaction's own writes. A refused write (WrongLastSequenceError, BucketKeyExistsError) has
        changed nothing, and the transaction may continue. Raises ConfigError.
        """
        from pelton.buckets import written_through

        return written_through(bucket, self._backend, self.publish)

    def queue(self, queue: JobQueue) -> QueueInTransaction:
        """Return a queue that enqueues as a part of this transaction: ``await tx.queue(garage).enqueue(repair, ...)``.

        ``queue`` must come from the same ``jet``. Raises ConfigError.
        """
        return QueueInTransaction(self, self._checked(queue), PLAIN)

    async def enqueue(
        self, job: JobDefinition[Any, R], *args: Any, key: str = "", idempotency_key: str = "", **kwargs: Any
    ) -> JobHandle[R]:
        """Put a job into its queue, as ``job.enqueue`` does; no worker sees it before the commit.

        ``key`` and ``idempotency_key`` are as for :meth:`Job.enqueue`. Raises JobArgumentsError, ConfigError.
        """
        options = JobOptions(key=key, idempotency_key=idempotency_key)
        return (await self.enqueue_many((job.call_with(args, kwargs, options),)))[0]

    async def enqueue_flow(self, flow: EnqueuedFlow[H]) -> H:
        """Put a flow into its queue, as ``flow.enqueue`` does; none of its jobs starts before the commit.

        Raises ConfigError.
        """
        queue = getattr(flow, "queue", None)
        if queue is None or not hasattr(flow, "put"):
            raise ConfigError(f"transaction: the flow is {flow!r}; give a flow, as queue.new_flow() returns it")
        self._checked(queue)
        self._flows.append(await flow.put(lambda log, jobs: self._port().publish([*log, *jobs])))
        return flow.handle

    async def enqueue_many(self, calls: Sequence[JobCall]) -> list[JobHandle[Any]]:
        """Put many jobs, ``calls`` made with ``job.bind``, into their queues, in order. Raises ConfigError."""
        return await self._enqueue([(self._queue_of(call), call) for call in calls])

    async def _enqueue(self, calls: Sequence[tuple[QueueWithJobs, JobCall]]) -> list[JobHandle[Any]]:
        tracing = self._backend.tracing
        if tracing is None or not calls:
            return self._note(calls, await self._put(calls))
        # Of several queues, which is rare, the span names the first.
        with tracing.enqueuing(calls[0][0].name, [call.job for _, call in calls]) as span:
            handles = await self._put([(queue, call.with_trace(span.meta)) for queue, call in calls])
            span.on_stored([handle.id for handle in handles])
            return self._note(calls, handles)

    def _note(
        self, calls: Sequence[tuple[QueueWithJobs, JobCall]], handles: list[JobHandle[Any]]
    ) -> list[JobHandle[Any]]:
        """Return the handles, and tell of them when the transaction is committed."""
        self._enqueued += ((queue, call, handle) for (queue, call), handle in zip(calls, handles, strict=True))
        return handles

    async def _put(self, calls: Sequence[tuple[QueueWithJobs, JobCall]]) -> list[JobHandle[Any]]:
        messages: list[Outgoing] = []
        for queue, group in groupby(calls, itemgetter(0)):
            messages += queue._enqueuer.messages_of([call for _, call in group])
        if any(call.options.is_unique for _, call in calls):
            async with self.savepoint():
                return await self._put_apart(calls, messages)
        acks = await self._port().publish(messages)
        return [
            queue._enqueuer.handle_of(call, message, ack)
            for (queue, call), message, ack in zip(calls, messages, acks, strict=True)
        ]

    async def _put_apart(
        self, calls: Sequence[tuple[QueueWithJobs, JobCall]], messages: Sequence[Outgoing]
    ) -> list[JobHandle[Any]]:
        handles: list[JobHandle[Any]] = []
        answers = await self._port().publish_apart(messages)
        for (queue, call), message, answer in zip(calls, messages, answers, strict=True):
            if isinstance(answer, WrongLastSequenceError):
                handle = await queue._enqueuer.after_refusal(call, message, answer, self._store, alone=True)
                handles.append(handle)
            elif isinstance(answer, PeltonError):
                raise answer
            else:
                handles.append(queue._enqueuer.handle_of(call, message, answer))
        return handles

    async def _store(self, message: Outgoing) -> PubAck:
        return (await self._port().publish([message]))[0]

    def _queue_of(self, call: JobCall) -> QueueWithJobs:
        if call.queue is None:
            raise ConfigError(
                f"job {call.job!r} was declared in a pelton.Jobs() and has no queue of its own: "
                "enqueue it with tx.queue(queue).enqueue(job, ...)"
            )
        return self._checked(call.queue)

    def _checked(self, queue: JobQueue) -> QueueWithJobs:
        if not isinstance(queue, QueueWithJobs):
            raise ConfigError(f"transaction: queue is {queue!r}; give a queue, as jet.queue(name) returns it")
        if queue.jet.backend is not self._backend:
            raise ConfigError(f"queue {queue.name!r} was opened through another opening than this transaction")
        return queue


class QueueInTransaction:
    """A queue whose jobs are enqueued as a part of a transaction; made by ``tx.queue(queue)``."""

    __slots__ = ("_options", "_queue", "_transaction")

    def __init__(self, transaction: Transaction, queue: QueueWithJobs, options: JobOptions) -> None:
        self._transaction = transaction
        self._queue = queue
        self._options = options

    def options(self, **options: Unpack[OptionFields]) -> QueueInTransaction:
        """Return the same with the options of `JobOptions`. Raises ConfigError."""
        checked = job_options(f"queue {self._queue.name!r}", options)
        return QueueInTransaction(self._transaction, self._queue, checked)

    @overload
    async def enqueue(self, job: JobDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    async def enqueue(self, job: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]: ...

    async def enqueue(self, job: JobDefinition[Any, Any] | str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Put a job into the queue; no worker sees it before the commit. Raises JobArgumentsError, ConfigError."""
        call = self._queue._enqueuer.call_of(job, args, kwargs, self._options)
        return (await self._transaction._enqueue([(self._queue, call)]))[0]  # one class in two

    async def send(self, job_id: str, name: str, value: object = None, *, msg_id: str = "") -> bool:
        """Send a signal to a job with the commit, once for each ``msg_id``, as :meth:`Queue.send` does.

        Whether the job has ended is not looked at. Raises ConfigError.
        """
        signal = signal_message(self._queue._enqueuer.queue, job_id, name, value, msg_id)
        [answer] = await self._transaction._port().publish_apart([signal])
        if isinstance(answer, PeltonError) and not isinstance(answer, WrongLastSequenceError):
            raise answer
        return not isinstance(answer, PeltonError)


class StepTransaction(Transaction):
    """A transaction that holds one step of a running job: what the step did, and that it is done."""

    async def keep(self, delivered: Delivered, message: Outgoing) -> PeltonError | None:
        """Publish the step's record while the job is held; return why it is not held any more, if so."""
        await self._port().publish([message])
        [refused] = await self._port().ack(delivered.stream, delivered.consumer, [ack_of(delivered, "progress")])
        return refused


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
