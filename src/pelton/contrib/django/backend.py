"""A backend for Django's tasks.

In the settings: ``TASKS = {"default": {"BACKEND": "pelton.contrib.django.backend.PeltonBackend", "OPTIONS": {"store":
"tasks.pelton"}}}``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from django.core import checks
from django.utils import timezone
from django.utils.crypto import get_random_string

import pelton
from pelton.contrib.django.records import TaskRecord, result_of
from pelton.contrib.django.tasks_api import backends, exceptions, signals
from pelton.contrib.process_store import process_store
from pelton.queue import JobInfo

__all__ = ["PeltonBackend"]

JOB: Final = "django_task"
_BUCKET: Final = "django_tasks"
_KEPT_S: Final = 7 * 86_400


def rank_of(priority: int) -> int:
    """Return the priority of a job, 0 to 3, from a task's, -100 to 100: below 0, 0, up to 50, above."""
    return (priority >= 0) + (priority > 0) + (priority > 50)


if TYPE_CHECKING:

    class BaseTaskBackend:
        """What type checkers take for Django's class, which has no type information."""

        def __init__(self, *_args: Any, **_options: Any) -> None: ...

        def check(self, **_options: Any) -> Any:
            """Check the settings."""

        def __getattr__(self, name: str) -> Any: ...

else:
    BaseTaskBackend = backends.BaseTaskBackend


class PeltonBackend(BaseTaskBackend):
    """Enqueues Django's tasks in Pelton's queues of the same names.

    ``OPTIONS``: ``store``, a file or ``nats://host:4222``. Results are kept for a week. Priorities, -100 to 100, have
    four ranks: below 0, 0, up to 50, and above. Django constructs it, from the ``alias`` and the ``params`` of TASKS.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        store = self.options.get("store", "")
        self.store: str = os.fspath(store) if isinstance(store, str | Path) else ""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put a task into its queue; returns when it is durable.

        Raises TypeError or ValueError for arguments that JSON can't hold, and pelton.PeltonError.
        """
        self.validate_task(task)
        result_id = get_random_string(32)
        at = task.run_after
        if at is not None and timezone.is_naive(at):
            at = timezone.make_aware(at)
        jet = process_store(self.store).blocking
        record = TaskRecord(task.module_path, list(args), dict(kwargs), task.queue_name, "", task.priority)
        # As it is stored: a worker may begin it at once.
        ready = JobInfo(id="", job=JOB, state="pending", key="", attempt=0, enqueued_at=jet.runtime.clock.now())
        # This refuses arguments, so before the job is stored.
        result = result_of(record, result_id, self.alias, ready)
        named = {"task": task.module_path, "args": list(result.args), "kwargs": dict(result.kwargs)}
        queue = jet.queue(task.queue_name).options(at=at, priority=rank_of(task.priority))
        handle = queue.enqueue(JOB, **named, result_id=result_id, backend=self.alias)
        record = TaskRecord(**named, queue=task.queue_name, job=handle.id, priority=task.priority)
        self._records(jet).put(result_id, msgspec.json.encode(record))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return a task's result. Raises TaskResultDoesNotExist."""
        jet = process_store(self.store).blocking
        try:
            record = msgspec.json.decode(self._records(jet).get(result_id).value, type=TaskRecord)
            info = jet.queue(record.queue).get(record.job)
        except (pelton.BucketKeyNotFoundError, pelton.JobNotFoundError, pelton.ConfigError):
            raise exceptions.TaskResultDoesNotExist(result_id) from None
        return result_of(record, result_id, self.alias, info)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings."""
        yield from super().check(**kwargs)
        if not self.store:
            yield checks.Error(f"TASKS[{self.alias!r}]: OPTIONS needs 'store', a file or nats://host", id="pelton.E001")

    def _records(self, jet: Any) -> Any:
        try:
            return jet.bucket(_BUCKET)
        except pelton.BucketNotFoundError:
            return jet.create_bucket(_BUCKET, ttl=_KEPT_S)
