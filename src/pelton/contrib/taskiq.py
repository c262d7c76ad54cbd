"""A broker for taskiq on a queue, and its results in a bucket.

``broker = PeltonBroker("tasks.pelton").with_result_backend(PeltonResults("tasks.pelton"))``; then ``taskiq worker``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, TypeVar

import msgspec
from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult

import pelton
from pelton.connect import Jet
from pelton.connect import open as open_store
from pelton.queue import ClaimedJob, Claims, JobRules, Queue
from pelton.queue.model.options import OptionFields

__all__ = ["PeltonBroker", "PeltonResults"]

R = TypeVar("R")
_PULL_S = 5.0
_KEPT_S = 86_400


class _Arguments(msgspec.Struct):
    data: bytes


class PeltonBroker(AsyncBroker):
    """Sends tasks through a ``queue`` of a ``store``, a file or ``nats://host:4222``; created if it is missing.

    A worker takes up to ``batch`` tasks at a time.
    A task has the labels ``delay`` and ``ttl`` (seconds), ``priority`` (0 to 3, the highest first), ``key`` and
    ``tenant``; ``cancel`` takes one back that waits.
    Its message is acknowledged as taskiq's ``--ack-type`` says (after it has run, by default); those of a worker that
    dies come again when their lease runs out, as another attempt, of which there are ``max_attempts``. Retries after
    errors are those of taskiq's middleware.
    """

    def __init__(self, store: str, queue: str = "taskiq", *, batch: int = 16, max_attempts: int = 5) -> None:
        super().__init__()
        self._store = store
        self._name = queue
        self._batch = batch
        self._rules = JobRules(max_attempts=max_attempts)
        self._jet: Jet | None = None
        self._queue: Queue | None = None

    async def startup(self) -> None:
        """Open the store and the queue."""
        await super().startup()
        self._jet = await open_store(self._store)
        self._queue = await self._jet.queue(self._name)

    async def shutdown(self) -> None:
        """Close the store."""
        await super().shutdown()
        if self._jet is not None:
            await self._jet.close()
            self._jet = self._queue = None

    async def kick(self, message: BrokerMessage) -> None:
        """Put a task into the queue; returns when it is durable. Raises pelton.PeltonError."""
        labels = message.labels
        options: OptionFields = {
            "key": str(labels.get("key", "")),
            "tenant": str(labels.get("tenant", "")),
            "delay": _seconds(labels.get("delay")),
            "ttl": _seconds(labels.get("ttl")),
            "priority": int(labels.get("priority", 0)),
        }
        queue, arguments = self._started_queue(), {"data": message.message}
        named_options: OptionFields = {**options, "id": message.task_id}
        named = await queue.options(**named_options).enqueue(message.task_name, **arguments)
        if named.duplicate:
            # taskiq retries a task under its id before the attempt that failed has ended.
            await queue.options(**options).enqueue(message.task_name, **arguments)

    async def cancel(self, task_id: str, *, tenant: str = "") -> bool:
        """Take back a task that waits, also for its time; return False if it has begun, or is not known.

        Its result never comes. ``tenant`` is the label of the task, if it has one. Raises pelton.PeltonError.
        """
        try:
            handle = await self._started_queue().named(task_id, tenant=tenant)
            # taskiq does not tell a task that runs to stop.
            return (await handle.info()).state != "running" and await handle.cancel(reason="cancelled by taskiq")
        except pelton.JobNotFoundError:
            return False

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield the tasks to be run, for as long as the worker lives."""
        async with self._started_queue().claims(self._rules) as claims:
            while True:
                for job in await claims.take(self._batch, timeout=_PULL_S):
                    data = msgspec.json.decode(job.args, type=_Arguments).data
                    yield AckableMessage(data=data, ack=partial(_ack, claims, job))

    def _started_queue(self) -> Queue:
        if self._queue is None:
            raise pelton.ConfigError("the broker was not started: await broker.startup()")
        return self._queue


def _seconds(label: Any) -> float | None:
    return None if label is None else float(label)


async def _ack(claims: Claims, job: ClaimedJob) -> None:
    job.complete()
    await claims.settle([job])


class PeltonResults(AsyncResultBackend[R]):
    """Keeps the results of tasks, as JSON, in ``bucket`` of a ``store``, for ``kept`` seconds (a day)."""

    def __init__(self, store: str, bucket: str = "taskiq_results", *, kept: float = _KEPT_S) -> None:
        self._store = store
        self._name = bucket
        self._kept = kept
        self._jet: Jet | None = None
        self._bucket: Any = None

    async def startup(self) -> None:
        """Open the store, and the bucket, created if it is missing."""
        self._jet = await open_store(self._store)
        try:
            self._bucket = await self._jet.bucket(self._name)
        except pelton.BucketNotFoundError:
            self._bucket = await self._jet.create_bucket(self._name, ttl=self._kept)

    async def shutdown(self) -> None:
        """Close the store."""
        if self._jet is not None:
            await self._jet.close()
            self._jet = self._bucket = None

    async def set_result(self, task_id: str, result: TaskiqResult[R]) -> None:
        """Keep a result."""
        await self._bucket.put(task_id, result.model_dump_json().encode())

    async def is_result_ready(self, task_id: str) -> bool:
        """Return whether there is a result."""
        try:
            await self._bucket.get(task_id)
        except pelton.BucketKeyNotFoundError:
            return False
        return True

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[R]:
        """Return a result. Raises BucketKeyNotFoundError."""
        found: TaskiqResult[R] = TaskiqResult.model_validate_json((await self._bucket.get(task_id)).value)
        return found
